//! A layer of mlx-rs whose weight is held in four bits.

use mlx_rs::{module::Module, nn, ops};
use tacit::prelude::*;

fn main() -> Result<()> {
    let mut layer = quantized(nn::Linear::new(256, 512)?)?;
    println!("{}", layer.report());

    // From here on, building the dense weight is an error.
    let _guard = Policy::Deny.scope();
    let x = ops::ones::<f32>(&[2, 256])?;
    println!("{}", layer.explain(|layer| layer.forward(&x))?);
    Ok(())
}

/// The layer with its weight in four bits.
fn quantized(layer: nn::Linear) -> Result<Model<nn::Linear>> {
    let format = Nf4 {
        block: 64,
        double: true,
    };
    Model::new(layer)?.quantize("weight", format)
}

#[cfg(test)]
mod tests {
    use mlx_rs::{Array, random};

    use super::*;

    #[test]
    fn four_bits_give_nearly_what_the_dense_layer_gives() -> Result<()> {
        random::seed(0)?;
        let mut layer = nn::Linear::new(256, 512)?;
        let x = random::normal::<f32>(&[2, 256], None, None, None)?;
        let expected = layer.forward(&x)?;

        let mut layer = quantized(layer)?;
        let _guard = Policy::Deny.scope();
        let difference = layer.forward(&x)?.subtract(&expected)?;

        let error = length(&difference)? / length(&expected)?;
        assert!(0.0 < error && error < 0.2, "{error}");
        Ok(())
    }

    fn length(array: &Array) -> Result<f32> {
        Ok(array.square()?.sum(None)?.sqrt()?.item_exact::<f32>())
    }
}

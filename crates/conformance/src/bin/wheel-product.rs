//! Times the dense product with the BLAS that MLX's wheel brings: nothing here links another one.
//!
//! Prints the seconds of one product for each line that it reads.

#[path = "../../benches/dense/product.rs"]
mod product;

use std::io::stdin;

use product::Product;

fn main() -> Result<(), mlx_rs::error::Exception> {
    let product = Product::new()?;
    for _ in stdin().lines() {
        println!("{}", product.seconds()?);
    }
    Ok(())
}

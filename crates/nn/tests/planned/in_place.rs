//! Steps of training that write parameters and moments where they lie.

use mlx_rs::module::Module as _;
use mlx_rs::optimizers::AdamW;
use mlx_rs::{Array, memory, nn, random};
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Result, compile_with_state, tree};
use tacit_nn::{Model, ParameterFilter, Stateful};

use crate::turns;

type Training = (Model<nn::Linear>, Stateful<AdamW>);

const WIDTH: i32 = 1024;

fn step((model, optimizer): &mut Training, x: Array) -> Result<Array> {
    let (loss, gradients) =
        model.value_and_grad(ParameterFilter::Dense, x, |m, x| Ok::<_, Error>(m.forward(&x)?.square()?.mean(None)?))?;
    model.update(optimizer, &gradients)?;
    Ok(loss)
}

fn start() -> Result<Training> {
    random::seed(3)?;
    Ok((Model::new(nn::Linear::new(WIDTH, WIDTH)?)?, Stateful(AdamW::new(1e-3))))
}

#[test]
fn a_step_of_adam_takes_no_memory_for_new_weights_and_moments() -> Result<()> {
    let _turn = turns::of_memory();
    let (mut own, mut eager) = (start()?, start()?);
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let weight = 4 * (WIDTH * WIDTH) as usize;
    for call in 0..6 {
        let x = random::normal::<f32>(&[8, WIDTH], None, None, &random::key(call)?)?;
        x.eval()?;
        memory::reset_peak_memory()?;
        let before = memory::active_memory()?;
        let loss = compiled.call(&mut own, &x)?.dense()?;
        tree::eval(&(&own, &loss))?;
        let more = memory::peak_memory()?.saturating_sub(before);
        // The first calls make the moments, and trace.
        assert!(call < 3 || more < weight, "{more} bytes more in call {call}, where a weight has {weight}");
        let expected = step(&mut eager, x)?;
        tree::eval(&(&eager, &expected))?;
        let (loss, expected) = (loss.item_exact::<f32>(), expected.item_exact::<f32>());
        assert!((loss - expected).abs() <= 1e-4 * expected, "call {call}: {loss} and {expected}");
    }
    assert!(compiled.stats().nodes.contains_key("Plan"), "{:?}", compiled.stats().nodes);
    Ok(())
}

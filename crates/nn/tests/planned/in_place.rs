//! Steps of training that write parameters and moments where they lie.

use mlx_rs::module::Module as _;
use mlx_rs::optimizers::AdamW;
use mlx_rs::{Array, memory, nn, random};
use tacit_core::compile::CompileOptions;
use tacit_core::transform::checkpoint;
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

/// As a loop does that begins the next step before it reads the loss of this one.
#[test]
fn steps_that_are_begun_behind_each_other_take_no_memory_either() -> Result<()> {
    let _turn = turns::of_memory();
    let (mut own, mut eager) = (start()?, start()?);
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let weight = 4 * (WIDTH * WIDTH) as usize;
    let x = random::normal::<f32>(&[8, WIDTH], None, None, &random::key(7)?)?;
    for call in 0..4 {
        memory::reset_peak_memory()?;
        let before = memory::active_memory()?;
        let losses = (0..3)
            .map(|_| {
                let loss = compiled.call(&mut own, &x)?.dense()?;
                tree::async_eval(&(&own, &loss))?;
                Ok(loss)
            })
            .collect::<Result<Vec<_>>>()?;
        tree::eval(&(&own, &losses))?;
        let more = memory::peak_memory()?.saturating_sub(before);
        assert!(call < 2 || more < weight, "{more} bytes more in round {call}, where a weight has {weight}");
        for loss in losses {
            let expected = step(&mut eager, x.clone())?;
            tree::eval(&(&eager, &expected))?;
            let (loss, expected) = (loss.item_exact::<f32>(), expected.item_exact::<f32>());
            assert!((loss - expected).abs() <= 1e-4 * expected, "round {call}: {loss} and {expected}");
        }
    }
    Ok(())
}

type Loss = fn(&mut Model<nn::Linear>, Array) -> Result<Array>;

/// What a gradient computes again or reads from codes, a function of the model whose result nobody has asked for when the step runs, and
/// a copy of the state that somebody keeps: all of them read the weights as they were.
#[test]
fn weights_are_written_behind_all_that_reads_them() -> Result<()> {
    let _turn = turns::of_memory();
    let plainly: Loss = |model, x| Ok(model.forward(&x)?.square()?.mean(None)?);
    let again: Loss = |model, x| {
        let mut product = checkpoint(|(x, w): (Array, Array)| x.matmul(w.t())?.sin());
        Ok(product.call((x, model.get("weight")?.dense()?))?.dense()?.square()?.mean(None)?)
    };
    for (loss, format) in [(plainly, None), (again, None), (plainly, Some("affine:8:64"))] {
        let start = || -> Result<Training> {
            let (mut model, optimizer) = (Model::new(nn::Linear::new(64, 64)?)?, Stateful(AdamW::new(1e-2)));
            model.set("weight", random::normal::<f32>(&[64, 64], None, 0.1, &random::key(5)?)?)?;
            if let Some(format) = format {
                model.saved_activations("weight", format)?;
            }
            Ok((model, optimizer))
        };
        let step = move |(model, optimizer): &mut Training, x: Array| -> Result<Array> {
            let (loss, gradients) = model.value_and_grad(ParameterFilter::Paths("weight".parse()?), x, loss)?;
            model.update(optimizer, &gradients)?;
            Ok(loss)
        };
        let (mut own, mut eager) = (start()?, start()?);
        eager.0.set("bias", own.0.get("bias")?)?;
        let mut train = compile_with_state(CompileOptions::default(), step);
        let evaluate = move |(model, _): &mut Training, x: Array| loss(model, x);
        let mut evaluate = compile_with_state(CompileOptions::default(), evaluate);
        for call in 0..6 {
            let x = random::normal::<f32>(&[8, 64], None, None, &random::key(call)?)?;
            let kept = (call % 2 == 0).then(|| own.clone());
            let before = evaluate.call(&mut own, &x)?.dense()?;
            let trained = train.call(&mut own, &x)?.dense()?;
            tree::eval(&(&own, &trained))?;
            let held = kept.map_or(Ok(before.clone()), |(mut model, _)| loss(&mut model, x.clone()))?;
            let expected = step(&mut eager, x)?.item_exact::<f32>();
            for found in [trained, before, held].map(|found| found.item_exact::<f32>()) {
                assert!((found - expected).abs() <= 1e-3 * expected, "{format:?}, call {call}: {found} and {expected}");
            }
        }
        assert!(train.stats().nodes.contains_key("Plan"), "{:?}", train.stats().nodes);
    }
    Ok(())
}

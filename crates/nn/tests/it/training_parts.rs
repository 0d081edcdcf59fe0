//! Gradients that are clipped and accumulated, in compiled steps too.

use expect_test::expect;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, Dtype, complex64, nn, ops, random};
use tacit_conformance::oracle::relative_error;
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::training::{Accumulated, Schedule, clip_by_norm};
use tacit_nn::{Model, ParameterFilter, Stateful};

use crate::types::{normal, numbers};

fn gradients(scale: f32) -> FlattenedModuleParam {
    let scaled = |seed, shape: &[i32]| normal(seed, shape).multiply(Array::from_f32(scale)).expect("scales");
    [
        ("a.weight".into(), scaled(1, &[3, 4])),
        ("b.weight".into(), scaled(2, &[5]).as_dtype(Dtype::Bfloat16).expect("casts")),
    ]
    .into()
}

#[test]
fn a_norm_is_bounded_and_a_smaller_one_is_left() -> Result<()> {
    let norm_of = |gradients: &FlattenedModuleParam| -> Result<f32> {
        let mut sum = 0.0;
        for gradient in gradients.values() {
            sum += gradient.as_dtype(Dtype::Float32)?.square()?.sum(None)?.item_exact::<f32>();
        }
        Ok(sum.sqrt())
    };
    let expected = norm_of(&gradients(1.0))?;
    let (clipped, norm) = clip_by_norm(gradients(1.0), 0.5)?;
    assert!((norm.item_exact::<f32>() - expected).abs() < 1e-5 * expected);
    assert!((norm_of(&clipped)? - 0.5).abs() < 5e-3, "{}", norm_of(&clipped)?);
    assert_eq!(clipped["b.weight"].dtype(), Dtype::Bfloat16);
    let (left, _) = clip_by_norm(gradients(1.0), 2.0 * expected)?;
    for (path, gradient) in &gradients(1.0) {
        assert!(left[path].eq_exact(gradient)?, "{path}");
    }
    let (zeros, norm) = clip_by_norm(gradients(0.0), 1.0)?;
    assert_eq!((norm.item_exact::<f32>(), norm_of(&zeros)?), (0.0, 0.0));
    // Their norm is beyond `f32`, and they are not.
    let large = FlattenedModuleParam::from([("weight".into(), Array::from_slice(&[3e38f32, -3e38], &[2]))]);
    let (clipped, norm) = clip_by_norm(large, 1.0)?;
    assert!(norm.item_exact::<f32>().is_infinite());
    let found = numbers(&clipped["weight"]);
    assert!((found[0] - 0.5f32.sqrt()).abs() < 1e-5 && (found[0] + found[1]).abs() < 1e-5, "{found:?}");
    let (_, norm) = clip_by_norm(FlattenedModuleParam::new(), 1.0)?;
    assert_eq!(norm.item_exact::<f32>().to_bits(), 0);
    expect![[r#"
        gradients are not clipped to the norm 0
        help: give one above 0, such as 1"#]]
    .assert_eq(&clip_by_norm(gradients(1.0), 0.0).expect_err("nothing is left").to_string());
    Ok(())
}

#[test]
fn complex_gradients_keep_both_parts() -> Result<()> {
    let gradients = || FlattenedModuleParam::from([("w".into(), Array::from_complex(complex64::new(3.0, -4.0)))]);
    let read = |gradients: &FlattenedModuleParam| gradients["w"].item_exact::<complex64>();
    let (clipped, norm) = clip_by_norm(gradients(), 2.5)?;
    assert_eq!((norm.item_exact::<f32>(), read(&clipped)), (5.0, complex64::new(1.5, -2.0)));
    let mut accumulated = Accumulated::default();
    accumulated.add(gradients())?;
    accumulated.add(gradients())?;
    assert_eq!(read(&accumulated.take_mean()?), complex64::new(3.0, -4.0));
    Ok(())
}

#[test]
fn batches_that_are_accumulated_are_one_batch() -> Result<()> {
    let loss = |m: &mut Model<nn::Linear>, x: &Array| m.forward(x)?.square()?.mean(None);
    random::seed(3)?;
    let model = Model::new(nn::Linear::new(8, 8)?)?;
    let x = normal(5, &[12, 8]);
    let (_, whole) = model.clone().value_and_grad(ParameterFilter::default(), &x, loss)?;
    let mut accumulated = Accumulated::default();
    for part in ops::split_equal(&x, 3, 0)? {
        let (_, gradients) = model.clone().value_and_grad(ParameterFilter::default(), &part, loss)?;
        accumulated.add(gradients)?;
    }
    assert_eq!(accumulated.batches(), 3);
    let mean = accumulated.take_mean()?;
    assert_eq!((mean.len(), accumulated.batches()), (whole.len(), 0));
    for (path, gradient) in &whole {
        let error = relative_error(&mean[path], gradient)?;
        assert!(error < 1e-5, "{path}: {error}");
    }
    Ok(())
}

#[test]
fn gradients_of_other_leaves_are_refused_and_change_nothing() -> Result<()> {
    let mut accumulated = Accumulated::default();
    accumulated.add(gradients(1.0))?;
    let one = |path: &str, shape: &[i32]| FlattenedModuleParam::from([(path.into(), normal(1, shape))]);
    let message = |accumulated: &mut Accumulated, gradients: FlattenedModuleParam| {
        let error: Error = accumulated.add(gradients).expect_err("others");
        error.to_string()
    };
    expect![[r#"
        the batch has no gradient of b.weight, and those before had one
        help: add gradients of the same leaves, and take the mean before others"#]]
    .assert_eq(&message(&mut accumulated, one("a.weight", &[3, 4])));
    expect![[r#"
        the batch has a gradient f32[3,5] of a.weight, and those before sum to f32[3,4]
        help: add gradients of the same leaves, and take the mean before others"#]]
    .assert_eq(&message(&mut accumulated, one("a.weight", &[3, 5])));
    expect![[r#"
        the batch has a gradient of c, and those before had none
        help: add gradients of the same leaves, and take the mean before others"#]]
    .assert_eq(&message(&mut accumulated, one("c", &[3])));
    let several = ["j", "i", "h", "g", "f", "e", "d", "c"].map(|path| (path.into(), normal(1, &[3])));
    assert!(message(&mut accumulated, several.into()).starts_with("the batch has a gradient of c, "));
    let mean = accumulated.take_mean()?;
    assert!(mean["a.weight"].eq_exact(&gradients(1.0)["a.weight"])?);
    assert_eq!(mean["b.weight"].dtype(), Dtype::Bfloat16);
    expect![[r#"
        no gradients were added
        help: add those of a batch by `Accumulated::add`"#]]
    .assert_eq(&accumulated.take_mean().expect_err("nothing").to_string());
    Ok(())
}

#[test]
fn a_compiled_step_clips_and_follows_a_schedule() -> Result<()> {
    type State = (Model<nn::Linear>, Stateful<Adam>);
    let step = |(model, adam): &mut State, (x, rate): (Array, Array)| -> Result<Array> {
        adam.lr = rate;
        let loss = |m: &mut Model<nn::Linear>, x: Array| m.forward(&x)?.square()?.sum(None);
        let (_, gradients) = model.value_and_grad(ParameterFilter::default(), x, loss)?;
        let (gradients, norm) = clip_by_norm(gradients, 1.0)?;
        model.update(adam, &gradients)?;
        Ok(norm)
    };
    let state = || -> Result<State> {
        random::seed(3)?;
        Ok((Model::new(nn::Linear::new(8, 8)?)?, Stateful(Adam::new(0.0))))
    };
    let schedule = Schedule::cosine(0.1, 6).with_warmup(2);
    let (mut eager, mut compiled) = (state()?, state()?);
    let mut function = compile_with_state(CompileOptions::default(), step);
    for made in 0..6 {
        let (x, rate) = (normal(made, &[4, 8]), schedule.array(made));
        let expected = step(&mut eager, (x.clone(), rate.clone()))?;
        let norm = function.call(&mut compiled, (x, rate))?.dense()?;
        let (a, b) = (norm.item_exact::<f32>(), expected.item_exact::<f32>());
        assert!((a - b).abs() <= 1e-4 * b && b > 1.0, "{made}: {a} {b}");
    }
    assert_eq!(function.stats().traces, 2);
    Ok(())
}

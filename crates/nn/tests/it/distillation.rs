//! Scales and biases that are trained against a teacher, with the codes as they are.

use expect_test::expect;
use mlx_rs::module::Module;
use mlx_rs::optimizers::Adam;
use mlx_rs::{Array, Dtype, nn};
use tacit_arrays::Lora;
use tacit_core::transform::value_and_grad;
use tacit_core::{Counters, Error, Policy, Result};
use tacit_nn::training::distillation_loss;
use tacit_nn::{LoraConfig, Missing, Model, ParameterFilter};

use crate::types::{error, normal, numbers, said_of, vector};

const ROWS: usize = 3;
const CLASSES: usize = 7;

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let powers: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / f64::from(temperature)).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

#[test]
fn the_loss_is_the_divergence_from_the_teacher() -> Result<()> {
    let shape = [ROWS as i32, CLASSES as i32];
    let (own, teacher) = (normal(1, &shape), normal(2, &shape).multiply(Array::from_f32(3.0))?);
    for temperature in [1f32, 2.5] {
        let losses = numbers(&distillation_loss(&own, &teacher, temperature)?);
        let given = teacher.clone();
        let mut sum =
            value_and_grad(move |own: Array| Ok::<_, Error>(distillation_loss(&own, &given, temperature)?.sum(None)?));
        let gradient = numbers(sum.call(own.clone())?.1.array()?);
        let [own, teacher] = [&own, &teacher].map(numbers);
        for (row, (own, teacher)) in own.chunks(CLASSES).zip(teacher.chunks(CLASSES)).enumerate() {
            let (q, p) = (softmax(own, temperature), softmax(teacher, temperature));
            let t = f64::from(temperature);
            let expected: f64 = t * t * p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
            assert!((f64::from(losses[row]) - expected).abs() < 1e-5 * (1.0 + expected), "{losses:?}, {expected}");
            for ((found, p), q) in gradient[row * CLASSES..].iter().zip(&p).zip(&q) {
                assert!((f64::from(*found) - t * (q - p)).abs() < 1e-5, "{gradient:?}");
            }
        }
    }
    assert_eq!(numbers(&distillation_loss(&own, &own, 2.0)?), [0.0; ROWS]);
    let halves = [&own, &teacher].map(|logits| logits.as_dtype(Dtype::Float16).expect("halves"));
    assert_eq!(distillation_loss(&halves[0], &halves[1], 1.0)?.dtype(), Dtype::Float32);
    Ok(())
}

#[test]
fn of_no_rows_there_are_no_losses() -> Result<()> {
    for shape in [&[0, 7][..], &[2, 0, 7]] {
        let (own, teacher) = (normal(1, shape).as_dtype(Dtype::Float16)?, normal(2, shape));
        let found = distillation_loss(&own, &teacher, 2.0)?;
        assert_eq!((found.shape(), found.dtype()), (&shape[..shape.len() - 1], Dtype::Float32));
        let mut sum =
            value_and_grad(move |own: Array| Ok::<_, Error>(distillation_loss(&own, &teacher, 2.0)?.sum(None)?));
        assert_eq!(sum.call(own)?.1.array()?.shape(), shape);
    }
    Ok(())
}

/// A mask of the vocabulary rules classes out, of the teacher or of both.
#[test]
fn classes_that_are_ruled_out_count_for_nothing() -> Result<()> {
    let teacher = vector(&[0.0, f32::NEG_INFINITY]);
    for (own, expected) in [([1.0, 2.0], 1f32.exp().ln_1p()), ([1.0, f32::NEG_INFINITY], 0.0)] {
        let given = teacher.clone();
        let mut loss = value_and_grad(move |own: Array| distillation_loss(&own, &given, 1.0));
        let (found, gradient) = loss.call(vector(&own))?;
        assert!((found.dense()?.item_exact::<f32>() - expected).abs() < 1e-5);
        assert!(numbers(gradient.array()?).iter().all(|slope| slope.is_finite()), "{own:?}");
    }
    Ok(())
}

#[test]
fn logits_of_other_shapes_and_temperatures_of_zero_are_refused() {
    let of = |shape: &[i32], temperature| distillation_loss(&normal(1, &[2, 3]), &normal(2, shape), temperature);
    let said = [said_of(of(&[2, 4], 1.0)), said_of(of(&[2, 3], 0.0))].concat();
    expect![[r#"
        the logits are f32[2,3], and those of the teacher are f32[2,4]
        help: give float logits of the same rows and classes, `[.., classes]`
        a temperature of 0 is not a number above 0
        help: give 1, or more to weigh what the teacher holds unlikely
    "#]]
    .assert_eq(&said);
}

fn layers() -> nn::Sequential {
    mlx_rs::random::seed(3).expect("seeds");
    let linear = |inputs, outputs| nn::Linear::new(inputs, outputs).expect("builds");
    nn::Sequential::new().append(linear(64, 64)).append(nn::Relu).append(linear(64, 16))
}

/// Steps towards what a teacher makes of `x`; the loss of each.
fn distilled(
    student: &mut Model<nn::Sequential>,
    x: &Array,
    targets: &Array,
    mut adam: Adam,
    steps: usize,
) -> Result<Vec<f32>> {
    let step = |_| -> Result<f32> {
        let (loss, gradients) = student.value_and_grad(ParameterFilter::Scales, x, |student, x| {
            Ok::<_, Error>(distillation_loss(&student.forward(x)?, targets, 1.0)?.mean(None)?)
        })?;
        student.update(&mut adam, &gradients)?;
        student.eval()?;
        Ok(loss.item_exact::<f32>())
    };
    (0..steps).map(step).collect()
}

/// The integers of a model, by path.
fn codes(model: &Model<nn::Sequential>) -> Vec<(String, Array)> {
    let leaves = model.leaves(&ParameterFilter::All).into_iter();
    leaves.filter(|(_, leaf)| !leaf.dtype().is_float()).map(|(path, leaf)| (path, leaf.clone())).collect()
}

fn dtypes(model: &Model<nn::Sequential>) -> Vec<(String, Dtype)> {
    model.leaves(&ParameterFilter::Scales).into_iter().map(|(path, leaf)| (path, leaf.dtype())).collect()
}

#[track_caller]
fn same_codes(found: &[(String, Array)], expected: &[(String, Array)]) {
    assert!(found.len() >= 2);
    for ((path, found), (own, expected)) in found.iter().zip(expected) {
        assert!(path == own && found.eq_exact(expected).expect("compares"), "{path}");
    }
}

#[test]
fn scales_and_biases_follow_the_teacher_and_codes_stay() -> Result<()> {
    let x = normal(1, &[64, 64]);
    let targets = layers().forward(&x)?;
    for (text, at_most) in [
        ("affine:2:64", 0.99),
        ("symmetric:3:32", 0.99),
        ("nf4:64", 0.99),
        ("fp4:32", 0.99),
        ("ternary:64", 0.99),
        // Two numbers of a layer are floats, which have little to gain.
        ("nf4:64:double", 1.01),
    ] {
        let mut student = Model::new(layers())?.quantize("*.weight", text)?;
        let (own, biases) = (codes(&student), student.get("layers.0.bias")?.dense()?);
        let _deny = Policy::Deny.scope();
        let (losses, counters) = Counters::during(|| distilled(&mut student, &x, &targets, Adam::new(5e-4), 40));
        let losses = losses?;
        assert!(losses[39] < at_most * losses[0], "{text}: {losses:?}");
        assert_eq!((counters.materialized, counters.materialized_bytes), (0, 0), "{text}");
        same_codes(&codes(&student), &own);
        assert!(student.get("layers.0.bias")?.dense()?.eq_exact(&biases)?, "{text}");
        // It is a model as any other.
        let mut other = Model::new(layers())?;
        other.assign(student.values()?, Missing::Refuse)?;
        assert!(other.forward(&x)?.eq_exact(student.forward(&x)?)?, "{text}");
    }
    Ok(())
}

#[test]
fn scales_of_half_floats_are_trained_in_f32_and_rounded_once() -> Result<()> {
    let mut teacher = Model::new(layers())?;
    teacher.replace("*", |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Bfloat16)?.into())))?;
    let x = normal(1, &[64, 64]).as_dtype(Dtype::Bfloat16)?;
    let targets = teacher.forward(&x)?;
    let mut student = teacher.quantize("layers.0.weight", "affine:2:64")?.quantize("layers.2.weight", "nf4:64")?;
    let dense = |student: &Model<nn::Sequential>| -> Result<Array> {
        let _allow = Policy::Allow.scope();
        student.get("layers.0.weight")?.dense()
    };
    let (bytes, kept, own, before) = (student.nbytes(), dtypes(&student), codes(&student), dense(&student)?);
    // NF4 has its scales in `f32` anyway.
    assert_eq!(kept.iter().filter(|(_, dtype)| *dtype == Dtype::Bfloat16).count(), 2);

    student.cast_scales(Dtype::Float32)?;
    assert!(dtypes(&student).iter().all(|(_, dtype)| *dtype == Dtype::Float32));
    assert!(dense(&student)?.eq_exact(&before)?);
    distilled(&mut student, &x, &targets, Adam::new(1e-4), 20)?;
    let moved = dense(&student)?;
    assert!(!moved.eq_exact(&before)?);
    student.cast_scales(Dtype::Bfloat16)?;
    assert_eq!((student.nbytes(), dtypes(&student)), (bytes, kept));
    same_codes(&codes(&student), &own);
    let off = dense(&student)?.subtract(&moved)?.abs()?.max(None)?.as_dtype(Dtype::Float32)?.item_exact::<f32>();
    assert!(off < 4e-3, "{off}");
    expect![[r#"
        scales are not held as i32
        help: give `Dtype::Float32`, or the half floats of the model"#]]
    .assert_eq(&error(student.cast_scales(Dtype::Int32)).to_string());
    Ok(())
}

#[test]
fn scales_in_the_base_of_an_adapter_are_cast_too() -> Result<()> {
    let mut model = Model::new(layers())?.quantize("*.weight", "symmetric:4:32")?;
    model = model.lora("*.weight", LoraConfig::default())?;
    model.cast_scales(Dtype::Float16)?;
    assert!(model.get("layers.0.weight")?.downcast::<Lora>().is_some());
    assert!(dtypes(&model).iter().all(|(path, dtype)| path.contains(".base.") && *dtype == Dtype::Float16));
    assert_eq!(dtypes(&model).len(), 2);
    Ok(())
}

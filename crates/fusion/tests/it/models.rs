//! Layers, losses and optimizers as mlx-rs has them.

use std::rc::Rc;

use mlx_rs::builder::Builder;
use mlx_rs::losses::{CrossEntropyBuilder, LossReduction};
use mlx_rs::module::Module;
use mlx_rs::optimizers::{Adam, AdamW, Lion, Optimizer, RmsProp, Sgd, SgdBuilder};
use mlx_rs::{Array, Dtype, nn, transforms};
use tacit_core::Result;
use tacit_core::pass::Passes;

use crate::same::{assert_close, check, compiled, nodes, normal};

/// A function and its gradients by all inputs.
#[track_caller]
fn gradients(f: &dyn Fn(&[Array]) -> Result<Array>, inputs: &[Array], relative: f32) -> usize {
    let both = |inputs: &[Array]| -> Result<Vec<Array>> {
        let all: Vec<i32> = (0..inputs.len() as i32).collect();
        let loss = |inputs: &[Array]| -> std::result::Result<Vec<Array>, mlx_rs::error::Exception> {
            let y = f(inputs).map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))?;
            Ok(vec![y.multiply(&y)?.mean(None)?])
        };
        let (mut values, gradients) = transforms::value_and_grad_with_argnums(loss, &all[..])(inputs)?;
        values.extend(gradients);
        Ok(values)
    };
    nodes(&check(&both, inputs, relative), "programs")
}

#[test]
fn norms_are_differentiated() {
    let x = normal(&[6, 40], 0);
    let rms = |inputs: &[Array]| -> Result<Array> { Ok(mlx_rs::fast::rms_norm(&inputs[0], Some(&inputs[1]), 1e-5)?) };
    assert!(gradients(&rms, &[x.clone(), normal(&[40], 1)], 1e-4) > 6);
    let layer =
        |inputs: &[Array]| -> Result<Array> { Ok(mlx_rs::fast::layer_norm(&inputs[0], &inputs[1], &inputs[2], 1e-5)?) };
    assert!(gradients(&layer, &[x, normal(&[40], 1), normal(&[40], 2)], 1e-4) > 6);
}

#[test]
fn activations_are_differentiated() {
    type Activation = fn(&Array) -> std::result::Result<Array, mlx_rs::error::Exception>;
    let all: [Activation; 7] = [
        |x| nn::gelu(x),
        |x| nn::gelu_approximate(x),
        |x| nn::silu(x),
        |x| nn::relu(x),
        |x| mlx_rs::ops::softmax_axis(x, -1, None),
        |x| nn::log_softmax(x, -1),
        |x| nn::softplus(x),
    ];
    for (i, f) in all.iter().enumerate() {
        let used = gradients(&|inputs| Ok(f(&inputs[0])?), &[normal(&[5, 33], i as u64)], 1e-4);
        assert!(used > 1, "activation {i}");
    }
}

#[test]
fn the_cross_entropy_is_differentiated() {
    let labels = Array::from_slice(&[1, 4, 0, 2], &[4]);
    let loss = CrossEntropyBuilder::new().reduction(LossReduction::Mean).build().unwrap();
    let f = |inputs: &[Array]| -> Result<Array> { Ok(loss.apply(&inputs[0], &labels)?) };
    assert!(gradients(&f, &[normal(&[4, 10], 0)], 1e-4) > 2);
}

#[test]
fn attention_is_differentiated() {
    let f = |inputs: &[Array]| -> Result<Array> {
        let [q, k, v] = inputs else { unreachable!() };
        let mut rope = nn::RopeBuilder::new(8).build()?;
        let (q, k) = (rope.forward(q)?, rope.forward(k)?);
        Ok(mlx_rs::fast::scaled_dot_product_attention(&q, &k, v, 0.3, None, None)?)
    };
    gradients(&f, &[normal(&[1, 2, 5, 8], 0), normal(&[1, 2, 5, 8], 1), normal(&[1, 2, 5, 8], 2)], 1e-4);
}

#[test]
fn optimizers_update_alike() {
    fn updates(mut optimizer: impl Optimizer, inputs: &[Array]) -> Result<Vec<Array>> {
        let name: Rc<str> = "w".into();
        let mut w = inputs[0].clone();
        for gradient in &inputs[1..] {
            optimizer.update_single(&name, gradient, &mut w)?;
        }
        Ok(vec![w])
    }
    let inputs = [normal(&[24, 50], 0), normal(&[24, 50], 1), normal(&[24, 50], 2), normal(&[24, 50], 3)];
    let of = |f: &dyn Fn(&[Array]) -> Result<Vec<Array>>| nodes(&check(f, &inputs, 1e-5), "programs");
    assert!(of(&|inputs| updates(Sgd::new(0.1), inputs)) >= 6);
    assert!(of(&|inputs| updates(SgdBuilder::new(0.1).momentum(0.9).build().expect("momentum"), inputs)) >= 6);
    assert!(of(&|inputs| updates(Adam::new(0.1), inputs)) >= 12);
    assert!(of(&|inputs| updates(AdamW::new(0.1), inputs)) >= 12);
    assert!(of(&|inputs| updates(Lion::new(0.1), inputs)) >= 12);
    assert!(of(&|inputs| updates(RmsProp::new(0.1).expect("a rate"), inputs)) >= 12);
}

#[test]
fn half_floats_stay_close_to_single_precision() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let norm = mlx_rs::fast::rms_norm(&inputs[0], Some(&inputs[1]), 1e-5)?;
        let y = nn::silu(&norm)?.add(&inputs[0])?;
        Ok(vec![mlx_rs::ops::softmax_axis(&y, -1, true)?, y])
    };
    for (dtype, relative) in [(Dtype::Float16, 4e-3), (Dtype::Bfloat16, 3e-2)] {
        let cast = |array: &Array, dtype| array.as_dtype(dtype).expect("a float type");
        let halves = [normal(&[6, 96], 0), normal(&[96], 1)].map(|array| cast(&array, dtype));
        let (found, done) = compiled(&f, &halves, Passes::All).expect("it compiles");
        assert!(nodes(&done, "programs") > 3, "{done:?}");
        // Each op is rounded, a few times in a row.
        let expected = f(&halves.map(|array| cast(&array, Dtype::Float32))).expect("it runs");
        for (found, expected) in found.iter().zip(&expected) {
            assert_close(found, &cast(expected, dtype), relative);
        }
    }
}

//! Straight-through gradients of values, of trees, and of several results.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, LowRank, Nf4Array, Ste, ste};
use tacit_conformance::oracle::floats;
use tacit_core::transform::{grad, value_and_grad};
use tacit_core::{Error, Policy, Result, Tree, Value, implicit};

use crate::operands::normal;

/// Two masters and a table of integers.
#[derive(Tree, Clone)]
struct Layer<L = Array> {
    up: L,
    down: Vec<L>,
    table: L,
}

fn layer() -> Layer {
    let table = Array::from_slice(&[1, 2], &[2]);
    Layer { up: normal(1, &[64, 64]), down: vec![normal(2, &[32, 64])], table }
}

#[test]
fn a_tree_of_masters_is_quantized_leaf_by_leaf_and_gets_the_gradients_of_its_masters() {
    let _deny = Policy::Deny.scope();
    let x = normal(3, &[2, 64]);
    let loss = |quantize: bool| {
        let x = x.clone();
        move |layer: Layer| -> Result<Array> {
            let layer: Layer<Value> = if quantize {
                ste(&layer, |layer| -> Result<Layer<Value>> {
                    Ok(Layer {
                        up: Nf4Array::quantize(&layer.up, 64)?.into(),
                        down: vec![AffineArray::quantize(&layer.down[0], Affine { bits: 4, group: 64 })?.into()],
                        table: layer.table.clone().into(),
                    })
                })?
            } else {
                let Layer { up, down, table } = layer;
                Layer { up: up.into(), down: down.into_iter().map(Into::into).collect(), table: table.into() }
            };
            assert_eq!(layer.up.downcast::<Ste>().is_some(), quantize);
            assert!(layer.table.as_dense().is_some(), "integers pass as they are");
            implicit((&x, layer), |(x, layer)| x.matmul(layer.up.t())?.matmul(layer.down[0].t())?.sum(None))?.dense()
        }
    };
    let (value, quantized) = value_and_grad(loss(true)).call(layer()).expect("runs");
    let (plain_value, plain) = value_and_grad(loss(false)).call(layer()).expect("runs");
    assert!(!value.dense().expect("dense").eq_exact(plain_value.dense().expect("dense")).expect("evaluates"));
    for (quantized, plain) in [(&quantized.up, &plain.up), (&quantized.down[0], &plain.down[0])] {
        let (quantized, plain) = (quantized.array().expect("float"), plain.array().expect("float"));
        assert_eq!(quantized.shape(), plain.shape());
        let error = quantized.subtract(plain).and_then(|d| d.square()?.sum(None)).expect("builds").item_exact::<f32>();
        let size = plain.square().and_then(|d| d.sum(None)).expect("builds").item_exact::<f32>();
        // The gradient of one matrix sees the other quantized: near that of the plain layer, and not that.
        assert!(error > 0.0 && error < 0.1 * size, "{error} of {size}");
    }
}

#[test]
fn several_results_of_one_master_give_it_the_sum_of_their_gradients() {
    let master = normal(1, &[8, 64]);
    let loss = |master: Array| -> Result<Array> {
        let (coarse, fine) = ste(&master, |w| -> Result<(Value, Nf4Array)> {
            let coarse = ops::round(w, None)?;
            Ok((coarse.into(), Nf4Array::quantize(w, 64)?))
        })?;
        implicit((coarse, fine), |(coarse, fine)| {
            coarse.multiply(Array::from_f32(2.0))?.sum(None)?.add(fine.t().sum(None)?.multiply(Array::from_f32(3.0))?)
        })?
        .dense()
    };
    let _allow = Policy::Allow.scope();
    let gradient = grad(loss).call(&master).expect("runs");
    assert_eq!(floats(gradient.array().expect("float")).expect("floats"), [5.0; 8 * 64]);
}

#[test]
fn a_master_that_is_a_value_may_be_implicit_and_passes_the_gradient_on_to_its_float_children() {
    let (left, right) = (normal(1, &[32, 4]), normal(2, &[4, 64]));
    let product = |left: &Array| Value::from(LowRank::new(left, &right).expect("fits"));
    let loss = |w: Value| -> Result<Array> {
        let w = ste(&w, |w| Nf4Array::quantize(w, 64))?;
        implicit(w, |w| w.t().sum(None))?.dense()
    };
    {
        let _deny = Policy::Deny.scope();
        assert!(matches!(loss(product(&left)), Err(Error::MaterializationDenied { .. })), "the sum must be built");
    }
    let _allow = Policy::Allow.scope();
    let of_left = grad(|left: Array| loss(product(&left))).call(&left).expect("runs");
    // The sum of a product has at each row of its left factor the sums of the rows of the right one.
    let expected = right.sum_axis(1, false).expect("builds");
    let expected = floats(&ops::broadcast_to(&expected, &[32, 4]).expect("builds")).expect("floats");
    for (found, expected) in floats(of_left.array().expect("float")).expect("floats").iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
    let dense = ste(Value::from(normal(3, &[8, 64])), |w| Nf4Array::quantize(w, 64)).expect("quantizes");
    assert!(dense.downcast::<Ste>().is_some());
}

#[test]
fn results_of_another_structure_or_aval_are_refused() {
    let (first, second) = (normal(1, &[2, 64]), normal(2, &[2, 64]));
    let another = ste((&first, &second), |(a, _)| Ok::<_, Error>(vec![a.clone()])).map(drop);
    expect_test::expect![[r#"
        the function given to ste made another structure than that of its masters: tuple of 2 -> list of 1 at the root
        help: return one array for each master, in the structure of the masters"#]]
    .assert_eq(&another.expect_err("a list").to_string());
    let halves = |w: &Array| -> Result<(Array, Array)> { Ok((w.clone(), w.as_dtype(Dtype::Float16)?)) };
    expect_test::expect![[r#"
        the function given to ste made f16[2,64] of f32[2,64]
        help: return an array of the master's own shape and dtype"#]]
    .assert_eq(&ste(&first, halves).map(drop).expect_err("a half").to_string());
}

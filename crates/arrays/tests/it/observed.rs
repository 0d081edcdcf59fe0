//! Weights that record what they are multiplied with.

mod shared;

use expect_test::expect;
use mlx_rs::module::{Module, Param};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, nn, ops};
use tacit_arrays::{Observation, Observed};
use tacit_conformance::oracle::{floats, relative_error};
use tacit_core::transform::{grad, vmap};
use tacit_core::{Counters, Error, Policy, Result, Value, compile, implicit};

use crate::messages::{check, said_of};
use crate::operands::{affine, nf4, normal, normal_of};

fn gram(x: &Array) -> Array {
    let x = x.as_dtype(Dtype::Float32).expect("f32");
    let x = x.reshape(&[-1, x.dim(-1)]).expect("rows");
    x.t().matmul(&x).expect("multiplies")
}

#[track_caller]
fn close(found: &Array, expected: &Array) {
    let error = relative_error(found, expected).expect("floats");
    assert!(error <= 1e-5, "off by {error}");
}

/// Runs plain code on a weight, under `Policy::Deny`: what was seen; the result is that of the weight, and nothing is built.
#[track_caller]
fn seen(w: &Value, x: &Array, f: impl Fn(Array, Array) -> Result<Array>) -> Observation {
    let _deny = Policy::Deny.scope();
    let observed = Observed::new(w).expect("a weight");
    let (found, counters) = Counters::during(|| implicit((x, &observed), |(x, w)| f(x, w)));
    assert_eq!((counters.materialized, counters.materialized_bytes), (0, 0));
    let expected = implicit((x, w), |(x, w)| f(x, w)).expect("runs").dense().expect("dense");
    let found = found.expect("runs").dense().expect("dense");
    assert_eq!(floats(&found).expect("floats"), floats(&expected).expect("floats"));
    observed.finish().expect("a product")
}

fn weights(shape: &[i32]) -> [Value; 3] {
    let dense = normal(1, shape);
    [nf4(&dense, 32), affine(&dense, 32, 4), dense.into()]
}

#[test]
fn a_product_is_seen_from_either_side() {
    let x = normal(2, &[2, 5, 64]);
    for w in weights(&[32, 64]) {
        for f in [
            |x: Array, w: Array| Ok(x.matmul(w.t())?),
            |x: Array, w: Array| Ok(w.matmul(x.swap_axes(-1, -2)?)?),
            |x: Array, w: Array| Ok(ops::addmm(ops::ones::<f32>(&[32])?, x, w.t(), None, None)?),
            |x: Array, w: Array| Ok(x.matmul(w.multiply(Array::from_f32(0.5))?.t())?),
            |x: Array, w: Array| Ok(x.matmul(w.t())?.add(w.matmul(ops::zeros::<f32>(&[64, 1])?)?.sum(None)?)?),
        ] {
            let found = seen(&w, &x, f);
            close(found.gram().expect("products"), &gram(&x));
            assert!([10, 11].contains(&found.rows()[0]) && found.rows().len() == 1);
            let means = x.abs().and_then(|x| x.reshape(&[-1, 64])?.mean_axis(0, None)).expect("means");
            if found.rows() == [10] {
                close(&found.mean_magnitudes().expect("means"), &means);
            }
        }
    }
}

#[test]
fn one_vector_is_one_row() {
    let x = normal(2, &[64]);
    for w in weights(&[32, 64]) {
        for f in [|x: Array, w: Array| Ok(x.matmul(w.t())?), |x: Array, w: Array| Ok(w.matmul(x)?)] {
            let found = seen(&w, &x, f);
            close(found.gram().expect("products"), &gram(&x));
            assert_eq!(found.rows(), [1]);
        }
    }
}

#[test]
fn parts_that_keep_the_inputs_whole_are_seen() {
    let x = normal(2, &[6, 64]);
    for w in weights(&[32, 64]) {
        // Two layers in one weight, as of queries and keys.
        let halves =
            |x: Array, w: Array| Ok(x.matmul(w.try_index(..16)?.t())?.add(x.matmul(w.try_index(16..)?.t())?)?);
        let found = seen(&w, &x, halves);
        close(found.gram().expect("products"), &gram(&x).multiply(Array::from_f32(2.0)).expect("twice"));
        assert_eq!(found.rows(), [12]);
        let heads = seen(&w, &x, |x, w| Ok(x.matmul(w.reshape(&[4, 8, 64])?.swap_axes(1, 2)?)?));
        // Each of the four parts meets each row.
        close(heads.gram().expect("products"), &gram(&x).multiply(Array::from_f32(4.0)).expect("four times"));
        let more = seen(&w, &x, |x, w| Ok(x.matmul(w.expand_dims(0)?.swap_axes(1, 2)?)?));
        close(more.gram().expect("products"), &gram(&x));
        let part = |x: Array, w: Array| x.try_index((.., ..32))?.matmul(w.try_index((.., ..32))?.t());
        check(
            implicit((&x, Observed::new(&w).expect("a weight")), |(x, w)| part(x, w)),
            expect![[r#"
            a product with f32[32,32] is of a part of the inputs of an observed weight, or of a part of a stack
            help: leave the weight out of what is observed"#]],
        );
        let one = |x: Array, w: Array| x.matmul(w.try_index(1)?.t());
        let stack = Observed::new(normal(1, &[2, 8, 64])).expect("a weight");
        check(
            implicit((&x, stack), |(x, w)| one(x, w)),
            expect![[r#"
            a product with f32[64,8] is of a part of the inputs of an observed weight, or of a part of a stack
            help: leave the weight out of what is observed"#]],
        );
    }
}

#[test]
fn batches_add_up() {
    let observed = Observed::new(normal(1, &[32, 64])).expect("a weight");
    let batches = [normal(2, &[3, 64]), normal(3, &[2, 4, 64])];
    for x in &batches {
        let layer = |(x, w)| nn::Linear { weight: Param::new(w), bias: Param::new(None) }.forward(&x);
        implicit((x, &observed), layer).expect("runs");
    }
    let found = observed.finish().expect("products");
    let rows = ops::concatenate(&[batches[0].clone(), batches[1].reshape(&[8, 64]).expect("rows")], 0);
    let rows = rows.expect("rows");
    close(found.gram().expect("products"), &gram(&rows));
    assert_eq!(found.rows(), [11]);
    let [first, second] = batches.each_ref().map(|x| Observation::from_inputs(x).expect("finite"));
    close(first.plus(&second).expect("of one shape").gram().expect("products"), found.gram().expect("products"));
}

#[test]
fn half_floats_are_summed_in_f32() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        // The sum of the squares is beyond f16.
        let x = normal_of(dtype, 2, &[40, 64]).multiply(Array::from_f32(100.0).as_dtype(dtype).expect("half"));
        let x = x.expect("larger");
        let w = normal_of(dtype, 1, &[32, 64]).into();
        close(seen(&w, &x, |x, w| Ok(x.matmul(w.t())?)).gram().expect("products"), &gram(&x));
    }
}

/// What is summed is what was multiplied, and no factor of the sum that the product is in.
#[test]
fn sums_of_half_floats_are_seen_on_either_side() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        let [x, c, w] =
            [(2, [10, 64]), (3, [32, 10]), (1, [32, 64])].map(|(seed, shape)| normal_of(dtype, seed, &shape));
        for w in [nf4(&w, 32), affine(&w, 32, 4), w.into()] {
            let left = seen(&w, &x, |x, w| Ok(ops::addmm(&c, w, x.t(), 0.5, -2.0)?));
            let right = seen(&w, &x, |x, w| Ok(ops::addmm(c.t(), x, w.t(), 0.5, -2.0)?));
            for found in [left, right] {
                assert_eq!(found.rows(), [10]);
                close(found.gram().expect("products"), &gram(&x));
            }
        }
    }
}

#[test]
fn each_expert_has_sums_of_its_own() {
    let x = normal(2, &[5, 2, 64]);
    let chosen = Array::from_slice(&[2u32, 0, 2, 3, 0], &[5]);
    for w in weights(&[4, 32, 64]) {
        let found = seen(&w, &x, |x, w| Ok(ops::gather_mm(x, w.swap_axes(1, 2)?, None, &chosen, None)?));
        assert_eq!(found.rows(), [4, 0, 4, 2]);
        assert_eq!(found.gram().expect("products").shape(), [4, 64, 64]);
        for (expert, own) in [(0, &[1u32, 4][..]), (2, &[0, 2]), (3, &[3])] {
            let own = x.take_axis(Array::from_slice(own, &[own.len() as i32]), 0).expect("taken");
            let found = found.gram().expect("products").take_axis(Array::from_int(expert), 0).expect("taken");
            close(&found, &gram(&own));
        }
        let batched = seen(&w, &normal(3, &[4, 3, 64]), |x, w| Ok(x.matmul(w.swap_axes(1, 2)?)?));
        assert_eq!(batched.rows(), [3; 4]);
        let first = normal(3, &[4, 3, 64]).take_axis(Array::from_int(3), 0).expect("taken");
        close(&batched.gram().expect("products").take_axis(Array::from_int(3), 0).expect("taken"), &gram(&first));
        let squares = normal(3, &[4, 3, 64]).square().and_then(|x| x.mean_axes(&[0, 1], None)).expect("means");
        close(&batched.mean_squares().expect("means"), &squares);
        let shared = seen(&w, &normal(3, &[3, 64]), |x, w| Ok(x.matmul(w.swap_axes(1, 2)?)?));
        close(
            &shared.gram().expect("products").take_axis(Array::from_int(1), 0).expect("taken"),
            &gram(&normal(3, &[3, 64])),
        );
    }
}

#[test]
fn off_the_record_it_is_the_weight() {
    let _deny = Policy::Deny.scope();
    for w in weights(&[32, 64]) {
        let observed = Observed::new(&w).expect("a weight");
        let rows = Array::from_slice(&[3u32, 1], &[2]);
        let lookup = |w: Array| w.take_axis(&rows, 0);
        let [found, own] = [observed.clone().into(), w.clone()].map(|w: Value| implicit(w, lookup).expect("runs"));
        assert_eq!(
            found.dense().map(|x| floats(&x).expect("floats")).ok(),
            own.dense().map(|x| floats(&x).expect("floats")).ok()
        );
        check(
            observed.finish(),
            expect![[r#"
            the weight f32[32,64] was not multiplied while it was observed
            help: run the model on inputs that reach it, or leave it out"#]],
        );
        // The recording has ended: what comes now is not seen, and may be traced.
        let x = normal(2, &[4, 64]);
        let mut product = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
        product.call((&x, &observed)).expect("runs");
        check(
            observed.finish(),
            expect![[r#"
            the recording of f32[32,64] has ended
            help: finish a recording once, and keep what it gives"#]],
        );
    }
    let dense = Observed::new(normal(1, &[8, 8])).expect("a weight");
    let sums = implicit(&dense, |w| w.add(&w)?.cumsum(0, None, None)).expect("runs");
    close(
        &sums.dense().expect("dense"),
        &normal(1, &[8, 8]).add(normal(1, &[8, 8])).and_then(|x| x.cumsum(0, None, None)).expect("sums"),
    );
}

#[test]
fn what_cannot_be_summed_is_an_error() {
    let (x, w) = (normal(2, &[4, 64]), normal(1, &[32, 64]));
    let observed = Observed::new(&w).expect("a weight");
    let product = |(x, w): (Array, Array)| x.matmul(w.t())?.sum(None);
    let said = [
        said_of(compile(product).call((&x, &observed))),
        said_of(vmap(0, 0, |x: Array| implicit((x, &observed), |(x, w)| w.matmul(x))).call(&x)),
        said_of(grad(product).call((&x, &observed))),
        said_of(implicit(nf4(&w, 32), |outer| {
            implicit((outer.sum_axis(0, true)?, &observed), |(x, w)| x.matmul(w.t()))?.dense()
        })),
        said_of(observed.finish()),
    ];
    expect![[r#"
        an observed weight is multiplied inside a transformation, where nothing can be summed
        help: observe plain calls of the model, outside of compile, vmap and gradients
        an observed weight is multiplied inside a transformation, where nothing can be summed
        help: observe plain calls of the model, outside of compile, vmap and gradients
        an observed weight is multiplied inside a transformation, where nothing can be summed
        help: observe plain calls of the model, outside of compile, vmap and gradients
        an observed weight is multiplied inside a transformation, where nothing can be summed
        help: observe plain calls of the model, outside of compile, vmap and gradients
        the weight f32[32,64] was not multiplied while it was observed
        help: run the model on inputs that reach it, or leave it out
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn bad_weights_and_activations() {
    check(
        Observed::new(normal(1, &[8])),
        expect![[r#"
        the observed weight is f32[8], which is neither a matrix nor a stack of them
        help: observe a weight of two or three axes"#]],
    );
    check(
        Observed::new(Array::from_slice(&[1i32, 2], &[1, 2])),
        expect![[r#"
        the observed weight is i32[1,2], which is not float
        help: give an f32, f16 or bf16 array"#]],
    );
    for special in [f32::NAN, f32::INFINITY, 1e30] {
        let observed = Observed::new(normal(1, &[8, 2])).expect("a weight");
        let x = Array::from_slice(&[1.0, special], &[1, 2]);
        implicit((&x, &observed), |(x, w)| x.matmul(w.t())).expect("runs");
        check(
            observed.finish(),
            expect![[r#"
            the activations have an element that is NaN or infinite, or squares whose sum is beyond f32
            help: look for the input that makes it, such as a position that is masked whole"#]],
        );
    }
    let said = [
        said_of(Observation::from_inputs(&Array::from_slice(&[1i32], &[1, 1]))),
        said_of(Observation::from_inputs(&Array::from_f32(1.0))),
        said_of(Observation::from_inputs(&normal(1, &[0, 8]))),
    ];
    expect![[r#"
        an activation is i32[1,1], which is not float
        help: give an f32, f16 or bf16 array
        the activations are f32[], which has no axis of inputs
        help: give activations with the inputs along the last axis
        an activation is f32[0,8], which has no elements
        help: keep an empty array dense
    "#]]
    .assert_eq(&said.concat());
    let [a, b] = [2, 3].map(|k| Observation::from_inputs(&normal(1, &[4, k])).expect("finite"));
    check(
        a.plus(&b),
        expect![[r#"
        products f32[2,2] and products f32[3,3] are of different inputs
        help: add what was seen of one weight"#]],
    );
    let observed = Observed::new(normal(1, &[8, 8])).expect("a weight");
    implicit((normal(2, &[3, 8]), &observed), |(x, w)| x.matmul(w)).expect("runs");
    check(
        observed.finish(),
        expect![[r#"
        the weight f32[8,8] was multiplied along axis 0, and its inputs lie along the last
        help: observe a weight whose products sum over its last axis, as `x W^T` does, or store its transpose"#]],
    );
}

/// Rows that cannot be computed are not met: what was seen before stays, and what is seen later is added to it.
#[test]
fn rows_that_fail_are_left_out() -> Result<()> {
    let first = Observed::new(normal(1, &[32, 64]))?;
    let both = [first.beside(normal(2, &[16, 64]))?, first];
    let nan = normal(3, &[4, 64]).multiply(Array::from_f32(f32::NAN))?;
    let (a, failed, b) = (normal(4, &[3, 64]), nf4(&nan, 64).dense()?, normal(5, &[5, 64]));
    for (x, fails) in [(&a, false), (&failed, true), (&b, false)] {
        for observed in &both {
            let met = implicit((x, observed), |(x, w)| x.matmul(w.t()));
            let said = met.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(said.contains("kernel Nf4Quantize failed"), fails, "{said}");
        }
    }
    for observed in both {
        let seen = observed.finish()?;
        assert_eq!(seen.rows(), [8]);
        close(seen.gram()?, &gram(&ops::concatenate(&[&a, &b], 0)?));
    }
    Ok(())
}

#[test]
fn an_expert_of_nan_leaves_the_others_alone() {
    let observed = Observed::new(normal(1, &[2, 4, 2])).expect("a weight");
    let x = Array::from_slice(&[f32::NAN, 1.0, 2.0, 3.0], &[2, 1, 2]);
    let chosen = Array::from_slice(&[0u32, 1], &[2]);
    implicit((x, &observed), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &chosen, None)).expect("runs");
    let Err(Error::Invalid { .. }) = observed.finish() else { panic!("it should fail") };
}

/// MLX repeats the stack for a batch.
#[test]
fn a_batch_meets_each_matrix_of_a_stack() {
    let w: Value = normal(1, &[4, 32, 64]).into();
    for batch in [1, 2] {
        let x = normal(3, &[batch, 4, 3, 64]);
        let found = seen(&w, &x, |x, w| Ok(x.matmul(w.swap_axes(1, 2)?)?));
        assert_eq!(found.rows(), [3 * batch as u64; 4]);
        let own = x.take_axis(Array::from_int(2), 1).expect("taken");
        close(&found.gram().expect("products").take_axis(Array::from_int(2), 0).expect("taken"), &gram(&own));
    }
}

#[test]
fn a_batch_without_rows_is_no_error() {
    let observed = Observed::new(normal(1, &[4, 32, 64])).expect("a weight");
    for x in [normal(2, &[4, 0, 64]), normal(2, &[4, 3, 64])] {
        implicit((x, &observed), |(x, w)| x.matmul(w.swap_axes(1, 2)?)).expect("runs");
    }
    assert_eq!(observed.finish().expect("a product").rows(), [3; 4]);

    let observed = Observed::new(normal(1, &[32, 64])).expect("a weight");
    for x in [normal(2, &[0, 64]), normal(2, &[2, 0, 64]), normal(2, &[3, 64])] {
        implicit((x, &observed), |(x, w)| x.matmul(w.t())).expect("runs");
    }
    assert_eq!(observed.finish().expect("a product").rows(), [3]);

    let observed = Observed::new(normal(1, &[4, 32, 64])).expect("a weight");
    for count in [0, 2] {
        let (x, chosen) = (normal(2, &[count, 1, 64]), ops::zeros::<u32>(&[count]).expect("zeros"));
        implicit((x, &observed), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &chosen, None)).expect("runs");
    }
    assert_eq!(observed.finish().expect("a product").rows(), [2, 0, 0, 0]);
}

/// Of whole numbers both sums are exact.
#[test]
fn squares_are_those_of_all_products() {
    let x = Array::from_iter((0..640).map(|i| (i * 37 % 11 - 5) as f32), &[5, 2, 64]);
    let chosen = Array::from_slice(&[2u32, 0, 2, 3, 0], &[5]);
    let first = Observed::of_squares(normal(1, &[4, 32, 64])).expect("a weight");
    let second = first.beside(normal(2, &[4, 32, 64])).expect("a weight");
    let all = Observed::new(normal(1, &[4, 32, 64])).expect("a weight");
    let [squares, beside, all] = [first, second, all].map(|observed| {
        for x in [&x, &x.square().expect("squares")] {
            implicit((x, &observed), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &chosen, None))
                .expect("runs");
        }
        observed.finish().expect("products")
    });
    let means = |seen: &Observation| {
        let rounding = seen.rounding_unmet().expect("sums");
        [seen.mean_squares(), seen.mean_magnitudes(), rounding.mean_squares()]
            .map(|mean| floats(&mean.expect("means")).expect("floats"))
    };
    for seen in [&squares, &beside] {
        assert_eq!((seen.rows(), means(seen)), (all.rows(), means(&all)));
    }
    check(
        squares.gram(),
        expect![[r#"
        of what was seen only the squares f32[4,64] were recorded
        help: observe the weight by `Observed::new`, or the model by `Model::observe`"#]],
    );
    check(
        all.plus(&squares),
        expect![[r#"
        products f32[4,64,64] and squares f32[4,64] are of different inputs
        help: add what was seen of one weight"#]],
    );
}

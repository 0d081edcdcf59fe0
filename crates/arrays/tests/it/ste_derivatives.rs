//! Second operands that learn, tangents, derivatives of derivatives and mapped masters, through straight-through
//! weights: each against the dense function of `master + stop_gradient(quantized - master)`.

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Constant, Lora, LowRank, Nf4Array, TernaryArray, ste};
use tacit_conformance::oracle::{floats, relative_error};
use tacit_core::transform::{intercept, jvp, vmap};
use tacit_core::tree::Gradient;
use tacit_core::{Error, Policy, Result, Value, implicit};

use crate::operands::{normal, normal_of};

type Quantizer = fn(&Array) -> Result<Value>;
type Plain = fn(&[Array]) -> Result<Array>;
type Scalar = Rc<dyn Fn(&[Array]) -> Result<Array, Exception>>;

fn lora(w: &Array) -> Result<Value> {
    let (out, inputs) = (w.dim(0), w.dim(1));
    Ok(Lora::new(Nf4Array::quantize(w, 64)?, normal(71, &[2, inputs]), normal(72, &[out, 2]), 1.0)?.into())
}

fn low_rank(w: &Array) -> Result<Value> {
    Ok(LowRank::new(w.try_index((.., ..2))?, w.try_index((..2, ..))?)?.into())
}

/// Whose elementwise functions are implicit again.
fn mean(w: &Array) -> Result<Value> {
    Ok(Constant::full(w.shape(), &w.square()?.mean(None)?)?.into())
}

const QUANTIZERS: [(&str, Quantizer); 7] = [
    ("nf4", |w| Ok(Nf4Array::quantize(w, 64)?.into())),
    ("affine", |w| Ok(AffineArray::quantize(w, Affine { bits: 2, group: 32 })?.into())),
    ("ternary", |w| Ok(TernaryArray::quantize(w, 64)?.into())),
    ("lora", lora),
    ("low rank", low_rank),
    ("mean", mean),
    ("nf4 behind another", |w| ste(w, |w| Nf4Array::quantize(w, 64))),
];

/// A loss whose second derivative is not zero and whose gradient tells the elements apart.
fn loss(y: &Array) -> Result<Array> {
    let y = y.as_dtype(Dtype::Float32)?;
    let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
    let weights = Array::from_slice(&weights, y.shape());
    Ok(ops::tanh(y.multiply(Array::from_f32(0.1))?)?.multiply(weights)?.sum(None)?)
}

/// The loss of `f` of the operands, of which those from `masters` on are quantized straight through; and of its dense
/// reference.
fn sides(quantize: Quantizer, args: &[Array], masters: usize, f: Plain) -> [Scalar; 2] {
    let quantized: Vec<Array> = {
        let _allow = Policy::Allow.scope();
        args[masters..].iter().map(|master| quantize(master)?.dense()).collect::<Result<_>>().expect("quantizes")
    };
    let straight = move |arrays: &[Array]| {
        let operands = arrays
            .iter()
            .enumerate()
            .map(|(i, array)| if i < masters { Ok(array.into()) } else { ste(array, quantize) })
            .collect::<Result<Vec<Value>>>()?;
        let made = intercept(&operands, |arrays| Ok(vec![loss(&f(&arrays)?)?]))?;
        Ok(made[0].dense()?)
    };
    let dense = move |arrays: &[Array]| {
        let mut operands = arrays.to_vec();
        for (master, quantized) in operands[masters..].iter_mut().zip(&quantized) {
            *master = master.add(mlx_rs::stop_gradient(quantized.subtract(&*master)?)?)?;
        }
        Ok(loss(&f(&operands)?)?)
    };
    [Rc::new(straight), Rc::new(dense)]
}

fn derivatives(f: &Scalar, args: &[Array]) -> Vec<(String, Array)> {
    let argnums: Vec<i32> = (0..args.len() as i32).collect();
    let gradient = {
        let f = Rc::clone(f);
        move |arrays: &[Array]| {
            let f = Rc::clone(&f);
            let one = move |arrays: &[Array]| Ok::<_, Exception>(vec![f(arrays)?]);
            transforms::grad_with_argnums(one, argnums.as_slice())(arrays)
        }
    };
    let mut found: Vec<(String, Array)> = Vec::new();
    for (i, array) in gradient(args).expect("a gradient").into_iter().enumerate() {
        found.push((format!("gradient {i}"), array));
    }
    for direction in 0..args.len() {
        let tangents: Vec<Array> = args
            .iter()
            .enumerate()
            .map(|(i, arg)| {
                if i == direction {
                    normal_of(arg.dtype(), 50, arg.shape())
                } else {
                    ops::zeros_like(arg).expect("zeros")
                }
            })
            .collect();
        let tangents: Vec<Gradient> = tangents.into_iter().map(Gradient::Dense).collect();
        let value = |arrays: Vec<Array>| Ok::<_, Error>(f(&arrays)?);
        let (_, along) = jvp(args, tangents.clone(), value).expect("a jvp");
        found.push((format!("jvp along {direction}"), along.dense().expect("dense")));
        let slopes = |arrays: Vec<Array>| Ok::<_, Error>(gradient(&arrays)?);
        let (_, along) = jvp(args, tangents, slopes).expect("a product with the Hessian");
        for (i, value) in along.into_iter().enumerate() {
            found.push((format!("Hessian of {i} along {direction}"), value.dense().expect("dense")));
        }
    }
    found
}

#[track_caller]
fn check(policy: Policy, tolerance: f64, quantizer: (&str, Quantizer), args: &[Array], masters: usize, f: Plain) {
    let [straight, dense] = sides(quantizer.1, args, masters, f);
    let _guard = policy.scope();
    for ((name, found), (_, expected)) in derivatives(&straight, args).iter().zip(derivatives(&dense, args)) {
        let error = relative_error(found, &expected).expect("floats");
        let least = floats(&expected).expect("floats").iter().fold(0f32, |most, x| most.max(x.abs()));
        let small = floats(found).expect("floats").iter().all(|x| x.abs() < 1e-6) && least < 1e-6;
        assert!(error <= tolerance || small, "{}, {name}: {error}", quantizer.0);
    }
}

#[test]
fn a_second_operand_that_learns() {
    let w = normal(2, &[8, 64]);
    let scalar = Array::from_f32(0.7);
    let (row, column) = (normal(3, &[64]), normal(4, &[8, 1]));
    let cases: [(&Array, Plain); 7] = [
        (&scalar, |a| Ok(a[0].matmul(a[2].multiply(&a[1])?.t())?)),
        (&scalar, |a| Ok(a[0].matmul(a[2].divide(&a[1])?.t())?)),
        (&row, |a| Ok(a[0].matmul(a[2].multiply(&a[1])?.t())?)),
        (&column, |a| Ok(a[0].matmul(a[1].multiply(&a[2])?.t())?)),
        (&row, |a| Ok(a[0].matmul(a[2].add(&a[1])?.t())?)),
        (&column, |a| Ok(a[0].matmul(a[2].subtract(&a[1])?.t())?)),
        (&row, |a| Ok(ops::concatenate(&[&a[2], &a[1].reshape(&[1, 64])?], 0)?.matmul(a[0].t())?)),
    ];
    for quantizer in QUANTIZERS {
        for (other, f) in cases {
            check(Policy::Allow, 2e-4, quantizer, &[normal(1, &[3, 64]), other.clone(), w.clone()], 2, f);
        }
    }
}

#[test]
fn a_scalar_that_learns_beside_a_half_master() {
    // The product stays fused.
    let (x, w) = (normal_of(Dtype::Float16, 1, &[3, 64]), normal_of(Dtype::Float16, 2, &[8, 64]));
    let s = Array::from_f32(0.5).as_dtype(Dtype::Float16).expect("f16");
    for quantizer in &QUANTIZERS[..3] {
        let [straight, dense] =
            sides(quantizer.1, &[x.clone(), s.clone(), w.clone()], 2, |a| Ok(a[0].matmul(a[2].multiply(&a[1])?.t())?));
        let gradient = |f: Scalar| {
            let one = move |arrays: &[Array]| Ok::<_, Exception>(vec![f(arrays)?]);
            transforms::grad_with_argnums(one, &[0, 1, 2][..])(&[x.clone(), s.clone(), w.clone()]).expect("a gradient")
        };
        let _deny = Policy::Deny.scope();
        for (found, expected) in gradient(straight).iter().zip(gradient(dense)) {
            let error = relative_error(found, &expected).expect("floats");
            assert!(error < 2e-2, "{}: {error}", quantizer.0);
        }
    }
}

#[test]
fn tangents_and_hessians_of_products() {
    let (x, w) = (normal(1, &[3, 64]), normal(2, &[8, 64]));
    for quantizer in QUANTIZERS {
        check(Policy::Allow, 2e-4, quantizer, &[x.clone(), w.clone()], 1, |a| Ok(a[0].matmul(a[1].t())?));
        check(Policy::Allow, 2e-4, quantizer, &[normal(1, &[64, 3]), w.clone()], 1, |a| Ok(a[1].matmul(&a[0])?));
        check(Policy::Allow, 2e-4, quantizer, &[normal(5, &[8]), x.clone(), w.clone()], 2, |a| {
            Ok(ops::addmm(&a[0], &a[1], a[2].t(), 0.5, -2.0)?)
        });
    }
}

#[test]
fn tangents_of_rows() {
    let (w, tangent) = (normal(2, &[8, 64]), normal(3, &[8, 64]));
    for (name, quantize) in QUANTIZERS {
        let rows = |a: &[Array]| Ok(a[0].take_axis(Array::from_slice(&[3i32, 0, 3], &[3]), 0)?);
        let [straight, dense] = sides(quantize, std::slice::from_ref(&w), 0, rows);
        let along = |f: &Scalar| {
            let value = |arrays: &[Array]| Ok(vec![f(arrays)?]);
            let (w, tangent) = (std::slice::from_ref(&w), std::slice::from_ref(&tangent));
            transforms::fallible_jvp(value, w, tangent).expect("a jvp").1.swap_remove(0)
        };
        let _allow = Policy::Allow.scope();
        assert!(relative_error(&along(&straight), &along(&dense)).expect("floats") < 1e-4, "{name}");
    }
}

#[test]
fn tangents_and_hessians_of_what_the_type_has_no_handler_for() {
    for quantizer in QUANTIZERS {
        let masters = [normal(2, &[8, 64]), normal(3, &[8, 64])];
        check(Policy::Allow, 2e-4, quantizer, &masters[..1], 0, |a| Ok(a[0].square()?));
        check(Policy::Allow, 2e-4, quantizer, &masters[..1], 0, |a| Ok(a[0].exp()?));
        check(Policy::Allow, 2e-4, quantizer, &masters, 0, |a| Ok(a[0].multiply(&a[1])?));
        check(Policy::Allow, 2e-4, quantizer, &masters, 0, |a| Ok(a[0].matmul(a[1].t())?));
    }
}

#[test]
fn tangents_and_hessians_of_two_layers() {
    let args = [normal(4, &[3, 64]), normal(2, &[64, 64]), normal(3, &[8, 64])];
    for quantizer in &QUANTIZERS[..3] {
        check(Policy::Allow, 2e-4, *quantizer, &args, 1, |a| Ok(ops::tanh(a[0].matmul(a[1].t())?)?.matmul(a[2].t())?));
    }
}

/// The product of each example with its own master.
fn each(quantize: Quantizer, x: &Array, masters: &Array) -> Result<Value> {
    let f = move |(x, master): (Array, Array)| -> Result<Array> {
        let w = ste(&master, quantize)?;
        implicit((x, w), |(x, w)| x.matmul(w.t()))?.dense()
    };
    vmap([None, Some(0)], 0, f).call((x, masters))
}

#[test]
fn each_master_of_a_batch_is_quantized_by_itself() {
    let _allow = Policy::Allow.scope();
    let (x, masters) = (normal(1, &[3, 64]), normal(2, &[4, 8, 64]));
    for (name, quantize) in QUANTIZERS {
        let found = each(quantize, &x, &masters).and_then(|y| y.dense()).expect(name);
        let expected: Vec<Array> = (0..4)
            .map(|i| {
                let w =
                    quantize(&masters.try_index(i).expect("an example")).and_then(|w| w.dense()).expect("quantizes");
                x.matmul(w.t()).expect("a product")
            })
            .collect();
        let expected = ops::stack(&expected, 0).expect("stacks");
        assert!(relative_error(&found, &expected).expect("floats") < 1e-5, "{name}");
        // The gradient is straight through for each.
        let x = x.clone();
        let sum = move |masters: &Array| each(quantize, &x, masters)?.dense()?.sum(None);
        let gradient = transforms::grad(sum)(&masters).expect("a gradient");
        let ones = ops::ones::<f32>(&[8, 3]).expect("ones").matmul(normal(1, &[3, 64])).expect("a product");
        let ones = ops::broadcast_to(&ones, &[4, 8, 64]).expect("for each");
        assert!(relative_error(&gradient, &ones).expect("floats") < 1e-5, "{name}");
    }
}

#[test]
fn a_mapped_gradient_is_that_of_each_example() {
    let _allow = Policy::Allow.scope();
    for (name, quantize) in QUANTIZERS {
        let gradient = move |(x, master): (Array, Array)| -> Result<Array> {
            let x = x.clone();
            let sum = move |master: &Array| {
                let w = ste(master, quantize)?;
                implicit((&x, w), |(x, w)| x.matmul(w.t()))?.dense()?.square()?.sum(None)
            };
            Ok(transforms::grad(sum)(&master)?)
        };
        let (x, masters) = (normal(1, &[3, 64]), normal(2, &[4, 8, 64]));
        let found = vmap([None, Some(0)], 0, gradient).call((&x, &masters)).and_then(|g| g.dense()).expect(name);
        let expected: Vec<Array> =
            (0..4).map(|i| gradient((x.clone(), masters.try_index(i).expect("one"))).expect(name)).collect();
        let expected = ops::stack(&expected, 0).expect("stacks");
        assert!(relative_error(&found, &expected).expect("floats") < 1e-5, "{name}");
    }
}

#[test]
fn a_mapped_master_of_a_nan_is_refused_as_any_other() {
    let _allow = Policy::Allow.scope();
    // In blocks that end with an example, and in such that do not.
    for shape in [[2, 8, 64], [2, 3, 5]] {
        let mut numbers = vec![1f32; shape.iter().product::<i32>() as usize];
        numbers[7] = f32::NAN;
        let masters = Array::from_slice(&numbers, &shape);
        let quantize: Quantizer = |w| Ok(Nf4Array::quantize(w, 64)?.into());
        let x = normal(1, &[3, shape[2]]);
        let y = each(quantize, &x, &masters).and_then(|y| y.dense()).expect("is lazy");
        let error = y.eval().expect_err("a NaN").to_string();
        assert!(error.contains("Nf4Quantize"), "{error}");
    }
}

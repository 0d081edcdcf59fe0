//! `FullySharded` against the whole array, with a batch for each rank.

use std::rc::Rc;

use mlx_rs::module::Module;
use mlx_rs::optimizers::{AdamW, Optimizer};
use mlx_rs::{Array, Dtype, nn, random, transforms};
use tacit_arrays::format::{Affine, Nf4, Quantizer};
use tacit_arrays::{Lora, Nf4Array, Prepared};
use tacit_core::{ImplicitArray, Policy, Result, Value, compile, implicit};
use tacit_distributed::{FullyShard, FullySharded, Group};
use tacit_nn::{Model, ParameterFilter};

use crate::case::Case;

pub(crate) const CASES: &[Case] = &[
    Case::new("products", products),
    Case::new("parts", parts),
    Case::new("traffic", traffic),
    Case::new("training", training),
];

fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers")
}

/// Weights `[12, 64]`, dense and stored, with what is trained of them.
fn weights() -> Result<Vec<Value>> {
    let x = normal(1, &[12, 64]);
    let nf4 = Nf4 { block: 64, double: true };
    let lora = Lora::new(nf4.quantize(&x)?, normal(2, &[3, 64]), normal(3, &[12, 3]), 2.0)?;
    let affine = Affine { bits: 4, group: 32 }.quantize(&x)?;
    let half = x.as_dtype(Dtype::Bfloat16)?.as_dtype(Dtype::Float32)?;
    Ok(vec![
        half.into(),
        nf4.quantize(&x)?,
        affine,
        lora.into(),
        Prepared::new(&x, Affine { bits: 8, group: 32 })?.into(),
    ])
}

/// A product on this rank's batch: its value, and the gradients of the batch and, if `all`, of the float leaves of the weight.
fn product(x: &Array, w: &Value, all: bool) -> Result<(Array, Vec<Array>)> {
    let (leaves, def) = tacit_core::tree::flatten(w, tacit_core::tree::Open::Fully)?;
    let leaves: Vec<Array> = leaves.iter().map(Value::dense).collect::<Result<_>>()?;
    let float: Vec<usize> = (0..leaves.len()).filter(|&at| all && leaves[at].dtype().is_float()).collect();
    let mut args = vec![x.clone()];
    args.extend(float.iter().map(|&at| leaves[at].clone()));
    let loss = |args: &[Array]| {
        let mut all: Vec<Value> = leaves.iter().map(Value::from).collect();
        for (&at, leaf) in float.iter().zip(&args[1..]) {
            all[at] = leaf.into();
        }
        let w: Value = tacit_core::tree::unflatten(&def, all)?;
        let y = implicit((&args[0], w), |(x, w)| x.matmul(w.t()))?.dense()?;
        Ok(vec![y.multiply(&y)?.sum(None)?, y])
    };
    let loss = |args: &[Array]| {
        loss(args).map_err(|error: tacit_core::Error| mlx_rs::error::Exception::custom(error.to_string()))
    };
    let argnums: Vec<i32> = (0..args.len() as i32).collect();
    let (mut made, gradients) = transforms::value_and_grad_with_argnums(loss, &argnums[..])(&args)?;
    Ok((made.swap_remove(1), gradients))
}

/// Values and gradients, under a policy that lets nothing be built.
fn products(group: &Group) -> Result<()> {
    let x = normal(10 + group.rank() as u64, &[3, 64]);
    for whole in weights()? {
        let split = Value::from(FullySharded::new(&whole, group)?);
        let _allow = Policy::Allow.scope();
        let (expected, expected_gradients) = product(&x, &whole, true)?;
        {
            let _deny = Policy::Deny.scope();
            let (found, gradients) = product(&x, &split, false)?;
            close(&found, &expected, 1e-5);
            close(&gradients[0], &expected_gradients[0], 1e-4);
        }
        let (found, gradients) = product(&x, &split, true)?;
        close(&found, &expected, 1e-5);
        close(&gradients[0], &expected_gradients[0], 1e-4);
        for (found, own) in gradients.iter().zip(&expected_gradients).skip(1) {
            // The sum over the ranks' batches, of which each has its part.
            let sum = group.all_sum(own)?.reshape(&[-1])?;
            let (length, from) = (found.size(), found.size() * group.rank());
            let of = |at: usize| if at < sum.size() { sum.as_slice::<f32>()[at] } else { 0.0 };
            sum.eval()?;
            let expected: Vec<f32> = (from..from + length).map(of).collect();
            close(found, &Array::from_slice(&expected, &[length as i32]), 1e-4);
        }
        let mut compiled = compile(|(x, w): (Array, Array)| x.matmul(w.t()));
        for _ in 0..2 {
            close(&compiled.call((&x, split.clone()))?.dense()?, &expected, 1e-5);
        }
    }
    Ok(())
}

fn close(found: &Array, expected: &Array, bound: f32) {
    assert_eq!(found.shape(), expected.shape());
    let difference = found.subtract(expected).and_then(|it| it.abs()?.max(None)).expect("subtracts");
    let most = expected.abs().and_then(|it| it.max(None)).expect("has a maximum").item_exact::<f32>().max(1.0);
    assert!(difference.item_exact::<f32>() <= bound * most, "{found} is not {expected}");
}

/// Each rank holds a part, and all of them the whole, bit for bit, whatever the number of elements is.
fn parts(group: &Group) -> Result<()> {
    for shape in [&[7][..], &[1], &[3, 5], &[4, 64]] {
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Uint8, Dtype::Uint32, Dtype::Int32] {
            let whole = normal(4, shape).multiply(Array::from_f32(50.0))?.abs()?.as_dtype(dtype)?;
            let split = FullySharded::new(&whole, group)?;
            let count = whole.size().div_ceil(group.size());
            assert_eq!(split.local().dense()?.shape(), [count as i32]);
            let gathered = split.gathered()?.dense()?;
            assert!(gathered.eq(&whole)?.all(None)?.item_exact::<bool>(), "{whole} became {gathered}");
        }
    }
    for whole in weights()? {
        let split = FullySharded::new(&whole, group)?;
        assert!(split.nbytes() < whole.nbytes() / group.size() + 64, "{} of {}", split.nbytes(), whole.nbytes());
    }
    Ok(())
}

/// A weight in 4 bits travels in 4 bits.
fn traffic(group: &Group) -> Result<()> {
    let whole = Nf4Array::quantize(&normal(1, &[64, 256]), 64)?;
    let bytes = whole.nbytes();
    let split = FullySharded::new(whole, group)?;
    let x = normal(5, &[2, 256]);
    let before = group.traffic();
    implicit((&x, split), |(x, w)| x.matmul(w.t()))?.dense()?.eval()?;
    let sent = group.traffic().bytes - before.bytes;
    assert_eq!(sent as usize, bytes / group.size(), "each rank gives its part of {bytes} bytes once");
    Ok(())
}

/// The same model at each call and on each rank.
fn model() -> Result<Model<nn::Sequential>> {
    let layers =
        nn::Sequential::new().append(nn::Linear::new(16, 33)?).append(nn::Relu).append(nn::Linear::new(33, 4)?);
    let mut model = Model::new(layers)?;
    let leaves = model.leaves(&ParameterFilter::All).into_iter().zip(60..);
    let leaves: Vec<_> = leaves.map(|((path, array), seed)| (path, normal(seed, array.shape()))).collect();
    model.set_leaves(leaves)?;
    Ok(model)
}

fn loss(model: &mut Model<nn::Sequential>, (x, y): (Array, Array)) -> Result<Array> {
    Ok(model.forward(&x)?.subtract(y)?.square()?.mean(None)?)
}

/// Steps on parts, each rank with its share of the batch, are the steps of one process on all of it.
fn training(group: &Group) -> Result<()> {
    let size = group.size() as i32;
    let mut whole = model()?;
    let mut split = model()?.fully_shard("layers.*.weight", group)?;
    let (mut one, mut many) = (AdamW::new(1e-2), AdamW::new(1e-2));
    for step in 0..10 {
        let (x, y) = (normal(20 + step, &[8, 16]), normal(40 + step, &[8, 4]));
        let (_, gradients) = whole.value_and_grad(ParameterFilter::default(), (x.clone(), y.clone()), loss)?;
        one.update(&mut whole, &gradients)?;
        let own = |array: &Array| Ok::<_, tacit_core::Error>(array.split_equal(size, 0)?.swap_remove(group.rank()));
        let (_, gradients) = split.value_and_grad(ParameterFilter::default(), (own(&x)?, own(&y)?), loss)?;
        let gradients = split.mean_gradients(gradients, group)?;
        many.update(&mut split, &gradients)?;
    }
    for path in ["layers.0.weight", "layers.0.bias", "layers.2.weight"] {
        let value = split.get(path)?;
        let value = match value.downcast::<FullySharded>() {
            Some(array) => array.gathered()?,
            None => value,
        };
        close(&value.dense()?, &whole.get(path)?.dense()?, 1e-4);
    }
    let state: &(Array, Array) = &many.state[&Rc::from("layers.0.weight.local")];
    assert_eq!(state.0.shape(), [(16 * 33 + size - 1) / size]);
    Ok(())
}

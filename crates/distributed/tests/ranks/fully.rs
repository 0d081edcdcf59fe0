//! `FullySharded` against the whole array, with a batch for each rank.

use std::rc::Rc;

use mlx_rs::builder::Builder;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{AdamW, Optimizer};
use mlx_rs::{Array, Dtype, memory, nn, ops, random, transforms};
use tacit_arrays::format::{Affine, Nf4, Quantizer};
use tacit_arrays::{Lora, Nf4Array, Prepared};
use tacit_core::transform::vmap;
use tacit_core::{ImplicitArray, Policy, Result, Value, compile, implicit};
use tacit_distributed::{FullyShard, FullySharded, Group, Shard, Split};
use tacit_nn::training::{chunked_cross_entropy, clip_by_norm, distillation_loss};
use tacit_nn::{LoraConfig, Model, Outcome, ParameterFilter};

use crate::case::{Case, ODD_TOO};

pub(crate) const CASES: &[Case] = &[
    Case::new("products", products).sizes(ODD_TOO),
    Case::new("parts", parts).sizes(ODD_TOO),
    Case::new("wholes", wholes),
    Case::new("traffic", traffic),
    Case::new("training", training),
    Case::new("chunks_of_unequal_rows", chunks_of_unequal_rows).sizes(ODD_TOO),
    Case::new("chunks_of_mapped_rows", chunks_of_mapped_rows),
    Case::new("a_teacher_of_unequal_rows", a_teacher_of_unequal_rows).sizes(ODD_TOO),
    Case::new("means_of_what_is_split_otherwise", means_of_what_is_split_otherwise),
    Case::new("means_of_a_base_under_an_adapter", means_of_a_base_under_an_adapter),
    Case::new("a_tied_weight", a_tied_weight).sizes(ODD_TOO),
    Case::new("norms_of_parts", norms_of_parts),
    Case::new("what_is_converted", what_is_converted),
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

/// A model that was split holds its parts and nothing of the wholes, before its first step as after it.
fn wholes(group: &Group) -> Result<()> {
    let layer = || -> Result<Model<nn::Linear>> {
        let mut model = Model::new(nn::Linear::new(1024, 1024)?)?;
        model.set("weight", normal(1, &[1024, 1024]))?;
        model.eval()?;
        Ok(model)
    };
    let before = memory::active_memory()?;
    let model = layer()?.fully_shard("weight", group)?;
    let model = (model, layer()?.shard("weight", Split::Columns(group))?);
    let held = memory::active_memory()?.saturating_sub(before);
    let parts = 2 * 4 * 1024 * 1024 / group.size();
    assert!(held < parts + parts / 8, "{held} bytes for parts of {parts}");
    drop(model);
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

/// The same model at each call and on each rank, of so many hidden features.
fn model(hidden: i32) -> Result<Model<nn::Sequential>> {
    let layers =
        nn::Sequential::new().append(nn::Linear::new(16, hidden)?).append(nn::Relu).append(nn::Linear::new(hidden, 4)?);
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
    let mut whole = model(33)?;
    let mut split = model(33)?.fully_shard("layers.*.weight", group)?;
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

/// Gradients by leaf against those of the whole model: parts are joined as they lie.
fn assert_gradients(found: &FlattenedModuleParam, expected: &FlattenedModuleParam, group: &Group) -> Result<()> {
    let mut paths: Vec<&Rc<str>> = found.keys().collect();
    paths.sort_unstable();
    assert_eq!(paths.len(), expected.len());
    for path in paths {
        let gradient = &found[path];
        let (name, whole) = if let Some(name) = path.strip_suffix(".part") {
            (name, group.all_gather(gradient, 0)?)
        } else if let Some(name) = path.strip_suffix(".local") {
            (name, group.gather_parts(gradient)?)
        } else {
            (&**path, gradient.clone())
        };
        close(&whole.reshape(expected[name].shape())?, &expected[name], 1e-4);
    }
    Ok(())
}

/// A head is gathered once, however many chunks a rank has, or where it has no row; each row counts alike.
fn chunks_of_unequal_rows(group: &Group) -> Result<()> {
    let head = || -> Result<Model<nn::Linear>> {
        let mut model = Model::new(nn::Linear::new(8, 12)?)?;
        model.set_leaves([("weight".to_owned(), normal(1, &[12, 8])), ("bias".to_owned(), normal(2, &[12]))])?;
        Ok(model)
    };
    let count = |rows: &Array| Array::from_f32(rows.dim(0) as f32);
    let rows: Vec<Array> = (0..group.size()).map(|rank| normal(10 + rank as u64, &[3 * rank as i32, 8])).collect();
    let (all, own) = (ops::concatenate(&rows, 0)?, &rows[group.rank()]);
    let mean = group.mean(&count(own))?;
    mean.eval()?;
    for chunk in [Some(2), None] {
        let loss = move |model: &mut Model<nn::Linear>, (x, count): (Array, Array)| -> Result<Array> {
            let targets = ops::zeros::<u32>(&[x.dim(0)])?;
            let losses = chunked_cross_entropy(x, model.get("weight")?, &targets, chunk, |x, w| x.matmul(w.t()))?;
            Ok(losses.sum(None)?.divide(count)?)
        };
        let (_, expected) = head()?.value_and_grad(ParameterFilter::default(), (all.clone(), count(&all)), loss)?;
        let mut split = head()?.fully_shard("weight", group)?;
        let before = group.traffic();
        let (own, found) = split.value_and_grad(ParameterFilter::default(), (own.clone(), mean.clone()), loss)?;
        transforms::eval(found.values().chain([&own]))?;
        assert_eq!(group.traffic().collectives - before.collectives, 2, "it is gathered, and its gradient summed");
        assert_gradients(&split.mean_gradients(found, group)?, &expected, group)?;
    }
    Ok(())
}

/// A head is gathered once for all examples of a map, whatever chunks each of them has.
fn chunks_of_mapped_rows(group: &Group) -> Result<()> {
    let (whole, x) = (normal(1, &[12, 8]), normal(10 + group.rank() as u64, &[3, 5, 8]));
    let losses = |head: Value| -> Result<Array> {
        let each = move |x: Array| {
            let targets = ops::zeros::<u32>(&[x.dim(0)])?;
            chunked_cross_entropy(x, head.clone(), &targets, Some(2), |x, w| x.matmul(w.t()))
        };
        vmap(0, 0, each).call(&x)?.dense()
    };
    let split = FullySharded::new(&whole, group)?;
    let before = group.traffic();
    let found = losses(split.into())?;
    found.eval()?;
    assert_eq!(group.traffic().collectives - before.collectives, 1, "the head is gathered");
    close(&found, &losses(whole.into())?, 1e-5);
    Ok(())
}

/// A teacher's head is gathered where a rank has no row, too: the others wait for that.
fn a_teacher_of_unequal_rows(group: &Group) -> Result<()> {
    let (whole, rows) = (normal(1, &[12, 8]), 3 * group.rank() as i32);
    let (own, x) = (normal(2, &[rows, 12]), normal(3, &[rows, 8]));
    let head = FullySharded::new(&whole, group)?;
    let before = group.traffic();
    let teacher = implicit((&x, &head), |(x, w)| x.matmul(w.t()))?.dense()?;
    let losses = distillation_loss(&own, &teacher, 2.0)?;
    losses.eval()?;
    assert_eq!(group.traffic().collectives - before.collectives, 1, "the head is gathered");
    if rows == 0 {
        assert_eq!(losses.shape(), [0]);
    } else {
        close(&losses, &distillation_loss(&own, &x.matmul(whole.t())?, 2.0)?, 1e-4);
    }
    Ok(())
}

/// Parts along an axis are of other elements on each rank: there is nothing to take the mean of.
fn means_of_what_is_split_otherwise(group: &Group) -> Result<()> {
    // What is split otherwise is gathered for the product.
    let _allow = Policy::Allow.scope();
    let batch = || (normal(20, &[8, 16]), normal(40, &[8, 4]));
    let mut whole = model(32)?;
    let mut split = model(32)?.shard("layers.0.*", Split::Columns(group))?.fully_shard("layers.2.weight", group)?;
    let (_, expected) = whole.value_and_grad(ParameterFilter::default(), batch(), loss)?;
    let (_, found) = split.value_and_grad(ParameterFilter::default(), batch(), loss)?;
    assert_gradients(&split.mean_gradients(found, group)?, &expected, group)
}

/// What an adapter is beside is found in it, however deep.
fn means_of_a_base_under_an_adapter(group: &Group) -> Result<()> {
    let mut whole = Model::new(nn::Linear::new(8, 8)?)?;
    whole.set_leaves([("weight".to_owned(), normal(1, &[8, 8])), ("bias".to_owned(), normal(2, &[8]))])?;
    let adapted = |model: Model<nn::Linear>| -> Result<Model<nn::Linear>> {
        let mut model = model.lora("weight", LoraConfig { rank: 2, ..LoraConfig::default() })?;
        model.set_leaves([("weight.a".to_owned(), normal(3, &[2, 8])), ("weight.b".to_owned(), normal(4, &[8, 2]))])?;
        Ok(model)
    };
    let loss =
        |model: &mut Model<nn::Linear>, x: Array| -> Result<Array> { Ok(model.forward(&x)?.square()?.mean(None)?) };
    let mut split = adapted(whole.clone().fully_shard("weight", group)?)?;
    let x = normal(10, &[8, 8]);
    let own = x.split_equal(group.size() as i32, 0)?.swap_remove(group.rank());
    let (_, expected) = adapted(whole)?.value_and_grad(ParameterFilter::All, x, loss)?;
    let (_, found) = split.value_and_grad(ParameterFilter::All, own, loss)?;
    assert_gradients(&split.mean_gradients(found, group)?, &expected, group)
}

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Tied {
    #[param]
    embedding: nn::Embedding,
    #[param]
    head: nn::Linear,
}

/// It is split once, whichever of its paths is named, and its gradient is that of lookups and products.
fn a_tied_weight(group: &Group) -> Result<()> {
    let tied = || -> Result<Model<Tied>> {
        let head = nn::LinearBuilder::new(8, 12).bias(false).build()?;
        let model = Model::new(Tied { embedding: nn::Embedding::new(12, 8)?, head })?;
        let mut model = model.tie("head.weight", "embedding.weight")?;
        model.set("head.weight", normal(1, &[12, 8]))?;
        Ok(model)
    };
    let loss = |model: &mut Model<Tied>, tokens: Array| -> Result<Array> {
        model.run(|tied| {
            let x = tied.embedding.forward(&tokens)?;
            tied.head.forward(&x)?.square()?.mean(None)
        })
    };
    let tokens = Array::from_slice(&[3u32, 1, 2, 3], &[4]);
    let (_, expected) = tied()?.value_and_grad(ParameterFilter::default(), tokens.clone(), loss)?;
    for path in ["head.weight", "embedding.weight", "*.weight"] {
        let mut split = tied()?.fully_shard(path, group)?;
        let (_, found) = split.value_and_grad(ParameterFilter::default(), tokens.clone(), loss)?;
        assert_gradients(&split.mean_gradients(found, group)?, &expected, group)?;
    }
    Ok(())
}

/// Parts count on every rank, and what all ranks have once, also within a part; each rank clips alike.
fn norms_of_parts(group: &Group) -> Result<()> {
    let _allow = Policy::Allow.scope();
    let adapted = || -> Result<Model<nn::Sequential>> {
        let mut model = model(32)?.lora("layers.0.weight", LoraConfig { rank: 2, ..LoraConfig::default() })?;
        model.set_leaves([("layers.0.weight.b".to_owned(), normal(4, &[32, 2]))])?;
        Ok(model)
    };
    let batch = || (normal(20, &[8, 16]), normal(40, &[8, 4]));
    let gradients = |model: &mut Model<nn::Sequential>| -> Result<FlattenedModuleParam> {
        let (_, gradients) = model.value_and_grad(ParameterFilter::All, batch(), loss)?;
        model.mean_gradients(gradients, group)
    };
    let mut whole = adapted()?;
    let expected = gradients(&mut whole)?;
    let split = adapted()?.shard("layers.0.*", Split::Columns(group))?.fully_shard("layers.2.weight", group)?;
    let rows = adapted()?.shard("layers.2.weight", Split::Rows(group))?;
    for mut split in [split, rows] {
        let found = gradients(&mut split)?;
        for max in [0.1, 1e9] {
            let (expected, norm) = clip_by_norm(expected.clone(), max)?;
            let (clipped, found) = group.clip_by_norm(&split, found.clone(), max)?;
            close(&found.divide(&norm)?, &Array::from_f32(1.0), 1e-5);
            let bias = "layers.2.bias";
            close(&clipped[bias], &expected[bias], 1e-5);
            assert!(group.all_max(&clipped[bias])?.eq_exact(&group.all_min(&clipped[bias])?)?);
        }
    }
    Ok(())
}

/// Prepared weights become codes of whole rows, wherever the parts of their masters end, and an element has as many bits.
fn what_is_converted(group: &Group) -> Result<()> {
    let bits = |model: &Model<nn::Sequential>| match model.report().rows["layers.0.weight"].outcome {
        Outcome::Quantized { bits, .. } => format!("{bits:.3}"),
        ref other => panic!("{other:?}"),
    };
    let prepared = |hidden| model(hidden)?.prepare("layers.*.weight", "int8");
    let (mut whole, mut split) = (prepared(33)?, prepared(33)?.fully_shard("layers.*.weight", group)?);
    let mut columns = prepared(32)?.shard("layers.0.weight", Split::Columns(group))?;
    whole.convert()?;
    split.convert()?;
    columns.convert()?;
    assert_eq!([bits(&split), bits(&columns)], [bits(&whole), bits(&whole)]);
    let x = normal(20, &[8, 16]);
    close(&split.forward(&x)?, &whole.forward(&x)?, 1e-5);
    Ok(())
}

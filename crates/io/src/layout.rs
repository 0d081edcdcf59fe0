//! Conversion of a decoder's parameters between the arrangements of mlx-lm and of Hugging Face.
//!
//! The names are the same but for experts: Hugging Face stores those of a layer apart, `mlp.experts.0.up_proj`, and
//! mlx-lm as one array, `mlp.switch_mlp.up_proj`; those of a Mixtral are `block_sparse_moe.experts.0.w3` and
//! `block_sparse_moe.switch_mlp.up_proj`. For a Qwen3-Next Hugging Face has the last two axes of filters swapped, and
//! the gains of norms less 1. [`Gguf::hugging_face`](crate::Gguf::hugging_face) gives mlx-lm's arrangement.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::{Array, ops};
use tacit_arrays::Stacked;
use tacit_core::{Aval, Error, Result, Value};
use tacit_nn::Parameters;

use crate::Distance;

/// The gains that a Qwen3-Next of Hugging Face stores less 1.
const LESS_ONE: [&str; 5] = [
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
];

pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

const APART: &str = ".experts.";
const TOGETHER: &str = ".switch_mlp.";

/// What stands before those, with the products of an expert in both libraries, where their names differ.
const EXPERTS: &[(&str, &[[&str; 2]])] =
    &[(".mlp", &[]), (".block_sparse_moe", &[["w1", "gate_proj"], ["w2", "down_proj"], ["w3", "up_proj"]])];

/// The parameters as mlx-lm has them; those that are so already stay.
///
/// Experts that are implicit arrays become a [`Stacked`] one. The parameters by which a Qwen3-Next of Hugging Face proposes several
/// tokens, `mtp.*`, are left out: they are not run.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use std::path::Path;
///
/// use mlx_rs::ops;
/// use tacit_io::layout;
/// use tacit_nn::Parameters;
///
/// let path = |expert| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
/// let apart: Parameters = (0..2).map(|expert| Ok((path(expert), ops::ones::<f32>(&[8, 4])?.into()))).collect::<tacit_core::Result<_>>()?;
///
/// let together = layout::as_mlx_lm(Path::new("model"), apart.clone())?;
/// assert_eq!(together["model.layers.0.mlp.switch_mlp.up_proj.weight"].to_string(), "f32[2,8,4]");
/// assert!(layout::as_hugging_face(together)?.keys().eq(apart.keys()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// An expert is missing, or those of a layer differ in shape or type. The message names `file`.
pub fn as_mlx_lm(file: &Path, mut parameters: Parameters) -> Result<Parameters> {
    if has_filters(&parameters, |shape| matches!(shape, &[_, 1, taps] if taps != 1)) {
        parameters.retain(|path, _| !path.starts_with("mtp."));
        swap_and_add(&mut parameters, 1.0)?;
    }
    stacked(file, parameters)
}

/// The parameters as Hugging Face has them; those that are so already stay.
///
/// Experts that are one array are made dense, for which the [policy](tacit_core::Policy) is asked.
///
/// # Errors
///
/// An array of experts refuses to be made dense, or the policy forbids it.
pub fn as_hugging_face(mut parameters: Parameters) -> Result<Parameters> {
    if has_filters(&parameters, |shape| matches!(shape, &[_, taps, 1] if taps != 1)) {
        swap_and_add(&mut parameters, -1.0)?;
    }
    let mut apart = Parameters::new();
    for (path, value) in parameters {
        if to_expert(&path, 0).is_none() {
            apart.insert(path, value);
            continue;
        }
        let experts = value.dense()?;
        for (number, expert) in experts.split_equal(experts.dim(0), 0)?.iter().enumerate() {
            if let Some(path) = to_expert(&path, number) {
                apart.insert(path, expert.squeeze_axes(&[0])?.into());
            }
        }
    }
    Ok(apart)
}

/// The name that an expert's parameter has with the other library: that of the array of all experts for one of Hugging Face, and
/// for one of mlx-lm that of its first expert.
///
/// ```
/// use tacit_io::layout::other_name;
///
/// let together = "model.layers.0.mlp.switch_mlp.up_proj.weight";
/// assert_eq!(other_name("model.layers.0.mlp.experts.7.up_proj.weight").as_deref(), Some(together));
/// assert_eq!(other_name(together).as_deref(), Some("model.layers.0.mlp.experts.0.up_proj.weight"));
/// let of_mixtral = "model.layers.0.block_sparse_moe.switch_mlp.down_proj.weight";
/// assert_eq!(other_name("model.layers.0.block_sparse_moe.experts.7.w2.weight").as_deref(), Some(of_mixtral));
/// assert_eq!(other_name("model.norm.weight"), None);
/// ```
#[must_use]
pub fn other_name(path: &str) -> Option<String> {
    of_expert(path).map(|(path, _)| path).or_else(|| to_expert(path, 0))
}

/// The array of all experts that a parameter of one is in, and which one it is.
fn of_expert(path: &str) -> Option<(String, usize)> {
    let (module, rest) = path.split_once(APART)?;
    let (digits, rest) = rest.split_once('.')?;
    // `00` is no expert: it would take the place of `0`.
    let number = digits.parse().ok().filter(|number: &usize| number.to_string() == digits)?;
    Some((format!("{module}{TOGETHER}{}", renamed(module, rest, [0, 1])?), number))
}

/// The parameter of an expert that is in the array of all.
fn to_expert(path: &str, number: usize) -> Option<String> {
    let (module, rest) = path.split_once(TOGETHER)?;
    Some(format!("{module}{APART}{number}.{}", renamed(module, rest, [1, 0])?))
}

/// The name of a product of an expert in one library for that in the other one, each by its place in a pair; none for a name that
/// the library does not have.
fn renamed(module: &str, name: &str, [from, to]: [usize; 2]) -> Option<String> {
    let (_, pairs) = EXPERTS.iter().find(|(end, _)| module.ends_with(end))?;
    let product = name.split('.').next().unwrap_or(name);
    match pairs.iter().find(|pair| pair[from] == product) {
        Some(pair) => Some(format!("{}{}", pair[to], &name[product.len()..])),
        None => pairs.is_empty().then(|| name.to_owned()),
    }
}

/// Removes the head from the parameters of a decoder whose configuration says that the head is the embedding.
///
/// Where a library has saved the shared array under the name of the head alone, it becomes the embedding. Where both are there, they
/// are built some rows at a time to be compared, for which the [policy](tacit_core::Policy) is asked.
///
/// # Errors
///
/// The head is another array than the embedding, or the policy forbids to compare them. The message names `file`.
pub fn drop_tied_head(file: &Path, parameters: &mut Parameters) -> Result<()> {
    let Some(head) = parameters.remove(HEAD) else { return Ok(()) };
    let Some(embedding) = parameters.get(EMBEDDING) else {
        parameters.insert(EMBEDDING.to_owned(), head);
        return Ok(());
    };
    if embedding.aval()?.shape == head.aval()?.shape && Distance::of_values(embedding, &head)?.error <= 0.0 {
        return Ok(());
    }
    let reason = format!("it is not {EMBEDDING}, which the configuration says it is");
    let help = "leave the head out, or write `\"tie_word_embeddings\": false` into config.json if it is its own";
    Err(Error::checkpoint(file, Some(HEAD), reason, help))
}

/// Whether filters of a hybrid decoder have such a shape.
fn has_filters(parameters: &Parameters, lie: fn(&[i32]) -> bool) -> bool {
    parameters.iter().any(|(path, value)| is_filter(path) && value.as_dense().is_some_and(|array| lie(array.shape())))
}

fn is_filter(path: &str) -> bool {
    path.ends_with(".linear_attn.conv1d.weight")
}

/// Swaps the last two axes of filters, and adds a number to the gains.
fn swap_and_add(parameters: &mut Parameters, added: f32) -> Result<()> {
    for (path, value) in parameters.iter_mut() {
        let Some(array) = value.as_dense() else { continue };
        // What is not dense is told by who looks for the parameters of a model.
        if is_filter(path) && array.ndim() == 3 {
            *value = array.swap_axes(1, 2)?.into();
        } else if LESS_ONE.iter().any(|end| path.ends_with(end)) {
            *value = array.add(Array::from_f32(added).as_dtype(array.dtype())?)?.into();
        }
    }
    Ok(())
}

/// The parameters with the experts of a layer as one.
fn stacked(file: &Path, parameters: Parameters) -> Result<Parameters> {
    let mut stacked = Parameters::new();
    let mut experts: BTreeMap<String, BTreeMap<usize, Value>> = BTreeMap::new();
    for (path, value) in parameters {
        match of_expert(&path) {
            Some((path, number)) => drop(experts.entry(path).or_default().insert(number, value)),
            None => drop(stacked.insert(path, value)),
        }
    }
    for (path, parts) in experts {
        let wrong = |expert: usize, reason: &str| {
            let key = to_expert(&path, expert);
            Error::checkpoint(file, key.as_deref(), reason, "fetch the tensors again, all of them")
        };
        if stacked.contains_key(&path) {
            return Err(wrong(0, &format!("{path} is there too, which stands for all experts of the layer")));
        }
        if let Some(missing) = (0..parts.len()).find(|number| !parts.contains_key(number)) {
            return Err(wrong(missing, "it is not there, and later experts are"));
        }
        let parts: Vec<Value> = parts.into_values().collect();
        let avals = parts.iter().map(Value::aval).collect::<Result<Vec<_>>>()?;
        // Dense ones are promoted to one dtype.
        let arrays = parts.iter().map(Value::as_dense).collect::<Option<Vec<_>>>();
        let alike = |aval: &Aval| if arrays.is_some() { aval.shape == avals[0].shape } else { *aval == avals[0] };
        if let Some(other) = avals.iter().position(|aval| !alike(aval)) {
            return Err(wrong(other, &format!("it is {}, and that of expert 0 is {}", avals[other], avals[0])));
        }
        let value = match arrays {
            Some(arrays) => ops::stack(&arrays, 0)?.into(),
            None => Stacked::new(parts)?.into(),
        };
        stacked.insert(path, value);
    }
    Ok(stacked)
}

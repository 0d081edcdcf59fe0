//! The classes of caches, and the parts that their states have.

use mlx_rs::{Array, Dtype};
use tacit_arrays::AffineArray;
use tacit_arrays::format::{Affine, Parts};
use tacit_core::{Aval, Error, Result, Value};

use super::state::{Fault, Found, Leaf, Node, at_place};
use super::{StoredBuffers, StoredCache};

impl StoredCache {
    pub(super) fn class(&self) -> &'static str {
        match self {
            Self::Kv { .. } => "KVCache",
            Self::Quantized { .. } => "QuantizedKVCache",
            Self::Rotating { .. } => "RotatingKVCache",
            Self::Chunked { .. } => "ChunkedKVCache",
            Self::Arrays { .. } => "ArraysCache",
            Self::List(_) => "CacheList",
            Self::Batch { .. } => "BatchKVCache",
            Self::BatchRotating { .. } => "BatchRotatingKVCache",
        }
    }

    /// The cache of this class and state, as mlx-lm has it from 0.32 on.
    pub(super) fn of_state(class: &str, state: Node) -> Found<Self> {
        Ok(match class {
            "KVCache" => {
                let [keys, values, offset] = state.parts()?;
                let (held, offset) = (unpacked(keys, values)?, at_place(2, offset, Node::into_count)?);
                within(2, "tokens", offset, capacity(held.as_ref()))?;
                Self::Kv { held, offset }
            }
            "ConcatenateKVCache" => {
                let [keys, values] = state.parts()?;
                let held = unpacked(keys, values)?;
                Self::Kv { offset: capacity(held.as_ref()), held }
            }
            "QuantizedKVCache" => {
                let [keys, values, offset, group_size, bits] = state.parts()?;
                let offset = at_place(2, offset, Node::into_count)?;
                let (group_size, bits) =
                    (at_place(3, group_size, Node::into_count)?, at_place(4, bits, Node::into_count)?);
                let held = packed(keys, values, group_size, bits)?;
                within(2, "tokens", offset, capacity(held.as_ref()))?;
                Self::Quantized { held, offset, group_size, bits }
            }
            "RotatingKVCache" => {
                let [keys, values, offset, keep, max_size, index] = state.parts()?;
                let held = unpacked(keys, values)?;
                let [offset, keep, max_size] =
                    [(2, offset), (3, keep), (4, max_size)].map(|(i, node)| at_place(i, node, Node::into_count));
                let (keep, max_size, index) = (keep?, max_size?, at_place(5, index, Node::into_count)?);
                within(3, "tokens that stay", keep, max_size)?;
                within(5, "slots", index, capacity(held.as_ref()))?;
                let offset = offset?;
                within(2, "tokens", offset, LONGEST)?;
                if index < offset {
                    within(3, "tokens that stay", keep, index)?;
                }
                Self::Rotating { held, offset, keep, max_size, index }
            }
            "ChunkedKVCache" => {
                let [keys, values, offset, chunk_size, start] = state.parts()?;
                let held = unpacked(keys, values)?;
                let (offset, chunk_size) =
                    (at_place(2, offset, Node::into_count)?, at_place(3, chunk_size, Node::into_count)?);
                let start = at_place(4, start, Node::into_count)?;
                within(2, "tokens", offset, LONGEST)?;
                within(4, "tokens that are gone", start, offset)?;
                within(2, "tokens", offset - start, capacity(held.as_ref()))?;
                Self::Chunked { held, offset, chunk_size, start }
            }
            "ArraysCache" | "MambaCache" => arrays(state)?,
            "CacheList" => {
                let caches = state.list()?.into_iter().enumerate().map(|(place, node)| {
                    at_place(place, node, |node| {
                        let [state, class] = node.parts()?;
                        let class = at_place(1, class, Node::into_text)?;
                        at_place(0, state, |state| Self::of_state(&class, state))
                    })
                });
                Self::List(caches.collect::<Found<_>>()?)
            }
            "BatchKVCache" => {
                let [keys, values, offset, left_padding, index] = state.parts()?;
                let held = unpacked(keys, values)?;
                let [offset, left_padding] = per_sequence(held.as_ref(), [offset, left_padding])?;
                let index = at_place(4, index, Node::into_count)?;
                within(4, "slots", index, capacity(held.as_ref()))?;
                Self::Batch { held, offset, left_padding, index }
            }
            "BatchRotatingKVCache" => {
                let [keys, values, offset, left_padding, max_size, total, index, rotated] = state.parts()?;
                let held = unpacked(keys, values)?;
                let [offset, left_padding] = per_sequence(held.as_ref(), [offset, left_padding])?;
                let (max_size, total) =
                    (at_place(4, max_size, Node::into_count)?, at_place(5, total, Node::into_count)?);
                let (index, rotated) = (at_place(6, index, Node::into_count)?, at_place(7, rotated, Node::into_flag)?);
                within(6, "slots", index, capacity(held.as_ref()))?;
                Self::BatchRotating { held, offset, left_padding, max_size, total, index, rotated }
            }
            other => return Err(Fault::new(format!("{other:?} is no class of caches that is known"))),
        })
    }

    pub(super) fn state(&self) -> Result<Node> {
        let count = Node::integer;
        Ok(match self {
            Self::Kv { held, offset } => buffers(held.as_ref(), [count(*offset)])?,
            Self::Quantized { held, offset, group_size, bits } => {
                let [keys, values] = match held {
                    None => [Node::Leaf(Leaf::Nothing), Node::Leaf(Leaf::Nothing)],
                    Some(StoredBuffers { keys, values }) => {
                        [triple(keys, *group_size, *bits)?, triple(values, *group_size, *bits)?]
                    }
                };
                Node::branch([keys, values, count(*offset), count(*group_size), count(*bits)])
            }
            Self::Rotating { held, offset, keep, max_size, index } => {
                buffers(held.as_ref(), [*offset, *keep, *max_size, *index].map(count))?
            }
            Self::Chunked { held, offset, chunk_size, start } => {
                buffers(held.as_ref(), [*offset, *chunk_size, *start].map(count))?
            }
            Self::Arrays { slots, left_padding, lengths } => {
                let slots = slots.iter().map(|slot| Node::option(slot.as_ref()));
                let numbers = [left_padding, lengths].map(|array| Node::option(array.as_ref()));
                Node::branch([Node::branch(slots)].into_iter().chain(numbers))
            }
            Self::List(caches) => {
                let caches = caches
                    .iter()
                    .map(|cache| Ok(Node::branch([cache.state()?, Node::Leaf(Leaf::Text(cache.class().to_owned()))])));
                Node::branch(caches.collect::<Result<Vec<_>>>()?)
            }
            Self::Batch { held, offset, left_padding, index } => {
                buffers(held.as_ref(), [Node::array(offset), Node::array(left_padding), count(*index)])?
            }
            Self::BatchRotating { held, offset, left_padding, max_size, total, index, rotated } => {
                let numbers = [*max_size, *total, *index].map(count);
                let rotated = Node::Leaf(Leaf::Flag(*rotated));
                let arrays = [Node::array(offset), Node::array(left_padding)];
                buffers(held.as_ref(), arrays.into_iter().chain(numbers).chain([rotated]))?
            }
        })
    }
}

fn capacity(held: Option<&StoredBuffers>) -> i32 {
    held.and_then(|held| held.keys.aval().ok()).map_or(0, |aval| aval.shape[2])
}

/// Checks that a number of something is at most another.
fn within(place: usize, what: &str, number: i32, most: i32) -> Found<()> {
    if number <= most {
        return Ok(());
    }
    Err(Fault::at(&place.to_string(), format!("{number} {what} are more than the {most} that there may be")))
}

/// The first two parts of most states, of which both are nothing or neither.
fn unpacked(keys: Node, values: Node) -> Found<Option<StoredBuffers>> {
    if keys.is_nothing() && values.is_nothing() {
        return Ok(None);
    }
    let (keys, values) = (at_place(0, keys, Node::into_array)?, at_place(1, values, Node::into_array)?);
    fitting(keys.into(), values.into()).map(Some)
}

/// Buffers of the same sequences, heads and slots.
fn fitting(keys: Value, values: Value) -> Found<StoredBuffers> {
    let aval = |place: &str, value: &Value| {
        let aval = value.aval().map_err(|error| Fault::at(place, error.clause()))?;
        if aval.shape.len() != 4 || !aval.dtype.is_float() {
            return Err(Fault::at(place, format!("it is {aval}, and buffers are floats of four axes")));
        }
        Ok(aval)
    };
    let (key, value) = (aval("0", &keys)?, aval("1", &values)?);
    if key.shape[..3] != value.shape[..3] {
        return Err(Fault::at("1", format!("it is {value}, and the keys are {key}")));
    }
    Ok(StoredBuffers { keys, values })
}

/// Keys and values as codes, scales and biases.
fn packed(keys: Node, values: Node, group_size: i32, bits: i32) -> Found<Option<StoredBuffers>> {
    if keys.is_nothing() && values.is_nothing() {
        return Ok(None);
    }
    let part = |node: Node| -> Found<Value> {
        let [codes, scales, biases] = node.parts()?;
        let (codes, scales) = (at_place(0, codes, Node::into_array)?, at_place(1, scales, Node::into_array)?);
        let biases = at_place(2, biases, Node::into_array)?;
        let format = Affine { bits: bits as u32, group: group_size as usize };
        let mut aval = Aval::from(&scales);
        let width = aval.shape.last_mut().ok_or_else(|| Fault::at("1", "the scales are one number"))?;
        *width = width.checked_mul(group_size).ok_or_else(|| Fault::at("1", "there are too many scales"))?;
        let parts = Parts { biases: Some(biases), ..Parts::new(codes, scales) };
        Ok(AffineArray::from_parts(parts, format, aval).map_err(|error| Fault::new(error.clause()))?.into())
    };
    fitting(at_place(0, keys, part)?, at_place(1, values, part)?).map(Some)
}

/// The codes, scales and biases of keys or values in this format.
fn triple(value: &Value, group_size: i32, bits: i32) -> Result<Node> {
    let array = value.downcast::<AffineArray>().filter(|array| {
        let format = array.format();
        (format.bits, format.group) == (bits.unsigned_abs(), group_size.unsigned_abs() as usize)
    });
    let parts = array.and_then(|array| Some((array.codes(), array.scales()?, array.biases()?)));
    let (codes, scales, biases) = parts.ok_or_else(|| {
        Error::invalid(
            format!("{value} is not written as affine:{bits}:{group_size}"),
            "quantize keys and values to the bits and the group size that the cache names",
        )
    })?;
    Ok(Node::branch([Node::array(codes), Node::array(&scales.dense()?), Node::array(biases)]))
}

/// A state that begins with the buffers.
fn buffers(held: Option<&StoredBuffers>, rest: impl IntoIterator<Item = Node>) -> Result<Node> {
    let buffer = |value: Option<&Value>| match value {
        None => Ok(Node::Leaf(Leaf::Nothing)),
        Some(Value::Dense(array)) => Ok(Node::array(array)),
        Some(value) => Err(Error::invalid(
            format!("{value} is written as a float array"),
            "give dense keys and values, or affine ones to a cache that is quantized",
        )),
    };
    let [keys, values] = [buffer(held.map(|held| &held.keys))?, buffer(held.map(|held| &held.values))?];
    Ok(Node::branch([keys, values].into_iter().chain(rest)))
}

/// The two arrays with a number for each sequence, at places 2 and 3.
fn per_sequence(held: Option<&StoredBuffers>, arrays: [Node; 2]) -> Found<[Array; 2]> {
    let batch = held.and_then(|held| held.keys.aval().ok()).map(|aval| aval.shape[0]);
    let [offset, left_padding] = arrays;
    let (offset, left_padding) = (at_place(2, offset, Node::into_array)?, at_place(3, left_padding, Node::into_array)?);
    let batch = batch.unwrap_or_else(|| offset.shape().first().copied().unwrap_or(0));
    for (place, array) in [("2", &offset), ("3", &left_padding)] {
        check_numbers(place, array, batch)?;
    }
    Ok([offset, left_padding])
}

fn check_numbers(place: &str, array: &Array, batch: i32) -> Found<()> {
    let (found, expected) = (Aval::from(array), Aval::new(&[batch], Dtype::Int32));
    if found == expected {
        return Ok(());
    }
    Err(Fault::at(place, format!("it is {found}, and {expected} of {batch} sequences")))
}

/// No text has more tokens; positions behind it still have a number.
const LONGEST: i32 = 1 << 30;

/// Slots, of which a cache without any leaves no trace.
fn arrays(state: Node) -> Found<StoredCache> {
    let Node::Branch(mut parts) = state else { return Err(Fault::new("it has no parts, and its class has three")) };
    let slots = parts.remove(&0).unwrap_or_else(|| Node::branch([]));
    let [left_padding, lengths] = [1, 2].map(|place| parts.remove(&place).unwrap_or(Node::Leaf(Leaf::Nothing)));
    if let Some(place) = parts.keys().next() {
        return Err(Fault::at(&place.to_string(), "its class has three parts"));
    }
    let slots = at_place(0, slots, |slots| {
        let slots = slots.list()?.into_iter().enumerate();
        slots.map(|(place, slot)| at_place(place, slot, Node::into_option)).collect::<Found<Vec<Option<Array>>>>()
    })?;
    let [left_padding, lengths] =
        [(1, left_padding), (2, lengths)].map(|(place, node)| at_place(place, node, Node::into_option));
    let (left_padding, lengths) = (left_padding?, lengths?);
    let batch = slots.iter().flatten().find_map(|slot| slot.shape().first().copied());
    for (place, array) in [("1", &left_padding), ("2", &lengths)] {
        let Some(array) = array else { continue };
        check_numbers(place, array, batch.or_else(|| array.shape().first().copied()).unwrap_or(0))?;
    }
    Ok(StoredCache::Arrays { slots, left_padding, lengths })
}

//! How classes and states lie in a file: the two layouts.

use std::collections::BTreeMap;

use mlx_rs::{Array, Dtype};
use tacit_core::{Error, Result};

use super::state::{Fault, Found, HELP, Leaf, Node, at_place};
use crate::{Metadata, Tensors};

/// The classes and states of the layers, and what else the file says.
type Read = (Vec<(String, Node)>, Metadata);

/// The longest name of a class.
const LONGEST: usize = 64;

/// Reads a file of either layout; the states are those of the newer.
pub(super) fn read(tensors: &Tensors) -> Result<Read> {
    let said = tensors.metadata();
    // The older layout has the class of the first layer here, which is not empty.
    if said.get("2.0").is_some_and(String::is_empty) { newer(tensors, said) } else { older(tensors, said) }
}

/// The metadata whose keys begin so, without the beginning.
fn beginning<'s>(said: &'s Metadata, with: &str) -> impl Iterator<Item = (&'s str, &'s str)> {
    said.iter().filter_map(move |(key, value)| Some((key.strip_prefix(with)?, value.as_str())))
}

/// The classes by layer, and for each what `state` gives.
fn layers(tensors: &Tensors, classes: &str, mut states: Node) -> Result<Vec<(String, Node)>> {
    let mut named = Node::branch([]);
    for (layer, class) in beginning(tensors.metadata(), classes) {
        named.insert(layer, Leaf::Text(class.to_owned())).map_err(|fault| fault.error(tensors))?;
    }
    let Node::Branch(states) = &mut states else { return Ok(Vec::new()) };
    let named = named.list().map_err(|fault| tensors.wrong(None, format!("of its classes {}", fault.reason), HELP))?;
    let named = named.into_iter().enumerate().map(|(layer, class)| {
        let class = class.into_text().map_err(|fault| fault.below(&layer.to_string()).error(tensors))?;
        // A class without a state leaves no trace.
        Ok((class, states.remove(&layer).unwrap_or_else(|| Node::branch([]))))
    });
    let named = named.collect::<Result<Vec<_>>>()?;
    match states.keys().next() {
        None if named.is_empty() => Err(tensors.wrong(None, "it names no classes of caches", HELP)),
        None => Ok(named),
        Some(layer) => Err(tensors.wrong(Some(&layer.to_string()), "its class is not named", HELP)),
    }
}

/// From 0.32 on: `0.<key>` is what the writer said, `1.<layer>` a class, and `2.<n>.0` with `2.<n>.1` the place of a tensor
/// that stands for something else, and what that is.
fn newer(tensors: &Tensors, said: &Metadata) -> Result<Read> {
    let mut kinds = BTreeMap::new();
    for (key, place) in beginning(said, "2.") {
        let Some(number) = key.strip_suffix(".0") else { continue };
        let kind = said.get(&format!("2.{number}.1"));
        let kind = kind.ok_or_else(|| tensors.wrong(Some(place), "what it stands for is not said", HELP))?;
        if !tensors.contains(place) || kinds.insert(place, kind.as_str()).is_some() {
            return Err(tensors.wrong(Some(place), "it is not there once, as the file says", HELP));
        }
    }
    let mut states = Node::branch([]);
    for name in tensors.names() {
        let leaf = match kinds.get(name) {
            None => Leaf::Array(tensors.get(name)?),
            Some(&kind) => other(tensors, name, kind)?,
        };
        states.insert(name, leaf).map_err(|fault| fault.error(tensors))?;
    }
    let metadata = beginning(said, "0.").map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Ok((layers(tensors, "1.", states)?, metadata))
}

/// What a tensor stands for that is no array.
fn other(tensors: &Tensors, name: &str, kind: &str) -> Result<Leaf> {
    let aval = tensors.aval(name)?;
    let bytes = tensors.bytes(name)?;
    let (words, _) = bytes.as_chunks::<4>();
    let leaf = match (kind, aval.dtype, aval.shape.as_slice()) {
        ("none", _, [0]) => Some(Leaf::Nothing),
        ("scalar", Dtype::Bool, []) => Some(Leaf::Flag(bytes == [1])),
        ("scalar", Dtype::Int32, []) => words.first().map(|word| Leaf::Integer(i32::from_le_bytes(*word))),
        ("string", Dtype::Int32, [length]) if *length as usize <= LONGEST => {
            let letters = words.iter().map(|word| char::from_u32(u32::from_le_bytes(*word)));
            letters.collect::<Option<String>>().map(Leaf::Text)
        }
        _ => None,
    };
    leaf.ok_or_else(|| tensors.wrong(Some(name), format!("it is {aval}, and stands for {kind:?}"), HELP))
}

/// Until 0.31: `0.<layer>` is the text of a state's numbers, `1.<key>` what the writer said, and `2.<layer>` a class.
fn older(tensors: &Tensors, said: &Metadata) -> Result<Read> {
    let (mut states, mut numbers) = (Node::branch([]), Node::branch([]));
    for name in tensors.names() {
        states.insert(name, Leaf::Array(tensors.get(name)?)).map_err(|fault| fault.error(tensors))?;
    }
    for (place, text) in beginning(said, "0.") {
        numbers.insert(place, Leaf::Text(text.to_owned())).map_err(|fault| fault.error(tensors))?;
    }
    let mut numbers = if let Node::Branch(numbers) = numbers { numbers } else { BTreeMap::new() };
    let layers = layers(tensors, "2.", states)?.into_iter().enumerate().map(|(layer, (class, state))| {
        let numbers = numbers.remove(&layer).unwrap_or_else(|| Node::Leaf(Leaf::Text(String::new())));
        let state = renewed(&class, state, numbers).map_err(|fault| fault.below(&layer.to_string()).error(tensors))?;
        Ok::<_, Error>((class, state))
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    if let Some(layer) = numbers.keys().next() {
        return Err(tensors.wrong(Some(&layer.to_string()), "its class is not named", HELP));
    }
    let metadata = beginning(said, "1.").map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Ok((layers, metadata))
}

/// An older state, and the text of its numbers, as a newer one.
fn renewed(class: &str, state: Node, numbers: Node) -> Found<Node> {
    let extend = |state: Node, more: Vec<Node>| {
        let mut parts = state.list()?;
        parts.extend(more);
        Ok(Node::branch(parts))
    };
    Ok(match class {
        "KVCache" | "BatchKVCache" => {
            let tokens = tokens(&state);
            extend(state, vec![Node::integer(tokens)])?
        }
        "QuantizedKVCache" => match *integers(numbers)? {
            // Earlier ones begin with the step of growth.
            [offset, group, bits] | [_, offset, group, bits] => {
                extend(state, [offset, group, bits].map(Node::integer).into())?
            }
            _ => return Err(Fault::new("it has not the three numbers of its class")),
        },
        "RotatingKVCache" => match *integers(numbers)? {
            [keep, max_size, offset, index] | [keep, max_size, _, offset, index] => {
                extend(state, [offset, keep, max_size, index].map(Node::integer).into())?
            }
            _ => return Err(Fault::new("it has not the four numbers of its class")),
        },
        "ChunkedKVCache" => match *integers(numbers)? {
            [chunk_size, 0] => {
                let offset = tokens(&state);
                extend(state, [offset, chunk_size, 0].map(Node::integer).into())?
            }
            // Buffers are cut where the tokens would end that are gone too, if at all.
            [_, start] => {
                return Err(Fault::new(format!(
                    "its first {start} tokens are gone, and this layout does not say how many are left"
                )));
            }
            _ => return Err(Fault::new("it has not the two numbers of its class")),
        },
        "BatchRotatingKVCache" => {
            let [max_size, total, index, rotated] = numbers.parts()?;
            let numbers = integers(Node::branch([max_size, total, index]))?;
            let rotated = match at_place(3, rotated, Node::into_text)?.as_str() {
                "True" => true,
                "False" => false,
                other => return Err(Fault::new(format!("{other:?} is neither True nor False"))),
            };
            let numbers = numbers.into_iter().map(Node::integer).chain([Node::Leaf(Leaf::Flag(rotated))]);
            extend(state, numbers.collect())?
        }
        "ArraysCache" | "MambaCache" => Node::branch([state]),
        "CacheList" => {
            let [classes, numbers] = numbers.parts()?;
            let (classes, numbers) = (classes.list()?, numbers.list()?);
            let states = state.list()?;
            if [classes.len(), numbers.len()] != [states.len(); 2] {
                return Err(Fault::new("it has not a class and a state for each of its caches"));
            }
            let caches =
                states.into_iter().zip(classes).zip(numbers).enumerate().map(|(place, ((state, class), numbers))| {
                    let class = class.into_text()?;
                    let state = at_place(place, state, |state| renewed(&class, state, numbers))?;
                    Ok(Node::branch([state, Node::Leaf(Leaf::Text(class))]))
                });
            Node::branch(caches.collect::<Found<Vec<_>>>()?)
        }
        // Of one without numbers; another is refused by its name.
        _ => state,
    })
}

/// The tokens of buffers that are cut where these end.
fn tokens(state: &Node) -> i32 {
    let Node::Branch(parts) = state else { return 0 };
    match parts.get(&0) {
        Some(Node::Leaf(Leaf::Array(keys))) => keys.shape().get(2).copied().unwrap_or(0),
        _ => 0,
    }
}

fn integers(numbers: Node) -> Found<Vec<i32>> {
    let texts = numbers.list()?.into_iter().map(Node::into_text).collect::<Found<Vec<_>>>()?;
    let read = texts.iter().map(|text| text.parse().ok()).collect::<Option<_>>();
    read.ok_or_else(|| Fault::new(format!("{} are not the numbers of its class", texts.join(", "))))
}

/// The tensors and metadata of the newer layout.
pub(super) fn written(layers: Vec<(&'static str, Node)>, said: &Metadata) -> (Vec<(String, Array)>, Metadata) {
    let mut metadata: Metadata = said.iter().map(|(key, value)| (format!("0.{key}"), value.clone())).collect();
    metadata.insert("2.0".to_owned(), String::new());
    let (mut tensors, mut others) = (Vec::new(), 0);
    for (layer, (class, state)) in layers.into_iter().enumerate() {
        metadata.insert(format!("1.{layer}"), class.to_owned());
        let mut leaves = Vec::new();
        state.leaves(&layer.to_string(), &mut leaves);
        for (name, leaf) in leaves {
            let (kind, array) = match leaf {
                Leaf::Array(array) => (None, array),
                Leaf::Integer(number) => (Some("scalar"), Array::from_int(number)),
                Leaf::Flag(flag) => (Some("scalar"), Array::from_bool(flag)),
                Leaf::Text(text) => {
                    let letters: Vec<i32> = text.chars().map(|letter| letter as i32).collect();
                    (Some("string"), Array::from_slice(&letters, &[letters.len() as i32]))
                }
                Leaf::Nothing => (Some("none"), Array::from_slice::<f32>(&[], &[0])),
            };
            if let Some(kind) = kind {
                others += 1;
                metadata.insert(format!("2.{others}.0"), name.clone());
                metadata.insert(format!("2.{others}.1"), kind.to_owned());
            }
            tensors.push((name, array));
        }
    }
    (tensors, metadata)
}

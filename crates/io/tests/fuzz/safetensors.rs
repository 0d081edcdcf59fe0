//! Changes of safetensors files that leave most of them readable: of what the header says, and of the elements.

use serde_json::Value as Json;

use crate::random::Random;
use crate::{bytes, json};

const LENGTH: usize = 8;

/// Changes a file: its header as JSON, its elements, or its bytes.
pub(crate) fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    match (random.below(8), taken_apart(file)) {
        (0, _) | (_, None) => bytes::mutate(file, random),
        (1, Some((_, elements))) => {
            // Codes and scales of the right number that nobody wrote, and JSON that is kept as elements.
            let start = file.len() - elements;
            let at = start + random.below(elements);
            let byte = if random.once_in(2) { random.bits() as u8 } else { *random.one_of(b"0123456789-{}[]\",:.e") };
            match file.get_mut(at) {
                Some(element) => *element = byte,
                None => file.push(byte),
            }
        }
        (choice, Some((mut header, elements))) => {
            match choice {
                2 | 3 => metadata(&mut header, random),
                4 => same_bytes(&mut header, random),
                _ => json::mutate(&mut header, random),
            }
            put_together(file, &header, elements, random);
        }
    }
}

/// The header, and how many bytes of elements follow.
fn taken_apart(file: &[u8]) -> Option<(Json, usize)> {
    let length = u64::from_le_bytes(*file.first_chunk::<LENGTH>()?) as usize;
    let text = file.get(LENGTH..LENGTH.checked_add(length)?)?;
    Some((serde_json::from_slice(text).ok()?, file.len() - LENGTH - length))
}

fn put_together(file: &mut Vec<u8>, header: &Json, elements: usize, random: &mut Random) {
    let elements = file.split_off(file.len() - elements);
    let mut text = header.to_string();
    // Readers may rely on elements that are aligned, or not.
    if !random.once_in(4) {
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    }
    *file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text.into_bytes());
    file.extend(elements);
}

/// Changes what the writer said in words, where a format keeps its settings.
fn metadata(header: &mut Json, random: &mut Random) {
    match header.get_mut("__metadata__") {
        Some(said) => json::mutate(said, random),
        None => json::mutate(header, random),
    }
}

/// Gives a tensor another dtype or shape of as many bytes, or exchanges two tensors: the file stays a right one.
fn same_bytes(header: &mut Json, random: &mut Random) {
    let Some(fields) = header.as_object_mut() else { return };
    let names: Vec<String> = fields.keys().filter(|name| *name != "__metadata__").cloned().collect();
    if names.is_empty() {
        return;
    }
    let [name, other] = [random.one_of(&names).clone(), random.one_of(&names).clone()];
    if random.once_in(3) {
        let [a, b] = [fields[&name].clone(), fields[&other].clone()];
        fields.insert(name, b);
        fields.insert(other, a);
        return;
    }
    if random.once_in(3) {
        // The same elements under another name.
        if let Some(tensor) = fields.remove(&name) {
            let text = name.replace("weight", "bias").replace("scales", "codes");
            fields.insert(if random.once_in(2) { text } else { name + "x" }, tensor);
        }
        return;
    }
    let tensor = &mut fields[&name];
    let width = |dtype: &str| match dtype {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        _ => 1,
    };
    let extents: Option<Vec<u64>> =
        tensor["shape"].as_array().map(|shape| shape.iter().filter_map(Json::as_u64).collect());
    let (Some(extents), Some(dtype)) = (extents, tensor["dtype"].as_str()) else { return };
    let product = extents.iter().try_fold(width(dtype), |product: u64, &extent| product.checked_mul(extent));
    let Some(bytes) = product else { return };
    let dtype = *random.one_of(&["F32", "F16", "BF16", "U8", "I8", "U32", "I32", "I64", "U16", "BOOL", "F8_E4M3"]);
    let elements = bytes / width(dtype);
    if elements * width(dtype) != bytes {
        return;
    }
    let last = extents.last().copied().unwrap_or(1).max(1);
    let shape: Vec<u64> = match random.below(5) {
        0 => vec![elements],
        1 => vec![elements, 1],
        2 => vec![1, elements],
        3 if elements % 2 == 0 => vec![2, elements / 2],
        _ if elements % last == 0 => vec![elements / last, last],
        _ => vec![elements],
    };
    tensor["dtype"] = dtype.into();
    tensor["shape"] = shape.into();
}

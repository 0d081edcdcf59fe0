//! Changes of what JSON says, so that it stays JSON.

use serde_json::{Map, Value as Json, json};

use crate::random::Random;

/// What readers look for.
const WORDS: [&str; 36] = [
    "",
    "F32",
    "F16",
    "BF16",
    "U8",
    "I8",
    "I32",
    "U32",
    "I64",
    "BOOL",
    "F8_E4M3",
    "f32",
    "bf16",
    "float16",
    "float32",
    "bfloat16",
    "nf4",
    "fp4",
    "nf4:64",
    "affine:4:64",
    "affine",
    "mxfp4",
    "int8",
    "weight",
    "scales",
    "biases",
    "codes",
    "implicit",
    "array",
    "type",
    "tacit.Nf4",
    "tacit.Affine",
    "tacit.Lora",
    "tacit.Concat",
    "gptq",
    "awq",
];

/// Changes one thing in `json`, JSON within strings included.
pub(crate) fn mutate(json: &mut Json, random: &mut Random) {
    let mut place = random.below(count(json));
    let donor = pick(json, random.below(count(json))).cloned();
    if let Some(chosen) = nth(json, &mut place) {
        change(chosen, donor.unwrap_or(Json::Null), random);
    }
}

fn count(json: &Json) -> usize {
    1 + match json {
        Json::Array(items) => items.iter().map(count).sum::<usize>(),
        Json::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// The `at`-th part, counted from the outside in.
fn pick(json: &Json, at: usize) -> Option<&Json> {
    fn search<'j>(json: &'j Json, at: &mut usize) -> Option<&'j Json> {
        if *at == 0 {
            return Some(json);
        }
        *at -= 1;
        match json {
            Json::Array(items) => items.iter().find_map(|item| search(item, at)),
            Json::Object(fields) => fields.values().find_map(|field| search(field, at)),
            _ => None,
        }
    }
    let mut at = at;
    search(json, &mut at)
}

fn nth<'j>(json: &'j mut Json, at: &mut usize) -> Option<&'j mut Json> {
    if *at == 0 {
        return Some(json);
    }
    *at -= 1;
    match json {
        Json::Array(items) => items.iter_mut().find_map(|item| nth(item, at)),
        Json::Object(fields) => fields.values_mut().find_map(|field| nth(field, at)),
        _ => None,
    }
}

fn change(json: &mut Json, donor: Json, random: &mut Random) {
    if random.once_in(6) {
        *json = if random.once_in(2) { donor } else { scalar(random) };
        return;
    }
    match json {
        Json::Null | Json::Bool(_) => *json = scalar(random),
        Json::Number(number) => {
            let by = |factor: f64| number.as_f64().map(|number| json!(number * factor));
            let plus = |delta: i64| number.as_i64().map(|number| json!(number.wrapping_add(delta)));
            let other = match random.below(6) {
                0 => plus(1),
                1 => plus(-1),
                2 => number.as_i64().map(|number| json!(number.wrapping_mul(2))),
                3 => number.as_i64().map(|number| json!(number / 2)),
                4 => by(-1.5),
                _ => None,
            };
            *json = other.unwrap_or_else(|| json!(random.odd_number()));
        }
        Json::String(text) => *text = changed_text(text, random),
        Json::Array(items) => change_items(items, donor, random),
        Json::Object(fields) => change_fields(fields, donor, random),
    }
}

fn changed_text(text: &str, random: &mut Random) -> String {
    if text.starts_with(['{', '['])
        && let Ok(mut inner) = serde_json::from_str(text)
    {
        mutate(&mut inner, random);
        return inner.to_string();
    }
    let mut characters: Vec<char> = text.chars().collect();
    let at = random.below(characters.len());
    match random.below(5) {
        0 => return (*random.one_of(&WORDS)).to_owned(),
        1 => characters.truncate(at),
        2 => characters.insert(at, *random.one_of(&['.', '/', '0', '9', '-', ':', 'ü', '\u{0}', '\u{202e}'])),
        3 if !characters.is_empty() => drop(characters.remove(at)),
        _ => characters.push(*random.one_of(&['.', '1', '/', ' '])),
    }
    characters.into_iter().collect()
}

fn change_items(items: &mut Vec<Json>, donor: Json, random: &mut Random) {
    let (at, other) = (random.below(items.len()), random.below(items.len()));
    match random.below(5) {
        0 => items.clear(),
        1 => drop(items.pop()),
        2 => items.insert(at, donor),
        3 if !items.is_empty() => items.swap(at, other),
        _ => items.extend(items.get(at).cloned()),
    }
}

fn change_fields(fields: &mut Map<String, Json>, donor: Json, random: &mut Random) {
    let keys: Vec<String> = fields.keys().cloned().collect();
    if keys.is_empty() {
        fields.insert((*random.one_of(&WORDS)).to_owned(), donor);
        return;
    }
    let [key, other] = [random.one_of(&keys), random.one_of(&keys)];
    match random.below(5) {
        0 => drop(fields.remove(key)),
        1 => {
            if let Some(value) = fields.remove(key) {
                let renamed = changed_text(key, random);
                fields.insert(renamed, value);
            }
        }
        2 => {
            let [a, b] = [fields.get(key).cloned(), fields.get(other).cloned()];
            fields.extend(a.map(|a| (other.clone(), a)));
            fields.extend(b.map(|b| (key.clone(), b)));
        }
        3 => {
            let value = fields.get(key).cloned();
            let name = changed_text(other, random);
            fields.extend(value.map(|value| (name, value)));
        }
        _ => drop(fields.insert((*random.one_of(&WORDS)).to_owned(), donor)),
    }
}

fn scalar(random: &mut Random) -> Json {
    match random.below(9) {
        0 => Json::Null,
        1 => json!(random.once_in(2)),
        2 => json!([]),
        3 => json!({}),
        4 => json!(random.odd_number() as i64),
        5 => json!(-1),
        6 => json!(*random.one_of(&[0.5, 1e308, 5e-324, -0.0])),
        7 => json!(random.one_of(&WORDS)),
        _ => json!(random.odd_number()),
    }
}

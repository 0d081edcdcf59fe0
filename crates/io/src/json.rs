//! JSON whose objects keep their order, written as Python's `json` writes it.
//!
//! Other libraries' configurations are text that Python wrote, with `Infinity`, `-Infinity` and `NaN` for floats that
//! JSON lacks. Read and written again they are the same bytes.

use std::borrow::Cow;
use std::path::Path;
use std::{fmt, fs};

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use tacit_core::Error;
use tacit_files::{current, current_if_there};

/// A JSON value.
///
/// ```
/// use tacit_io::json::Json;
///
/// let text = r#"{"shape": [4, 8], "eps": 1e-06, "name": "\u00e9"}"#;
/// let json = Json::parse(text).unwrap();
/// assert_eq!(json.get("shape"), Some(&Json::List(vec![Json::Integer(4), Json::Integer(8)])));
/// assert_eq!(json.line(), text);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without a point or an exponent, of 64 bits.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object, in the order of the text; no key is there twice.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads a text, in which Python's `Infinity`, `-Infinity` and `NaN` are floats.
    ///
    /// An object that has a key twice is refused: readers differ in which of the two they take.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        let standard = standard(text);
        let mut json: Self = serde_json::from_str(&standard).map_err(|error| error.to_string())?;
        if let Cow::Owned(_) = standard {
            json.restore();
        }
        Ok(json)
    }

    /// Puts floats in the place of the objects by which [`standard`] spells them.
    fn restore(&mut self) {
        let float = match self.entries() {
            [(key, Self::Text(word))] if key == FLOAT => {
                WORDS.iter().find(|(known, _)| known == word).map(|(_, float)| *float)
            }
            _ => None,
        };
        match (float, self) {
            (Some(float), json) => *json = Self::Float(float),
            (None, Self::Object(entries)) => entries.iter_mut().for_each(|(_, value)| value.restore()),
            (None, Self::List(values)) => values.iter_mut().for_each(Self::restore),
            (None, _) => {}
        }
    }

    /// Reads a file that has one object.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or it is no JSON object.
    pub fn open(file: impl AsRef<Path>) -> tacit_core::Result<Self> {
        let file = file.as_ref();
        Self::read(file, &current(file)?)
    }

    /// Reads a file whose content is at this place.
    fn read(file: &Path, at: &Path) -> tacit_core::Result<Self> {
        let text = fs::read(at).map_err(Error::file("read", file))?;
        let json = String::from_utf8(text).map_err(|error| error.to_string()).and_then(|text| Self::parse(&text));
        let wrong = |reason: String| Error::checkpoint(file, None, reason, "fetch it again");
        match json {
            Ok(json @ Self::Object(_)) => Ok(json),
            Ok(_) => Err(wrong("it is no JSON object".to_owned())),
            Err(reason) => Err(wrong(format!("it is no JSON: {reason}"))),
        }
    }

    /// Reads a file as [`open`](Self::open) does, where it is there.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), but that there is no such file.
    pub fn open_if_there(file: impl AsRef<Path>) -> tacit_core::Result<Option<Self>> {
        let file = file.as_ref();
        current_if_there(file)?.map(|at| Self::read(file, &at)).transpose()
    }

    /// The value of a key, if this is an object that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.entries().iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// The keys and values of an object, in order; empty for anything else.
    #[must_use]
    pub fn entries(&self) -> &[(String, Json)] {
        if let Self::Object(entries) = self { entries } else { &[] }
    }

    /// Gives an object a value of this key: in the place of the one that it has, or at the end.
    ///
    /// What is no object becomes one.
    pub fn set(&mut self, key: &str, value: Json) {
        if !matches!(self, Self::Object(_)) {
            *self = Self::Object(Vec::new());
        }
        if let Self::Object(entries) = self {
            match entries.iter_mut().find(|(known, _)| known == key) {
                Some((_, old)) => *old = value,
                None => entries.push((key.to_owned(), value)),
            }
        }
    }

    /// The value of a key, which is made if there is none; anything but an object is replaced by one.
    pub(crate) fn entry(&mut self, key: &str) -> &mut Json {
        if self.get(key).is_none() {
            self.set(key, Json::Null);
        }
        let entries = if let Self::Object(entries) = self { entries.as_mut_slice() } else { &mut [] };
        let at = entries.iter().position(|(known, _)| known == key).unwrap_or_default();
        &mut entries[at].1
    }

    /// Removes a key from an object, and returns its value if it was there.
    pub fn remove(&mut self, key: &str) -> Option<Json> {
        let Self::Object(entries) = self else { return None };
        let at = entries.iter().position(|(known, _)| known == key)?;
        Some(entries.remove(at).1)
    }

    /// The string, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The integer, if it is one that `T` holds.
    #[must_use]
    pub fn integer<T: TryFrom<i128>>(&self) -> Option<T> {
        if let Self::Integer(integer) = self { T::try_from(*integer).ok() } else { None }
    }

    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(integer) => Some(*integer as f64),
            Self::Float(float) => Some(*float),
            _ => None,
        }
    }

    /// `true` or `false`, if it is one of them.
    #[must_use]
    pub fn flag(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    /// Sorts the keys of an object.
    pub(crate) fn sort(&mut self) {
        if let Self::Object(entries) = self {
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
    }

    /// The text on one line, as `json.dumps` writes it.
    #[must_use]
    pub fn line(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, None, 0);
        text
    }

    /// The text with an entry a line, as `json.dumps(indent=..)` writes it.
    #[must_use]
    pub fn indented(&self, spaces: usize) -> String {
        let mut text = String::new();
        self.write(&mut text, Some(spaces), 0);
        text
    }

    fn write(&self, text: &mut String, indent: Option<usize>, depth: usize) {
        match self {
            Self::Null => text.push_str("null"),
            Self::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
            Self::Integer(integer) => text.push_str(&integer.to_string()),
            Self::Float(float) => text.push_str(&python_float(*float)),
            Self::Text(value) => write_string(text, value),
            Self::List(values) => {
                let write = |value: &Json, text: &mut String| value.write(text, indent, depth + 1);
                write_items(text, ('[', ']'), values, indent, depth, write);
            }
            Self::Object(entries) => {
                let write = |(key, value): &(String, Json), text: &mut String| {
                    write_string(text, key);
                    text.push_str(": ");
                    value.write(text, indent, depth + 1);
                };
                write_items(text, ('{', '}'), entries, indent, depth, write);
            }
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())
    }
}

/// Floats that JSON has not, as Python writes them.
const WORDS: [(&str, f64); 3] = [("-Infinity", f64::NEG_INFINITY), ("Infinity", f64::INFINITY), ("NaN", f64::NAN)];

/// The only key of an object that stands for a float.
const FLOAT: &str = "\0float";

/// The text as JSON, with an object for each of Python's floats that JSON has not.
pub(crate) fn standard(text: &str) -> Cow<'_, str> {
    if !text.contains("Infinity") && !text.contains("NaN") {
        return Cow::Borrowed(text);
    }
    let (mut standard, mut rest, mut is_found) = (String::with_capacity(text.len()), text, false);
    while let Some(next) = rest.chars().next() {
        if let Some(&(word, _)) = WORDS.iter().find(|(word, _)| rest.starts_with(word)) {
            standard.extend([r#"{"\u0000float":""#, word, r#""}"#]);
            (rest, is_found) = (&rest[word.len()..], true);
            continue;
        }
        let length = if next == '"' { string_length(rest) } else { next.len_utf8() };
        let (piece, behind) = rest.split_at(length);
        standard.push_str(piece);
        rest = behind;
    }
    if is_found { Cow::Owned(standard) } else { Cow::Borrowed(text) }
}

/// The bytes of the string that a text begins with, quotes included; all of one that does not end.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

fn write_items<T>(
    text: &mut String,
    (open, close): (char, char),
    items: &[T],
    indent: Option<usize>,
    depth: usize,
    write: impl Fn(&T, &mut String),
) {
    let new_line = |text: &mut String, depth: usize| {
        if let Some(spaces) = indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', spaces * depth));
        }
    };
    text.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            text.push_str(if indent.is_some() { "," } else { ", " });
        }
        new_line(text, depth + 1);
        write(item, text);
    }
    if !items.is_empty() {
        new_line(text, depth);
    }
    text.push(close);
}

/// Python's text of a float: the shortest digits that are read as this number, with an exponent of two digits or more.
fn python_float(float: f64) -> String {
    match float {
        f64::INFINITY => return "Infinity".to_owned(),
        f64::NEG_INFINITY => return "-Infinity".to_owned(),
        _ if float.is_nan() => return "NaN".to_owned(),
        _ => {}
    }
    let text = format!("{float:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn write_string(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            ' '..='~' => text.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    text.extend(["\\u".to_owned(), format!("{unit:04x}")]);
                }
            }
        }
    }
    text.push('"');
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let values = std::iter::from_fn(|| list.next_element().transpose());
        values.collect::<Result<Vec<Json>, _>>().map(Json::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let (mut entries, mut keys) = (Vec::new(), std::collections::HashSet::new());
        while let Some((key, value)) = object.next_entry::<String, Json>()? {
            if !keys.insert(key.clone()) {
                return Err(de::Error::custom(format!("the key {key:?} is there twice")));
            }
            entries.push((key, value));
        }
        Ok(Json::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_python_are_written_as_they_were_read() {
        // Written by Python 3.11's `json.dumps` with its defaults.
        for text in [
            "null",
            "[]",
            "{}",
            r#"{"b": 1, "a": [true, false, null]}"#,
            "[0.0001, 1e-05, 1.5e-07, 123456789.0, 1e+16, 1.7976931348623157e+308, -0.0, 0.1, 2.3434395790100098]",
            "[18446744073709551615, -9223372036854775808]",
            r#"["\u00e9\ud83d\ude00\u007f\u0000\"\\/\n\r\t\b\f"]"#,
            r#"{"Infinity": [0.0, Infinity, -Infinity, NaN, "Infinity", "\\", {"NaN": NaN}, "\\\"NaN"]}"#,
        ] {
            assert_eq!(Json::parse(text).unwrap().line(), text);
        }
        // And with `indent=2`.
        let text = "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}";
        assert_eq!(Json::parse(text).unwrap().indented(2), text);
    }

    #[test]
    fn words_of_python_are_floats_and_other_words_are_refused() {
        let json = Json::parse(r#"{"a": [-Infinity, NaN], "b": Infinity}"#).unwrap();
        assert_eq!(json.get("b"), Some(&Json::Float(f64::INFINITY)));
        let Some(Json::List(list)) = json.get("a") else { panic!("a list") };
        assert_eq!(list[0], Json::Float(f64::NEG_INFINITY));
        assert!(list[1].number().is_some_and(f64::is_nan));
        for text in ["[inf]", "[nan]", "[+Infinity]", "[--Infinity]", "[InfinityNaN]", "[Infinity", r#"["NaN]"#] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let error = Json::parse(r#"{"a": {"b": 1, "b": 2}}"#).unwrap_err();
        // The column is serde_json's, and is the next one's where another crate of the build asks it to keep raw text.
        assert!(error.starts_with(r#"the key "b" is there twice at line 1 column 2"#), "{error}");
    }

    #[test]
    fn what_is_set_keeps_the_place_of_what_was_there() {
        let mut json = Json::parse(r#"{"a": 1, "b": 2}"#).unwrap();
        json.set("a", Json::Null);
        json.set("c", Json::Bool(true));
        assert_eq!(json.line(), r#"{"a": null, "b": 2, "c": true}"#);
    }
}

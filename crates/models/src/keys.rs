//! A JSON object of a configuration, whose errors name the file and the key.

use std::path::Path;

use tacit_core::{Error, Result};
use tacit_io::json::Json;

/// More of anything than a model has: words, widths, heads. What is computed of two of them is still a number.
const LARGEST: i32 = 1 << 24;

/// An object in a file; a key whose value is `null` is not there.
#[derive(Clone, Debug)]
pub(crate) struct Keys<'j> {
    file: &'j Path,
    /// The keys under which the object is, each with its dot; nothing where it is the whole.
    under: String,
    json: &'j Json,
}

impl<'j> Keys<'j> {
    pub(crate) fn new(file: &'j Path, json: &'j Json) -> Self {
        Self { file, under: String::new(), json }
    }

    /// The error that the value of a key is not what it should be.
    pub(crate) fn wrong(&self, key: &str, reason: impl Into<String>, help: impl Into<String>) -> Error {
        Error::checkpoint(self.file, Some(&format!("{}{key}", self.under)), reason, help)
    }

    fn get<T>(&self, key: &str, kind: &str, read: impl FnOnce(&'j Json) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.json.get(key).filter(|value| **value != Json::Null) else { return Ok(None) };
        let wrong = || self.wrong(key, format!("it is {value}, and should be {kind}"), "fetch the configuration again");
        read(value).map(Some).ok_or_else(wrong)
    }

    /// Whether the key is there, though it be with `null`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.json.get(key).is_some()
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'j str>> {
        self.get(key, "a string", Json::text)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Json::flag)
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a number", |value| value.number().filter(|number| number.is_finite()))
    }

    /// A number by which something is divided, or whose logarithm is taken: above 0, and in `f32` too.
    pub(crate) fn positive_number(&self, key: &str) -> Result<Option<f64>> {
        let positive = |number: &f64| *number as f32 > 0.0 && (*number as f32).is_finite();
        self.get(key, "a number above 0 in the range of f32", |value| value.number().filter(positive))
    }

    /// Several numbers above 0.
    pub(crate) fn positive_numbers(&self, key: &str) -> Result<Vec<f32>> {
        let positive = |value: &Json| value.number().map(|number| number as f32).filter(|number| *number > 0.0);
        let numbers =
            self.get(key, "a list of numbers above 0", |value| items(value)?.iter().map(positive).collect())?;
        numbers.ok_or_else(|| self.missing(key))
    }

    /// A number of a key that has to be there.
    pub(crate) fn needed(&self, key: &str) -> Result<f64> {
        self.positive_number(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn integer(&self, key: &str) -> Result<Option<i32>> {
        self.get(key, "a whole number", Json::integer)
    }

    pub(crate) fn integers(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.get(key, "a list of whole numbers", |value| items(value)?.iter().map(Json::integer).collect())
    }

    /// One whole number, or several.
    pub(crate) fn integers_or_one(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.get(key, "a whole number, or a list of them", |value| match items(value) {
            Some(items) => items.iter().map(Json::integer).collect(),
            None => value.integer().map(|number| vec![number]),
        })
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'j str>>> {
        self.get(key, "a list of strings", |value| items(value)?.iter().map(Json::text).collect())
    }

    /// A number of things of which there is at least one.
    pub(crate) fn size(&self, key: &str) -> Result<i32> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// The same by the first of two keys that is there.
    pub(crate) fn size_of_either(&self, key: &str, other: &str) -> Result<i32> {
        match self.positive(key)? {
            Some(size) => Ok(size),
            None => self.positive(other)?.ok_or_else(|| self.missing(key)),
        }
    }

    pub(crate) fn size_or(&self, key: &str, default: i32) -> Result<i32> {
        Ok(self.positive(key)?.unwrap_or(default))
    }

    pub(crate) fn section(&self, key: &str) -> Result<Option<Self>> {
        let object = self.get(key, "an object", |value| matches!(value, Json::Object(_)).then_some(value))?;
        Ok(object.map(|json| Self { file: self.file, under: format!("{}{key}.", self.under), json }))
    }

    fn positive(&self, key: &str) -> Result<Option<i32>> {
        let Some(size) = self.get(key, "a whole number above 0", |value| value.integer().filter(|size| *size > 0))?
        else {
            return Ok(None);
        };
        if size > LARGEST {
            return Err(self.wrong(
                key,
                format!("it is {size}, and no model has more than {LARGEST}"),
                "fetch the configuration again",
            ));
        }
        Ok(Some(size))
    }

    fn missing(&self, key: &str) -> Error {
        self.wrong(key, "it is not there", "fetch the configuration again")
    }
}

fn items(value: &Json) -> Option<&[Json]> {
    if let Json::List(items) = value { Some(items) } else { None }
}

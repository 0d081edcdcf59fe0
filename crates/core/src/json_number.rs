//! Numbers of JSON, which has none that are not finite: these are the texts `NaN`, `inf` and `-inf`.
//!
//! For `#[serde(with = "tacit_core::json_number")]`, and `json_number::optional` for an `Option`. serde's own writer makes
//! `null` of all three, so that a reader cannot tell an infinite error from one that is no number, or was not measured.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a number.
///
/// # Errors
///
/// The serializer fails.
pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.is_finite() { serializer.serialize_f64(*number) } else { serializer.collect_str(number) }
}

/// Reads a number.
///
/// # Errors
///
/// It is neither a number nor one of the three texts.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Finite(f64),
        Other(String),
    }
    match Number::deserialize(deserializer)? {
        Number::Finite(number) => Ok(number),
        Number::Other(text) if ["NaN", "inf", "-inf"].contains(&text.as_str()) => Ok(text.parse().unwrap_or(f64::NAN)),
        Number::Other(text) => Err(D::Error::invalid_value(Unexpected::Str(&text), &"a number, NaN, inf or -inf")),
    }
}

/// A number that may not be there, which is `null`.
pub mod optional {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Number(#[serde(with = "super")] f64);

    /// Writes a number.
    ///
    /// # Errors
    ///
    /// The serializer fails.
    pub fn serialize<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        number.map(Number).serialize(serializer)
    }

    /// Reads a number.
    ///
    /// # Errors
    ///
    /// It is neither `null`, a number nor one of the three texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Number>::deserialize(deserializer)?.map(|Number(number)| number))
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize, Debug)]
    struct Both {
        #[serde(with = "super")]
        one: f64,
        #[serde(with = "super::optional")]
        other: Option<f64>,
    }

    #[test]
    fn every_number_comes_back() {
        for number in [0.1, -0.0, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let text = serde_json::to_string(&Both { one: number, other: Some(number) }).expect("JSON");
            let Both { one, other } = serde_json::from_str(&text).expect("a number");
            assert_eq!([one, other.expect("it is there")].map(f64::to_bits), [number.to_bits(); 2], "{text}");
        }
        let text = serde_json::to_string(&Both { one: f64::NAN, other: None }).expect("JSON");
        assert_eq!(text, r#"{"one":"NaN","other":null}"#);
        assert!(serde_json::from_str::<Both>(&text).expect("both").other.is_none());
        assert!(serde_json::from_str::<Both>(r#"{"one":"many","other":null}"#).is_err());
    }
}

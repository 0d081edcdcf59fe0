//! How the text of a format is read, and which formats there are.

use std::str::FromStr;

use tacit_core::__private::inventory;
use tacit_core::__private::serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use tacit_core::{Error, Result};

use super::any::AnyFormat;
use super::declaration::TextForm;
use super::fit;
use super::fitted::Fitted;
use super::stochastic::{self, Stochastic};

/// The format of a text such as `affine:4:64`, with a [`Fit`](super::Fit) behind it where it is written so: `nf4:64+search`, and
/// behind all of that `+stochastic`, where its codes are [drawn](Stochastic).
///
/// That the format has such a number of bits or of elements in a block is checked by [`supported`](super::Quantizer::supported), and
/// where something is quantized.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_arrays::format::{self, Affine, AnyFormat};
///
/// assert_eq!(format::parse("affine:4:64")?, AnyFormat::from(Affine { bits: 4, group: 64 }));
/// assert!(format::parse("affine:4").is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// No format has this name, or several have it, or this one has other options, or no scales to fit.
pub fn parse(text: &str) -> Result<AnyFormat> {
    match stochastic::split(text) {
        Some(format) => Ok(Stochastic::new(fitted(format)?)?.into()),
        None => fitted(text),
    }
}

fn fitted(text: &str) -> Result<AnyFormat> {
    match fit::split(text) {
        Some((format, fit)) => Ok(Fitted::new(named(format)?, fit)?.into()),
        None => named(text),
    }
}

fn named(text: &str) -> Result<AnyFormat> {
    let (name, options) = split(text);
    let mut entries = inventory::iter::<FormatEntry>().filter(|entry| entry.name == name);
    let Some(entry) = entries.next() else {
        return Err(Error::invalid(
            format!("no format is named {name}"),
            format!("name one of {}", names().join(", ")),
        ));
    };
    // Which of two comes first is the linker's choice.
    if entries.next().is_some() {
        return Err(Error::invalid(
            format!("several formats of this program are named {name}"),
            "give each a `TextForm::NAME` of its own",
        ));
    }
    (entry.parse)(&options).ok_or_else(|| no_options(text, entry.forms))
}

/// The names of all formats of this program, sorted: those of Tacit, and those that were registered beside them.
#[must_use]
pub fn names() -> Vec<&'static str> {
    forms().into_iter().map(|(name, _)| name).collect()
}

/// The names of all formats, sorted, each with the texts that are read for it: `nf4:BLOCK or nf4:BLOCK:double`.
#[must_use]
pub fn forms() -> Vec<(&'static str, &'static str)> {
    let mut forms: Vec<_> = inventory::iter::<FormatEntry>().map(|entry| (entry.name, entry.forms)).collect();
    forms.sort_unstable();
    forms
}

fn split(text: &str) -> (&str, Vec<&str>) {
    let mut parts = text.split(':').map(str::trim);
    (parts.next().unwrap_or_default(), parts.collect())
}

fn no_options(text: &str, forms: &str) -> Error {
    Error::invalid(format!("the format {text} has no such options"), format!("write {forms}"))
}

/// The entry of a format that [`parse`] reads.
pub struct FormatEntry {
    name: &'static str,
    forms: &'static str,
    parse: fn(&[&str]) -> Option<AnyFormat>,
}

impl FormatEntry {
    /// The entry of the format `F`.
    #[must_use]
    pub const fn for_format<F: TextForm>() -> Self {
        const { assert!(is_name(F::NAME), "the name of a format is empty, or has a space, `:` or `+`, which end a name") };
        let parse: fn(&[&str]) -> Option<AnyFormat> = |options| Some(F::from_options(options)?.into());
        Self { name: F::NAME, forms: F::FORMS, parse }
    }
}

inventory::collect!(FormatEntry);

/// Whether a text that begins with this name is read as having it.
const fn is_name(name: &str) -> bool {
    let (bytes, mut at) = (name.as_bytes(), 0);
    while at < bytes.len() {
        if matches!(bytes[at], b'\0'..=b' ' | b':' | b'+') {
            return false;
        }
        at += 1;
    }
    !bytes.is_empty()
}

/// Lets formats be printed, read by [`format::parse`](parse) and stored by serde, by their [`TextForm`].
#[macro_export]
macro_rules! register_format {
    ($($format:ty),+ $(,)?) => {$(
        const _: () = {
            $crate::format::__private::inventory::submit! { $crate::format::FormatEntry::for_format::<$format>() }

            impl ::core::fmt::Display for $format {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    f.write_str(<Self as $crate::format::__private::TextForm>::NAME)?;
                    f.write_str(&$crate::format::__private::TextForm::options(self))
                }
            }

            impl ::core::str::FromStr for $format {
                type Err = $crate::format::__private::Error;

                fn from_str(text: &str) -> $crate::format::__private::Result<Self> {
                    $crate::format::__private::read(text)
                }
            }

            impl $crate::format::__private::serde::Serialize for $format {
                fn serialize<S: $crate::format::__private::serde::Serializer>(
                    &self,
                    serializer: S,
                ) -> ::core::result::Result<S::Ok, S::Error> {
                    $crate::format::__private::serialized(self, serializer)
                }
            }

            impl<'de> $crate::format::__private::serde::Deserialize<'de> for $format {
                fn deserialize<D: $crate::format::__private::serde::Deserializer<'de>>(
                    deserializer: D,
                ) -> ::core::result::Result<Self, D::Error> {
                    $crate::format::__private::deserialized(deserializer)
                }
            }
        };
    )+};
}

/// What [`register_format!`](crate::register_format) refers to.
#[doc(hidden)]
pub mod __private {
    pub use super::{deserialized, read, serialized};
    pub use crate::format::declaration::TextForm;
    pub use tacit_core::__private::{inventory, serde};
    pub use tacit_core::{Error, Result};
}

/// The format `F` of a text.
///
/// # Errors
///
/// It is the text of another format, or of options that this one has not.
#[doc(hidden)]
pub fn read<F: TextForm>(text: &str) -> Result<F> {
    let (name, options) = split(text);
    let format = if name == F::NAME { F::from_options(&options) } else { None };
    format.ok_or_else(|| no_options(text, F::FORMS))
}

#[doc(hidden)]
pub fn serialized<F: TextForm, S: Serializer>(format: &F, serializer: S) -> Result<S::Ok, S::Error> {
    let text = format.to_string();
    written(&text, read::<F>(&text).map(|read| read.to_string()), serializer)
}

/// Writes the text of a format; one that would not be `read` as it again is refused, and so the file that is to hold it.
fn written<S: Serializer>(text: &str, read: Result<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let reason = match read {
        Ok(read) if read == text => return serializer.serialize_str(text),
        Ok(read) => format!("the format {text} would be read as {read}"),
        Err(error) => format!("the format {text} could not be read again: {}", error.clause()),
    };
    let help = "implement `TextForm` so that it reads what it writes, and add `register_format!` once";
    Err(ser::Error::custom(format!("{reason}\nhelp: {help}")))
}

#[doc(hidden)]
pub fn deserialized<'de, F: TextForm, D: Deserializer<'de>>(deserializer: D) -> Result<F, D::Error> {
    read(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

impl FromStr for AnyFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text)
    }
}

impl Serialize for AnyFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.to_string();
        written(&text, parse(&text).map(|read| read.to_string()), serializer)
    }
}

impl<'de> Deserialize<'de> for AnyFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl TryFrom<&str> for AnyFormat {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<&String> for AnyFormat {
    type Error = Error;

    fn try_from(text: &String) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<String> for AnyFormat {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

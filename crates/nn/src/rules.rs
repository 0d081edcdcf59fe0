//! Which parameters of a model take which format.

mod order;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tacit_arrays::format::AnyFormat;
use tacit_core::{Aval, Error, Result};

use crate::matrices::no_matrix;
use crate::{Parameters, Pattern};
use order::Order;

/// Formats by path, of which the first that matches counts.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::nn;
/// use tacit_arrays::format::Affine;
/// use tacit_nn::{Model, Rules};
///
/// let rules = Rules::new().skip("layers.0.*")?.quantize("layers.*.weight", Affine { bits: 8, group: 64 })?;
/// assert_eq!(rules, Rules::new().skip("layers.0.*")?.quantize("layers.*.weight", "affine:8:64")?);
/// assert_eq!(rules, Rules::from_json(r#"{"layers.0.*": "skip", "layers.*.weight": "affine:8:64"}"#)?);
/// assert_eq!(rules, Rules::from_toml("'layers.0.*' = 'skip'\n'layers.*.weight' = 'affine:8:64'")?);
///
/// let layers = nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Linear::new(64, 64)?);
/// let model = Model::new(layers)?.quantize("*", &rules)?;
/// assert_eq!(model.get("layers.1.weight")?.to_string(), "Affine(f32[64,64])");
/// assert_eq!(model.get("layers.0.weight")?.to_string(), "f32[64,64]");
/// # Ok(())
/// # }
/// ```
///
/// A file has a table of these texts, in their order. A parameter that is no [matrix](Self::is_matrix), such as a bias, is quantized
/// only where the pattern is its path.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// The places of their patterns.
    order: Order,
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) pattern: Pattern,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Skip,
    Quantize(AnyFormat),
}

/// What gives parameters their formats: one format, a value such as `Affine { bits: 8, group: 64 }` or its text, or
/// [`Rules`].
#[diagnostic::on_unimplemented(message = "`{Self}` is neither a format, nor the text of one, nor rules")]
pub trait IntoRules {
    /// The rules; one format is that of all parameters.
    ///
    /// # Errors
    ///
    /// The text is no format, or the format has no such options.
    fn into_rules(self) -> Result<Rules>;
}

impl<F: TryInto<AnyFormat, Error: Into<Error>>> IntoRules for F {
    fn into_rules(self) -> Result<Rules> {
        let rules = Rules::all(self.try_into().map_err(Into::into)?);
        rules.supported()?;
        Ok(rules)
    }
}

impl IntoRules for &Rules {
    fn into_rules(self) -> Result<Rules> {
        Ok(self.clone())
    }
}

/// What a file says of a parameter that stays as it is.
const SKIP: &str = "skip";

impl Rules {
    /// An empty list of rules.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule: these parameters take this format, a value such as `Affine { bits: 8, group: 64 }` or its text.
    ///
    /// # Errors
    ///
    /// The text is no pattern or no format, or the format has no such options.
    pub fn quantize<P, F>(self, pattern: P, format: F) -> Result<Self>
    where
        P: TryInto<Pattern, Error: Into<Error>>,
        F: TryInto<AnyFormat, Error: Into<Error>>,
    {
        let format = format.try_into().map_err(Into::into)?;
        format.supported()?;
        self.with(pattern, Action::Quantize(format))
    }

    /// Adds a rule: these parameters stay as they are.
    ///
    /// # Errors
    ///
    /// The text is no pattern.
    pub fn skip(self, pattern: impl TryInto<Pattern, Error: Into<Error>>) -> Result<Self> {
        self.with(pattern, Action::Skip)
    }

    fn with(mut self, pattern: impl TryInto<Pattern, Error: Into<Error>>, action: Action) -> Result<Self> {
        let pattern = pattern.try_into().map_err(Into::into)?;
        self.order.add(self.rules.len(), &pattern);
        self.rules.push(Rule { pattern, action });
        Ok(self)
    }

    /// Reads the rules in a file, TOML or JSON by its extension.
    ///
    /// # Errors
    ///
    /// The file cannot be read ([`Error::File`]), or does not hold rules ([`Error::Checkpoint`]), as for
    /// [`from_toml`](Self::from_toml) and [`from_json`](Self::from_json).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let wrong = |reason: &str, help| Error::checkpoint(path, None, reason, help);
        let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
        // The mark that editors on Windows put before a text.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let read = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => toml::from_str(text).map_err(|error| one_line(text, &error)),
            Some("json") => serde_json::from_str(text).map_err(|error| error.to_string()),
            _ => return Err(wrong("the extension says neither TOML nor JSON", "name it .toml or .json")),
        };
        read.map_err(|error| wrong(&error, FORM))
    }

    /// Reads a table of TOML.
    ///
    /// # Errors
    ///
    /// It is no table of texts, a key is no pattern, or a value is no format.
    pub fn from_toml(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| Error::invalid(format!("the rules: {}", one_line(text, &error)), FORM))
    }

    /// Reads an object of JSON.
    ///
    /// # Errors
    ///
    /// It is no object of texts, a key is no pattern, or a value is no format.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| Error::invalid(format!("the rules: {error}"), FORM))
    }

    fn from_list(rules: Vec<Rule>) -> Self {
        Self { order: Order::from_patterns(rules.iter().map(|rule| &rule.pattern)), rules }
    }

    pub(crate) fn all(format: AnyFormat) -> Self {
        Self::from_list(vec![Rule { pattern: Pattern::all(), action: Action::Quantize(format) }])
    }

    /// Whether all formats have options that they can have.
    pub(crate) fn supported(&self) -> Result<()> {
        self.rules.iter().try_for_each(|rule| match &rule.action {
            Action::Quantize(format) => format.supported(),
            Action::Skip => Ok(()),
        })
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The format of a parameter; `None` if a rule skips it or no rule names it.
    #[must_use]
    pub fn format(&self, path: &str, aval: &Aval) -> Option<&AnyFormat> {
        match &self.rule(&[path], aval)?.action {
            Action::Skip => None,
            Action::Quantize(format) => Some(format),
        }
    }

    /// The format of a parameter where a pattern gives formats to matrices alone: `None` also for what is no
    /// [matrix](Self::is_matrix), unless the rule names its path.
    #[must_use]
    pub fn format_of_matrix(&self, path: &str, aval: &Aval) -> Option<&AnyFormat> {
        let Rule { pattern, action: Action::Quantize(format) } = self.rule(&[path], aval)? else { return None };
        (pattern.is_exact() || Self::is_matrix(path, aval)).then_some(format)
    }

    /// Whether a parameter is a matrix of a product, which a pattern may give a format: it has two axes or more, and is no filter of
    /// the convolutions in hybrid decoders, which are known by their names.
    ///
    /// ```
    /// use mlx_rs::Dtype;
    /// use tacit_core::Aval;
    /// use tacit_nn::Rules;
    ///
    /// let filter = Aval::new(&[64, 4, 1], Dtype::Float32);
    /// assert!(!Rules::is_matrix("model.layers.0.linear_attn.conv1d.weight", &filter));
    /// assert!(Rules::is_matrix("model.layers.0.linear_attn.out_proj.weight", &Aval::new(&[8, 64], Dtype::Float32)));
    /// ```
    #[must_use]
    pub fn is_matrix(path: &str, aval: &Aval) -> bool {
        no_matrix(path, aval).is_none()
    }

    /// The rules as JSON, which [`from_json`](Self::from_json) reads.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use tacit_nn::Rules;
    ///
    /// let rules = Rules::new().quantize("*.weight", "nf4:64")?;
    /// assert_eq!(rules.to_text()?, r#"{"*.weight":"nf4:64"}"#);
    /// assert_eq!(Rules::from_json(&rules.to_text()?)?, rules);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A pattern has no text: it is a [predicate](Pattern::when); or that of a format could not be read again.
    pub fn to_text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| {
            let said = error.to_string();
            let (reason, help) =
                said.split_once("\nhelp: ").unwrap_or((said.as_str(), "name formats and patterns that have one"));
            Error::invalid(format!("the rules have no text: {reason}"), help)
        })
    }

    /// What tells these rules from others in one run of a program.
    pub(crate) fn identity(&self) -> String {
        let lines = self.rules.iter().map(|rule| format!("{}: {}", rule.pattern.identity(), rule.action));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// These rules by the paths of these parameters, which they may also name by the `others` of a path, such as its name in a file.
    ///
    /// A rule that names parameters by other names alone becomes one for each of them. All others stay, those too that decide nothing.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_nn::{Parameters, Rules};
    ///
    /// let parameters = Parameters::from([("layers.0.up.weight".to_owned(), ops::ones::<f32>(&[8, 64])?.into())]);
    /// let rules = Rules::new().quantize("blk.*.ffn_up.weight", "nf4:64")?.skip("head.weight")?;
    /// let rules = rules.by_names(&parameters, |_| ["blk.0.ffn_up.weight".to_owned()])?;
    /// assert_eq!(rules, Rules::new().quantize("layers.0.up.weight", "nf4:64")?.skip("head.weight")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A parameter has no aval.
    pub fn by_names<I>(&self, parameters: &Parameters, others: impl Fn(&str) -> I) -> Result<Self>
    where
        I: IntoIterator<Item = String>,
    {
        // Whether each rule decides a parameter by its path, and rules for what it decides by another name.
        let mut decided: Vec<(bool, Vec<Rule>)> = self.rules.iter().map(|_| (false, Vec::new())).collect();
        for (path, value) in parameters {
            let (aval, others): (_, Vec<String>) = (value.aval()?, others(path).into_iter().collect());
            let names: Vec<&str> = [path.as_str()].into_iter().chain(others.iter().map(String::as_str)).collect();
            let Some(place) = self.place(&names, &aval) else { continue };
            let (Rule { pattern, action }, (by_path, more)) = (&self.rules[place], &mut decided[place]);
            if pattern.matches(path, &aval) {
                *by_path = true;
            } else if Self::is_matrix(path, &aval) || pattern.is_exact() {
                // What is no matrix is quantized where its own name says so.
                more.push(Rule { pattern: Pattern::exact(path.as_str()), action: action.clone() });
            }
        }
        let rules = self.rules.iter().zip(decided).flat_map(|(rule, (by_path, more))| {
            let original = (by_path || more.is_empty()).then(|| rule.clone());
            original.into_iter().chain(more)
        });
        Ok(Self::from_list(rules.collect()))
    }

    /// The patterns of the rules that name one of these parameters as [`by_names`](Self::by_names) knows it, whichever rule decides it.
    pub(crate) fn naming<I>(&self, parameters: &Parameters, others: impl Fn(&str) -> I) -> Result<HashSet<String>>
    where
        I: IntoIterator<Item = String>,
    {
        let mut naming = HashSet::new();
        for (path, value) in parameters {
            let (aval, others): (_, Vec<String>) = (value.aval()?, others(path).into_iter().collect());
            let names = |pattern: &Pattern| {
                let is_open = Self::is_matrix(path, &aval) || pattern.is_exact();
                pattern.matches(path, &aval) || (is_open && others.iter().any(|other| pattern.matches(other, &aval)))
            };
            let named = self.rules.iter().filter(|rule| names(&rule.pattern));
            naming.extend(named.map(|rule| rule.pattern.to_string()));
        }
        Ok(naming)
    }

    /// These rules for what a pattern names, and none for the others.
    pub(crate) fn within(&self, pattern: impl TryInto<Pattern, Error: Into<Error>>) -> Result<Self> {
        let pattern = pattern.try_into().map_err(Into::into)?;
        let within = |rule: &Rule| Rule { pattern: rule.pattern.and(&pattern), action: rule.action.clone() };
        Ok(Self::from_list(self.rules.iter().map(within).collect()))
    }

    /// The first rule that names a parameter by one of its paths.
    pub(crate) fn rule(&self, paths: &[&str], aval: &Aval) -> Option<&Rule> {
        self.place(paths, aval).map(|place| &self.rules[place])
    }

    fn place(&self, paths: &[&str], aval: &Aval) -> Option<usize> {
        self.order.first(paths, aval, |place| &self.rules[place].pattern)
    }

    /// The patterns of the rules that decide no parameter: they match none, or an earlier rule decides each that they match.
    ///
    /// Each parameter is given with all of its paths, such as its own and that in a file.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::Dtype;
    /// use tacit_core::Aval;
    /// use tacit_nn::Rules;
    ///
    /// let rules = Rules::new().quantize("layers.*.weight", "nf4:64")?.skip("head.weight")?;
    /// let layer = (vec!["layers.0.weight"], Aval::new(&[8, 64], Dtype::Float32));
    /// assert_eq!(rules.unused([&layer].into_iter()), ["head.weight"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn unused<'p>(&self, parameters: impl Iterator<Item = &'p (Vec<&'p str>, Aval)>) -> Vec<String> {
        let used: HashSet<usize> = parameters.filter_map(|(paths, aval)| self.place(paths, aval)).collect();
        let unused = self.rules.iter().enumerate().filter(|(place, _)| !used.contains(place));
        unused.map(|(_, rule)| rule.pattern.to_string()).collect()
    }
}

const FORM: &str =
    "write a path or glob and a format for each rule, such as `\"layers.*.weight\" = \"nf4:64\"`, or \"skip\"";

/// What TOML says of a text, with the number of the line in place of the lines that it shows.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let said = error.message();
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("{said} at line {}", before.matches('\n').count() + 1),
        None => said.to_owned(),
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

/// Rules are equal if they read the same; predicates are if they are one.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.pattern.identity() == other.pattern.identity() && self.action.to_string() == other.action.to_string()
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skip => f.write_str(SKIP),
            Self::Quantize(format) => format.fmt(f),
        }
    }
}

/// As a file has them. A predicate has no text.
impl Serialize for Rules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(rule) = self.rules.iter().find(|rule| !rule.pattern.is_text()) {
            return Err(serde::ser::Error::custom(format!("{} cannot be written as text", rule.pattern)));
        }
        serializer.collect_map(self.rules.iter().map(|rule| (rule.pattern.to_string(), &rule.action)))
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Skip => serializer.serialize_str(SKIP),
            Self::Quantize(format) => format.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Rules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;

        impl<'de> Visitor<'de> for Table {
            type Value = Rules;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of patterns and formats")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rules, A::Error> {
                let mut rules = Rules::new();
                while let Some(pattern) = map.next_key::<String>()? {
                    rules = map.next_value_seed(Entry { rules, pattern })?;
                }
                Ok(rules)
            }
        }

        /// What stands behind a pattern, whose place an error then has.
        struct Entry {
            rules: Rules,
            pattern: String,
        }

        impl<'de> DeserializeSeed<'de> for Entry {
            type Value = Rules;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Rules, D::Error> {
                let Self { rules, pattern } = self;
                let read = match String::deserialize(deserializer)?.as_str() {
                    SKIP => rules.skip(&pattern),
                    text => rules.quantize(&pattern, text),
                };
                read.map_err(|error| de::Error::custom(error.clause()))
            }
        }

        deserializer.deserialize_map(Table)
    }
}

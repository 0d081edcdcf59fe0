//! Patterns of parameters' paths.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use globset::GlobBuilder;
use regex::bytes::Regex;
use tacit_core::{Aval, Error, Result};

/// A set of parameters, by path as mlx-rs flattens it (`layers.0.q_proj.weight`) and by aval.
///
/// Text is a path itself; a glob where it has one of `*?[{`, in which `*` also crosses dots and `{q,v}` is either; and a
/// regular expression of the whole path behind `re:`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_core::Aval;
/// use tacit_nn::Pattern;
///
/// let aval = Aval::new(&[8, 8], mlx_rs::Dtype::Float32);
/// let pattern: Pattern = "layers.*.{q,v}_proj.weight".parse()?;
/// assert!(pattern.matches("layers.0.self_attn.q_proj.weight", &aval));
/// assert!(!pattern.matches("layers.0.self_attn.k_proj.weight", &aval));
/// assert!("re:layers\\.[0-3]\\..*".parse::<Pattern>()?.matches("layers.2.norm.weight", &aval));
/// assert!(Pattern::when(|_, aval| aval.shape.len() == 2).matches("anything", &aval));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pattern {
    text: String,
    by: By,
}

/// What makes a glob of a text.
const GLOB: [char; 4] = ['*', '?', '[', '{'];

#[derive(Clone)]
enum By {
    All,
    Path,
    Text(Regex),
    /// With a number of its own: the address of one that is gone is given to another one.
    Predicate(u64, Arc<Predicate>),
    Both(Arc<[Pattern; 2]>),
}

/// What a pattern may ask of a path and an aval.
type Predicate = dyn Fn(&str, &Aval) -> bool + Send + Sync;

impl Pattern {
    /// Every parameter: `*`.
    pub(crate) fn all() -> Self {
        Self { text: "*".to_owned(), by: By::All }
    }

    /// The parameters for which `predicate` holds.
    pub fn when(predicate: impl Fn(&str, &Aval) -> bool + Send + Sync + 'static) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { text: "a predicate".to_owned(), by: By::Predicate(number, Arc::new(predicate)) }
    }

    /// The parameter of exactly this path; `*` has no meaning in it.
    pub fn exact(path: impl Into<String>) -> Self {
        Self { text: path.into(), by: By::Path }
    }

    /// The parameters of exactly these paths.
    ///
    /// ```
    /// use mlx_rs::Dtype;
    /// use tacit_core::Aval;
    /// use tacit_nn::Pattern;
    ///
    /// let aval = Aval::new(&[8, 8], Dtype::Float32);
    /// let pattern = Pattern::any(["layers.0.weight", "layers.3.weight"]);
    /// assert!(pattern.matches("layers.3.weight", &aval) && !pattern.matches("layers.1.weight", &aval));
    /// ```
    pub fn any(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let paths: BTreeSet<String> = paths.into_iter().map(Into::into).collect();
        Self::when(move |path, _| paths.contains(path))
    }

    /// Whether the pattern names a parameter.
    #[must_use]
    pub fn matches(&self, path: &str, aval: &Aval) -> bool {
        match &self.by {
            By::All => true,
            By::Path => self.text == path,
            By::Text(regex) => regex.is_match(path.as_bytes()),
            By::Predicate(_, predicate) => predicate(path, aval),
            By::Both(patterns) => patterns.iter().all(|pattern| pattern.matches(path, aval)),
        }
    }

    /// Whether the pattern names a parameter that has these paths: of two patterns each may do so by another one.
    pub(crate) fn names(&self, paths: &[&str], aval: &Aval) -> bool {
        match &self.by {
            By::Both(patterns) => patterns.iter().all(|pattern| pattern.names(paths, aval)),
            _ => paths.iter().any(|path| self.matches(path, aval)),
        }
    }

    /// The text, and for a predicate, which has none, what tells it from others.
    pub(crate) fn identity(&self) -> String {
        match &self.by {
            By::Predicate(number, _) => format!("{self} of number {number}"),
            By::Both(patterns) => format!("{:?}", patterns.each_ref().map(Self::identity)),
            By::All | By::Path | By::Text(_) => self.to_string(),
        }
    }

    /// Whether the text says all of it.
    pub(crate) fn is_text(&self) -> bool {
        match &self.by {
            By::Predicate(..) => false,
            By::Both(patterns) => patterns.iter().all(Self::is_text),
            By::All | By::Path | By::Text(_) => true,
        }
    }

    /// What both patterns name.
    pub(crate) fn and(&self, other: &Self) -> Self {
        match (&self.by, &other.by) {
            (By::All, _) => other.clone(),
            (_, By::All) => self.clone(),
            _ => Self { text: format!("{self} and {other}"), by: By::Both(Arc::new([self.clone(), other.clone()])) },
        }
    }

    /// Whether it names one parameter by its path.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.path().is_some()
    }

    /// The path without which it names no parameter, if there is one.
    pub(crate) fn path(&self) -> Option<&str> {
        match &self.by {
            By::Path => Some(&self.text),
            By::Both(patterns) => patterns.iter().find_map(Self::path),
            By::All | By::Text(_) | By::Predicate(..) => None,
        }
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let by = if text == "*" {
            By::All
        } else if let Some(expression) = text.strip_prefix("re:") {
            let whole = format!("^(?:{expression})$");
            By::Text(Regex::new(&whole).map_err(|error| unreadable(text, "regular expression", &error))?)
        } else if text.contains(GLOB) {
            let glob = GlobBuilder::new(text).backslash_escape(true).build();
            let glob = glob.map_err(|error| unreadable(text, "glob", &error.kind()))?;
            By::Text(Regex::new(glob.regex()).map_err(|error| unreadable(text, "glob", &error))?)
        } else {
            By::Path
        };
        Ok(Self { text: text.to_owned(), by })
    }
}

impl TryFrom<&str> for Pattern {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        text.parse()
    }
}

impl TryFrom<&String> for Pattern {
    type Error = Error;

    fn try_from(text: &String) -> Result<Self> {
        text.parse()
    }
}

impl fmt::Display for Pattern {
    /// The text that is this pattern when it is read: a path with the signs of a glob in it is written as an expression.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            By::Path if self.text.contains(GLOB) || self.text.starts_with("re:") => {
                write!(f, "re:{}", regex::escape(&self.text))
            }
            _ => f.write_str(&self.text),
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({})", self.text)
    }
}

fn unreadable(text: &str, what: &str, error: &dyn fmt::Display) -> Error {
    // A library's own message may have many lines, of which the last says what is wrong.
    let error = error.to_string();
    let reason = error.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
    Error::invalid(
        format!("{text} is no {what}: {reason}"),
        "write a path, a glob such as `layers.*.{q,v}_proj.weight`, or `re:` and a regular expression",
    )
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;

    use super::*;

    #[test]
    fn a_predicate_is_known_from_those_that_are_gone() {
        let identity = |axes: usize| Pattern::when(move |_, aval| aval.shape.len() == axes).identity();
        let known: BTreeSet<String> = (0..64).map(identity).collect();
        assert_eq!(known.len(), 64);
    }

    #[test]
    fn a_path_is_itself_when_its_text_is_read_again() {
        let aval = Aval::new(&[2, 2], Dtype::Float32);
        let paths =
            ["a.weight", "a[0].weight", "a.*.weight", "re:a", "a{b,c}?", "a\\b", "a\\*", "a.(b)+$", "a b", "größe*"];
        for path in paths {
            let exact = Pattern::exact(path);
            let read: Pattern = exact.to_string().parse().expect("a pattern");
            for other in paths.into_iter().chain(["aXweight", "a.0.weight", "ab?", "a0.weight", "a"]) {
                assert_eq!(read.matches(other, &aval), other == path, "{path} read as {read} matches {other}");
            }
        }
    }
}

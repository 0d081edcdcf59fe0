//! What a model's parameters became.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tacit_core::Aval;
use tacit_core::printable::name;

/// What each parameter of a model is now and what was done with it, as data and as a table.
///
/// The bytes after sum to [`Model::nbytes`](crate::Model::nbytes), adapters and values that were set included.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::nn;
/// use tacit_arrays::format::Affine;
/// use tacit_nn::{Model, Outcome};
///
/// let model = Model::new(nn::Linear::new(64, 8)?)?.quantize("*", Affine { bits: 4, group: 32 })?;
/// let report = model.report();
/// let weight = &report.rows["weight"];
/// let Outcome::Quantized { format, bits, .. } = &weight.outcome else { panic!("it is quantized") };
/// assert_eq!((format.as_str(), *bits), ("affine:4:32", 6.0));
/// assert_eq!(model.report().rows["bias"].outcome, Outcome::Left { reason: "it has one axis".to_owned() });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The parameters by path.
    pub rows: BTreeMap<String, Row>,
    /// The patterns of rules that decide no parameter: see [`Rules::unused`](crate::Rules::unused).
    pub unused: Vec<String>,
    /// Paths whose parameters were one array in the module, each group by itself: they are parameters of their own, unless
    /// [`Model::tie`](crate::Model::tie) says otherwise.
    pub shared: Vec<Vec<String>>,
}

/// A line of a [`Report`]: one parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its shape and dtype, as in `f32[4,8]`.
    #[serde(serialize_with = "printed")]
    pub aval: Aval,
    /// The bytes that it took before anything was done with it.
    pub before: usize,
    /// The bytes that it takes now.
    pub after: usize,
    /// What was done.
    pub outcome: Outcome,
}

/// What was done with a parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// A format holds it.
    Quantized {
        /// The text of the format.
        format: String,
        /// Bits for each element, scales included.
        bits: f64,
        /// The norm of the difference over the norm of the parameter.
        error: f64,
    },
    /// It is trained for a format: as a float master, or as codes where the format rounds at random.
    Prepared {
        /// The text of the format.
        format: String,
    },
    /// It is an implicit array of another origin: an adapter, or what was set in its place.
    Implicit {
        /// The array, as in `Lora(f32[4,8])`.
        array: String,
    },
    /// It is as it was, or was set to a dense array.
    Left {
        /// Why.
        reason: String,
    },
}

pub(crate) fn printed<S: serde::Serializer>(aval: &Aval, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(aval)
}

impl Report {
    /// Notes what was done with a parameter, which keeps the bytes that it took at first.
    pub(crate) fn note(&mut self, path: String, row: Row) {
        let before = self.rows.get(&path).map_or(row.before, |known| known.before);
        self.rows.insert(path, Row { before, ..row });
    }

    /// Whether a format holds a parameter, or is trained for it.
    pub(crate) fn has_format(&self, path: &str) -> bool {
        let outcome = self.rows.get(path).map(|row| &row.outcome);
        matches!(outcome, Some(Outcome::Quantized { .. } | Outcome::Prepared { .. }))
    }

    /// The paths of the parameters that no rule named.
    pub fn unmatched(&self) -> impl Iterator<Item = &str> {
        let is_unmatched = |row: &Row| row.outcome == Outcome::unmatched();
        self.rows.iter().filter(move |(_, row)| is_unmatched(row)).map(|(path, _)| path.as_str())
    }

    /// The bytes of all parameters before and after.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        self.rows.values().fold((0, 0), |(before, after), row| (before + row.before, after + row.after))
    }
}

impl Outcome {
    pub(crate) fn left(reason: impl Into<String>) -> Self {
        Self::Left { reason: reason.into() }
    }

    pub(crate) fn dense() -> Self {
        Self::left("it was set to a dense array")
    }

    pub(crate) fn unmatched() -> Self {
        Self::left("no rule names it")
    }

    fn format(&self) -> &str {
        match self {
            Self::Quantized { format, .. } | Self::Prepared { format } => format,
            Self::Implicit { .. } | Self::Left { .. } => "-",
        }
    }
}

impl fmt::Display for Report {
    /// A table with a line for each parameter, and the sum of the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = |least: usize, texts: &mut dyn Iterator<Item = usize>| texts.fold(least, usize::max);
        let path = wide(9, &mut self.rows.keys().map(|path| name(path).len()));
        let aval = wide(4, &mut self.rows.values().map(|row| row.aval.to_string().len()));
        let format = wide(6, &mut self.rows.values().map(|row| row.outcome.format().len()));
        let heads = ["parameter", "aval", "format", "bits", "error", "before", "after"];
        let [a, b, c, d, e, g, h] = heads;
        writeln!(f, "{a:<path$}  {b:<aval$}  {c:<format$}  {d:>6}  {e:>8}  {g:>12}  {h:>12}")?;
        for (own_path, row) in &self.rows {
            let own_path = name(own_path);
            let Row { before, after, outcome, .. } = row;
            let own = row.aval.to_string();
            write!(f, "{own_path:<path$}  {own:<aval$}  {:<format$}  ", outcome.format())?;
            match outcome {
                Outcome::Quantized { bits, error, .. } => write!(f, "{bits:>6.3}  {error:>8.5}")?,
                _ => write!(f, "{:>6}  {:>8}", "", "")?,
            }
            write!(f, "  {before:>12}  {after:>12}")?;
            match outcome {
                Outcome::Left { reason } => writeln!(f, "  {reason}")?,
                Outcome::Implicit { array } => writeln!(f, "  {array}")?,
                Outcome::Quantized { .. } => writeln!(f)?,
                Outcome::Prepared { .. } => writeln!(f, "  prepared")?,
            }
        }
        let (before, after) = self.bytes();
        write!(f, "{:<path$}  {:<aval$}  {:<format$}  {:>6}  {:>8}  {before:>12}  {after:>12}", "", "", "", "", "")?;
        if !self.unused.is_empty() {
            write!(f, "\nrules that decide no parameter: {}", self.unused.join(", "))?;
        }
        self.shared.iter().try_for_each(|group| write!(f, "\none array, and no tie: {}", group.join(", ")))
    }
}

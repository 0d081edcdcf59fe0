//! `primitives.tbl` as it is parsed: one row a primitive.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The parsed table, its rows in the order of their names.
pub(crate) struct Table {
    pub(crate) rows: Vec<Row>,
    pub(super) field_docs: BTreeMap<String, String>,
}

/// One primitive.
pub(crate) struct Row {
    line: usize,
    pub(crate) name: String,
    pub(crate) prefix: bool,
    pub(super) printed: String,
    pub(super) cpp: String,
    pub(super) class: String,
    pub(super) flags: Flags,
    pub(super) params: Vec<Option<Param>>,
    /// The first MLX that has it, where that is not the oldest one.
    pub(super) since: Option<Version>,
    pub(super) doc: String,
}

pub(super) struct Param {
    pub(super) name: String,
    pub(super) kind: String,
    /// The first MLX whose primitive has it; before that its field is `None`.
    pub(super) since: Option<Version>,
}

/// A version of MLX: its three numbers.
pub(super) type Version = [u32; 3];

/// The words beside a class.
#[derive(Default)]
pub(super) struct Flags {
    pub(super) commutative: bool,
    pub(super) derivative: &'static str,
    pub(super) errors: &'static str,
    pub(super) rows: &'static str,
    pub(super) indices: &'static str,
}

/// Above every version.
const NEWEST: Version = [u32::MAX; 3];

/// The classes of primitives, with a sentence on each and the flags of all its primitives.
pub(super) const CLASSES: &[(&str, &str, &str)] = &[
    ("unary", "Element by element of one operand, whose shape the result has.", "aligned"),
    ("binary", "Element by element of two operands of one shape.", "aligned"),
    ("ternary", "Element by element of three operands of one shape.", "aligned"),
    ("moving", "Every element of the results is one of the first operand's; other operands choose which.", "linear"),
    ("reshaping", "Moving, and the elements stay in row-major order.", "linear reordered"),
    ("reduction", "Along the axes that are a parameter, which stay with size 1.", "aligned"),
    ("scan", "Running along one axis, which keeps its extent.", "along"),
    ("rowwise", "Along one axis, whose elements are compared or normalized together.", "along"),
    ("product", "Sums of products.", ""),
    ("layout", "Other shapes, neither moving nor reducing.", ""),
    ("update", "Some elements of the first operand replaced.", ""),
    ("source", "No operands but keys or sizes.", ""),
    ("graph", "What transforms leave in the graph.", ""),
    ("decomposition", "Decompositions of matrices.", "discontinuous"),
    ("fused", "Several steps in one kernel.", ""),
    ("distributed", "Between machines.", ""),
];

/// What a primitive may do to rows, with a sentence on each.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("mixed", "They may mix."),
    ("aligned", "Elements of one index of this axis of the operands make those of the result."),
    ("along", "As `Aligned`; elements are combined along the axis that the parameter `axis` names, else the last one."),
    ("shown", "Nothing that the shapes do not show."),
    ("reordered", "Elements stay in row-major order."),
    ("sliced", "A range of each axis is cut out."),
    ("gathered", "Slices of a table are taken at indices, which have the rows."),
    ("passed", "The trailing operands are handed on."),
];

/// What a derivative does, with a sentence on each.
pub(super) const DERIVATIVES: &[(&str, &str)] = &[
    ("other", "What the rule of the primitive says."),
    ("linear", "What the primitive does: it is linear in all its operands together."),
    ("divides", "It divides by what is made of an operand or a result, and so is infinite where this is rounded to 0."),
];

/// What becomes of the errors of floats, with a sentence on each.
pub(super) const ERRORS: &[(&str, &str)] = &[
    ("carried", "Those of the operands come through, and a rule knows of none of its own."),
    ("rounded", "Another way to compute it differs in the last places, by the order of a sum or by an approximation."),
    ("discontinuous", "A small error of an operand may become any error of the result."),
];

/// Names of parameters with their types.
type Params = &'static [(&'static str, &'static str)];

/// Which operands are indices, with a sentence on each and the parameters that it needs.
pub(super) const INDICES: &[(&str, &str, Params)] = &[
    ("absent", "None that are checked.", &[]),
    ("picked", "The second one, along the axis that the parameter `axis` names.", &[("axis", "int")]),
    (
        "cut",
        "Those behind the first, one for each of `axes`: where slices of `slice_sizes` begin.",
        &[("axes", "ints"), ("slice_sizes", "ints")],
    ),
    (
        "placed",
        "Those behind the first, one for each of `axes`: where the slices of the last one begin, whose axes are those of \
         an index and then those of a slice.",
        &[("axes", "ints")],
    ),
    ("paired", "The last two, if there are four: which matrices of the first and of the second operand.", &[]),
];

/// Parses the table; an error begins with the number of its line.
pub(crate) fn parse(text: &str) -> Result<Table, String> {
    let mut table = Table { rows: Vec::new(), field_docs: BTreeMap::new() };
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(field) = line.strip_prefix("field ") {
            let (name, doc) =
                field.split_once(" = ").ok_or(format!("line {number}: expected `field NAME = sentence`"))?;
            if table.field_docs.insert(name.to_owned(), sentence(number, doc)?).is_some() {
                return Err(format!("line {number}: field `{name}` is described twice"));
            }
        } else {
            table.rows.push(row(number, line)?);
        }
    }
    table.rows.sort_by(|a, b| a.name.cmp(&b.name));
    check(&table)?;
    Ok(table)
}

fn row(line: usize, text: &str) -> Result<Row, String> {
    let columns: Vec<&str> = text.splitn(7, '|').map(str::trim).collect();
    let [name, printed, cpp, class, flags, params, doc] = columns[..] else {
        return Err(format!("line {line}: expected 7 columns, found {}", columns.len()));
    };
    for (column, text) in [("name", name), ("printed name", printed), ("C++ class", cpp)] {
        if text.is_empty() {
            return Err(format!("line {line}: the {column} is empty"));
        }
    }
    let (_, _, of_class) = CLASSES
        .iter()
        .find(|(known, ..)| *known == class)
        .ok_or_else(|| format!("line {line}: unknown class `{class}`"))?;
    let mut since = None;
    let mut row_flags = Flags {
        derivative: DERIVATIVES[0].0,
        rows: ROWS[0].0,
        indices: INDICES[0].0,
        errors: ERRORS[0].0,
        ..Flags::default()
    };
    for flag in of_class.split(' ').chain(flags.split(' ')).filter(|flag| !flag.is_empty()) {
        if let Some((derivative, _)) = DERIVATIVES.iter().find(|(known, _)| *known == flag) {
            row_flags.derivative = derivative;
            continue;
        }
        let rows = ROWS.iter().find(|(known, _)| *known == flag);
        let indices = INDICES.iter().find(|(known, ..)| *known == flag);
        let errors = ERRORS.iter().find(|(known, _)| *known == flag);
        match (flag, rows, indices, errors) {
            ("commutative", ..) => row_flags.commutative = true,
            _ if flag.starts_with("since=") => since = Some(since_version(line, &flag["since=".len()..])?),
            (_, Some((rows, _)), ..) => row_flags.rows = rows,
            (_, _, Some((indices, ..)), _) => row_flags.indices = indices,
            (.., Some((errors, _))) => row_flags.errors = errors,
            _ => return Err(format!("line {line}: unknown flag `{flag}`")),
        }
    }
    let params = params.split(',').map(str::trim).filter(|param| !param.is_empty());
    Ok(Row {
        line,
        name: name.trim_end_matches('*').trim().to_owned(),
        prefix: name.ends_with('*'),
        printed: printed.to_owned(),
        cpp: cpp.to_owned(),
        class: class.to_owned(),
        flags: row_flags,
        params: params.map(|text| param(line, text)).collect::<Result<_, _>>()?,
        since,
        doc: sentence(line, doc)?,
    })
}

fn param(line: usize, text: &str) -> Result<Option<Param>, String> {
    if text == "_" {
        return Ok(None);
    }
    let (name, kind) = text.split_once(':').ok_or(format!("line {line}: parameter `{text}` has no `:type`"))?;
    let (kind, since) = kind.split_once(" since ").map_or((kind, None), |(kind, since)| (kind, Some(since)));
    let since = since.map(|since| since_version(line, since)).transpose()?;
    let param = Param { name: name.to_owned(), kind: kind.to_owned(), since };
    types(&param.kind).ok_or(format!("line {line}: parameter `{name}` has the unknown type `{kind}`"))?;
    Ok(Some(param))
}

/// The version that a text such as `0.32.2` names.
pub(super) fn version(text: &str) -> Option<Version> {
    let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

fn since_version(line: usize, text: &str) -> Result<Version, String> {
    version(text).ok_or(format!("line {line}: `{text}` is no version of MLX"))
}

fn sentence(line: usize, text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.len() < 2 || !text.ends_with('.') {
        return Err(format!("line {line}: expected a sentence that ends in a period, found `{text}`"));
    }
    Ok(text.to_owned())
}

fn check(table: &Table) -> Result<(), String> {
    let mut printed = BTreeMap::new();
    let mut types = BTreeMap::new();
    let mut classes: BTreeMap<&str, &Row> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for row in &table.rows {
        let line = row.line;
        if let Some(other) = types.insert(row.type_name(), line) {
            return Err(format!("line {line}: `{}` names the same type as line {other}", row.name));
        }
        if let Some(other) = printed.insert(&row.printed, line) {
            return Err(format!("line {line}: `{}` is printed as line {other} is", row.printed));
        }
        let needed = INDICES.iter().find(|(word, ..)| *word == row.flags.indices).map_or(&[][..], |of| of.2);
        for (name, kind) in needed {
            if !row.fields().any(|param| param.name == *name && param.kind == *kind) {
                return Err(format!(
                    "line {line}: what is `{}` needs the parameter `{name}:{kind}`",
                    row.flags.indices
                ));
            }
        }
        let first = classes.entry(&row.cpp).or_insert(row);
        if first.cpp_kinds(NEWEST) != row.cpp_kinds(NEWEST) {
            return Err(format!(
                "line {line}: the parameters of `{}` differ from those in line {}",
                row.cpp, first.line
            ));
        }
        if !row.params.iter().map(|param| is_new(param.as_ref())).is_sorted() {
            return Err(format!("line {line}: a parameter that came with a version is followed by an older one"));
        }
        for param in row.fields() {
            if !table.field_docs.contains_key(&param.name) {
                return Err(format!("line {line}: parameter `{}` has no `field` line", param.name));
            }
            used.insert(param.name.as_str());
        }
    }
    match table.field_docs.keys().find(|name| !used.contains(name.as_str())) {
        Some(name) => Err(format!("field `{name}` is described, but no primitive has it")),
        None => Ok(()),
    }
}

fn is_new(param: Option<&Param>) -> bool {
    param.is_some_and(|param| param.since.is_some())
}

impl Param {
    pub(super) fn is_in(&self, mlx: Version) -> bool {
        self.since.is_none_or(|since| since <= mlx)
    }

    /// Its Rust type in the typed view.
    pub(super) fn rust(&self) -> String {
        let (ty, _) = types(&self.kind).expect("parsing has checked the type");
        if self.since.is_some() { format!("Option<{ty}>") } else { ty }
    }
}

impl Row {
    pub(super) fn is_in(&self, mlx: Version) -> bool {
        self.since.is_none_or(|since| since <= mlx)
    }

    pub(super) fn type_name(&self) -> String {
        self.name.replace(' ', "")
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().flatten()
    }

    /// The kinds of the parameters that it has in this version.
    pub(super) fn cpp_kinds(&self, mlx: Version) -> Vec<String> {
        let kind = |param: &Option<Param>| param.as_ref().and_then(|param| types(&param.kind)).map(|types| types.1);
        let present = self.params.iter().filter(|param| param.as_ref().is_none_or(|param| param.is_in(mlx)));
        present.map(|param| kind(param).unwrap_or_else(|| "kind::Skip".to_owned())).collect()
    }

    /// The class's name as the Itanium C++ ABI mangles it.
    pub(super) fn symbol(&self) -> String {
        let parts = ["mlx", "core"].into_iter().chain(self.cpp.split("::"));
        let mut symbol = String::from("N");
        for part in parts {
            let _ = write!(symbol, "{}{part}", part.len());
        }
        symbol + "E"
    }
}

/// The Rust type and the C++ kind of a parameter type.
fn types(kind: &str) -> Option<(String, String)> {
    if let Some(inner) = kind.strip_suffix('?') {
        let (rust, cpp) = types(inner)?;
        return Some((format!("Option<{rust}>"), format!("kind::Maybe<{cpp}>")));
    }
    let (rust, cpp) = match kind {
        "int" => ("i32", "Int"),
        "ints" => ("Vec<i32>", "Ints"),
        "i64" => ("i64", "Int"),
        "i64s" => ("Vec<i64>", "Ints"),
        "bool" => ("bool", "Bool"),
        "float" => ("f32", "Float"),
        "double" => ("f64", "Double"),
        "dtype" => ("Dtype", "ElementType"),
        "str" => ("String", "Str"),
        "list" => ("Vec<Param>", "List"),
        _ => return None,
    };
    Some((rust.to_owned(), format!("kind::{cpp}")))
}

//! Turns `primitives.tbl` into the typed views in Rust and the rows of `cpp/params.cpp`.
//!
//! It writes three files to the output folder: `primitives.rs` (one type a row, and the `TABLE` of descriptions),
//! `primitives.inc` (one line a C++ class) and `primitive_headers.rs` (the names in MLX's headers, for the tests).

#[path = "table.rs"]
mod table;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, process};

pub(crate) use table::parse;
use table::{CLASSES, DERIVATIVES, ERRORS, INDICES, Param, ROWS, Row, Table, Version, version};

/// Reads `table` and writes the generated files to `out_dir`, for this version of MLX; a malformed row ends the build with its
/// line number.
pub(crate) fn generate(table: &Path, out_dir: &Path, mlx: &str) {
    let outcome = fs::read_to_string(table).map_err(|error| error.to_string()).and_then(|text| {
        let parsed = parse(&text)?;
        let mlx = version(mlx).ok_or_else(|| format!("`{mlx}` is no version of MLX"))?;
        let include = env::var_os("DEP_MLX_INCLUDE").unwrap_or_default();
        for (file, text) in [
            ("primitives.rs", rust(&parsed, mlx)),
            ("primitives.inc", cpp(&parsed, mlx)),
            ("primitive_headers.rs", header_names(&headers(env::split_paths(&include)))),
        ] {
            fs::write(out_dir.join(file), text).map_err(|error| format!("{file}: {error}"))?;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        println!("cargo::error={}: {error}", table.display());
        process::exit(1);
    }
}

/// The variant for a word: `Unary` for `unary`.
fn variant(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

fn rust(table: &Table, mlx: Version) -> String {
    let mut out = String::new();
    let classes = CLASSES.iter().map(|(class, doc, _)| (*class, *doc));
    enumeration(&mut out, "Class", "What a primitive does, as far as rules depend on it.", classes);
    enumeration(
        &mut out,
        "Rows",
        "What a primitive does to rows, which are elements kept apart along one axis, beyond what its shapes show.",
        ROWS.iter().copied(),
    );
    enumeration(&mut out, "Derivative", "What a derivative of a primitive does.", DERIVATIVES.iter().copied());
    enumeration(&mut out, "Errors", "What a primitive does to the errors of floats.", ERRORS.iter().copied());
    let indices = INDICES.iter().map(|(word, doc, _)| (*word, *doc));
    enumeration(&mut out, "Indices", "Which operands of a primitive are indices.", indices);
    for (id, row) in table.rows.iter().enumerate() {
        let name = row.type_name();
        let fields: Vec<&Param> = row.fields().collect();
        if fields.iter().filter(|field| field.kind == "bool").count() > 3 {
            // The fields are MLX's.
            out.push_str("#[allow(clippy::struct_excessive_bools)]\n");
        }
        let _ = writeln!(out, "#[doc = {:?}]\n#[derive(Clone, Debug, PartialEq)]", row.doc);
        let (mut members, mut built) = (String::new(), String::new());
        for field in &fields {
            let Param { name, .. } = field;
            let _ = writeln!(members, "    #[doc = {:?}]\n    pub {name}: {},", table.field_docs[name], field.rust());
            let _ = if field.is_in(mlx) {
                write!(built, "{name}: field(Self::NAME, {name:?}, {name})?, ")
            } else {
                write!(built, "{name}: None, ")
            };
        }
        if fields.is_empty() {
            let _ = writeln!(out, "pub struct {name};");
        } else {
            let _ = writeln!(out, "pub struct {name} {{\n{members}}}");
        }
        let present = fields.iter().filter(|field| field.is_in(mlx));
        let bindings: Vec<&str> = present.map(|field| field.name.as_str()).collect();
        let value = if fields.is_empty() { "Self".to_owned() } else { format!("Self {{ {built}}}") };
        let _ = writeln!(
            out,
            "impl TypedPrimitive for {name} {{\n    \
                 const NAME: &'static str = {:?};\n    \
                 const ID: usize = {id};\n    \
                 const CLASS: Class = Class::{};\n    \
                 const COMMUTATIVE: bool = {};\n    \
                 fn from_params(params: &[Param]) -> Result<Self, ParamError> {{\n        \
                     let [{}] = exactly(Self::NAME, params)?;\n        \
                     Ok({value})\n    \
                 }}\n}}\n",
            row.name,
            variant(&row.class),
            row.flags.commutative,
            bindings.join(", "),
        );
    }
    out.push_str("/// Every MLX primitive, sorted by name; the index of a row is the primitive's id.\n");
    let _ = writeln!(out, "pub static TABLE: &[Description] = &[");
    for row in &table.rows {
        let mut fields = String::new();
        for param in row.fields() {
            let Param { name, since, .. } = param;
            let _ = write!(
                fields,
                "Field {{ name: {name:?}, ty: {:?}, since: {since:?}, doc: {:?} }}, ",
                param.rust(),
                table.field_docs[name]
            );
        }
        let _ = writeln!(
            out,
            "    Description {{ name: {:?}, prefix: {}, printed: {:?}, cpp: {:?}, class: Class::{}, commutative: {}, \
             derivative: Derivative::{}, errors: Errors::{}, rows: Rows::{}, indices: Indices::{}, since: {:?}, fields: &[{fields}], \
             doc: {:?} }},",
            row.name,
            row.prefix,
            row.printed,
            row.cpp,
            variant(&row.class),
            row.flags.commutative,
            variant(row.flags.derivative),
            variant(row.flags.errors),
            variant(row.flags.rows),
            variant(row.flags.indices),
            row.since,
            row.doc,
        );
    }
    out.push_str("];\n");
    out
}

fn enumeration<'a>(out: &mut String, name: &str, doc: &str, variants: impl Iterator<Item = (&'a str, &'a str)>) {
    let _ = writeln!(out, "#[doc = {doc:?}]\n#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\npub enum {name} {{");
    for (word, doc) in variants {
        let _ = writeln!(out, "    #[doc = {doc:?}]\n    {},", variant(word));
    }
    out.push_str("}\n\n");
}

fn cpp(table: &Table, mlx: Version) -> String {
    let present = table.rows.iter().filter(|row| row.is_in(mlx));
    let classes: BTreeMap<&str, &Row> = present.map(|row| (row.cpp.as_str(), row)).collect();
    let mut out = String::new();
    for (class, row) in classes {
        let _ = if row.params.is_empty() {
            writeln!(out, "TACIT_NO_PARAMETERS({:?}, {class})", row.symbol())
        } else {
            writeln!(out, "TACIT_PARAMETERS({:?}, {class}, {})", row.symbol(), row.cpp_kinds(mlx).join(", "))
        };
    }
    out
}

/// The text of the headers in which MLX defines primitives.
fn headers(include: impl Iterator<Item = std::path::PathBuf>) -> String {
    let mut text = String::new();
    for folder in include {
        for file in ["primitives.h", "fast_primitives.h", "distributed/primitives.h"] {
            let path = folder.join("mlx").join(file);
            let Ok(header) = fs::read_to_string(&path) else { continue };
            // A path that does not exist would run the build again each time.
            println!("cargo::rerun-if-changed={}", path.display());
            text.push_str(&header);
        }
    }
    text
}

/// A Rust expression: every `(class, name)` where the class in the headers returns a literal as its name.
fn header_names(text: &str) -> String {
    let mut class = "";
    let mut names = String::from("&[\n");
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("class ") {
            class = declared.split([' ', ':', ';']).find(|word| *word != "MLX_API").unwrap_or("");
        }
        let line = line.trim();
        let macro_name = line.strip_prefix("DEFINE_NAME(").and_then(|rest| rest.split(')').next());
        let literal = line.strip_prefix("return \"").and_then(|rest| rest.split('"').next());
        if let Some(name) = macro_name.or(literal).filter(|name| !name.starts_with('<') && !class.is_empty()) {
            let _ = writeln!(names, "    ({class:?}, {name:?}),");
        }
    }
    names.push_str("]\n");
    names
}

//! `tacit types`: the array types and the formats.

use std::fmt;

use serde::Serialize;
use tacit_arrays::format;
use tacit_core::array_types;

use crate::table::Table;

/// The array types that this program has, and the names of the formats that have a text.
#[derive(Serialize)]
pub(crate) struct Types {
    types: Vec<Type>,
    formats: Vec<&'static str>,
}

#[derive(Serialize)]
struct Type {
    name: String,
    saved_as: &'static str,
    families: Vec<String>,
    takes_every_primitive: bool,
}

pub(crate) fn types() -> Types {
    let mut types: Vec<Type> = array_types()
        .into_iter()
        .map(|of| Type {
            name: last((of.name)()),
            saved_as: of.saved_as,
            families: of.families.iter().map(|family| last(family.name())).collect(),
            takes_every_primitive: of.default.is_some(),
        })
        .collect();
    types.sort_by_key(|of| of.saved_as);
    Types { types, formats: format::names() }
}

/// The last part of a path, `Packed` of `dyn tacit_arrays::families::packed::Packed`.
fn last(path: &str) -> String {
    let cut = path.find('<').unwrap_or(path.len());
    let name = path[..cut].rsplit("::").next().unwrap_or(path);
    match path[cut..].strip_prefix('<').and_then(|inner| inner.strip_suffix('>')) {
        Some(inner) => format!("{name}<{}>", last(inner)),
        None => name.to_owned(),
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["type", "saved as", "families", "every primitive"]);
        for Type { name, saved_as, families, takes_every_primitive } in &self.types {
            let default = if *takes_every_primitive { "yes" } else { "" };
            table.row([name.clone(), (*saved_as).to_owned(), families.join(", "), default.to_owned()]);
        }
        write!(f, "{table}\nformats with a text: {}", self.formats.join(", "))
    }
}

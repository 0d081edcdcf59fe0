//! `tacit primitives`: MLX's primitives and the handlers that take them.

use std::fmt;

use clap::Args;
use serde::Serialize;
use tacit_core::primitives::{Description, TABLE};
use tacit_core::{Error, Registry, Result};

use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// Only the primitives of this name, as traces print it (`matmul`), with the handlers that take each
    name: Option<String>,
}

/// The primitives with their handlers.
#[derive(Serialize)]
pub(crate) struct Primitives {
    primitives: Vec<Row>,
    #[serde(skip)]
    with_handlers: bool,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    class: String,
    doc: &'static str,
    handlers: Vec<Taker>,
}

#[derive(Serialize)]
struct Taker {
    name: &'static str,
    signature: String,
    place: String,
}

pub(crate) fn primitives(options: &Options) -> Result<Primitives> {
    let asked = |row: &&Description| options.name.as_deref().is_none_or(|name| row.printed == name);
    let primitives: Vec<Row> = TABLE.iter().filter(asked).map(row).collect();
    if primitives.is_empty() {
        let name = options.name.as_deref().unwrap_or_default();
        return Err(Error::invalid(
            format!("mlx has no primitive {name}"),
            "leave the name out for a list of all of them",
        ));
    }
    Ok(Primitives { primitives, with_handlers: options.name.is_some() })
}

fn row(of: &Description) -> Row {
    let registry = Registry::current();
    let takers = registry.handlers().iter().filter(|handler| handler.signature.primitive.matches(of.name));
    let mut handlers: Vec<Taker> = takers
        .map(|handler| Taker {
            name: handler.site.name,
            signature: handler.signature.to_string(),
            place: format!("{}:{}", handler.site.file, handler.site.line),
        })
        .collect();
    handlers.sort_by_key(|taker| taker.name);
    Row { name: of.printed, class: format!("{:?}", of.class).to_lowercase(), doc: of.doc, handlers }
}

impl fmt::Display for Primitives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.with_handlers {
            let mut table = Table::new(&["primitive", "class", ">handlers", "result"]);
            for Row { name, class, doc, handlers } in &self.primitives {
                table.row([(*name).to_owned(), class.clone(), handlers.len().to_string(), (*doc).to_owned()]);
            }
            return write!(f, "{table}");
        }
        for (i, Row { name, class, doc, handlers }) in self.primitives.iter().enumerate() {
            let gap = if i > 0 { "\n\n" } else { "" };
            writeln!(f, "{gap}{name} ({class}): {doc}")?;
            let mut table = Table::new(&["handler", "of", "place"]);
            for Taker { name, signature, place } in handlers {
                table.row([(*name).to_owned(), signature.clone(), place.clone()]);
            }
            write!(f, "{table}")?;
        }
        Ok(())
    }
}

//! The nodes of a trace, as data and as lines.

use std::fmt;

use crate::dispatch::{Decline, Taker};
use crate::printable::name;

/// A value with its name and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// A letter.
    pub name: String,
    /// `f32[4,8]` dense, `Nf4(f32[4,8])` implicit.
    pub form: String,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Equation {
    /// The results.
    pub results: Vec<Variable>,
    /// The primitive with its parameters.
    pub primitive: String,
    /// The operands: names, or the aval of a constant.
    pub operands: Vec<String>,
    /// Who took it.
    pub taker: Taker,
    /// The handlers that matched it and declined, before.
    pub declined: Vec<Decline>,
}

impl Equation {
    pub(super) fn taken_by(&self) -> String {
        match &self.taker {
            Taker::Dense => String::new(),
            Taker::Materialized => "materialized".to_owned(),
            Taker::Computed => "computed".to_owned(),
            Taker::Default(ty) => format!("default of {ty}"),
            Taker::Handler(site) => format!("{}   {}:{}", site.name, site.file, site.line),
        }
    }

    pub(super) fn call(&self) -> String {
        let operands: Vec<_> = self.operands.iter().map(|operand| name(operand)).collect();
        format!("{} {}", self.primitive, operands.join(" "))
    }

    pub(super) fn made(&self) -> String {
        self.results.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Equation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}   {}", self.made(), self.call(), self.taken_by())
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", name(&self.name), self.form)
    }
}

//! Filters of a model's leaves, such as those to train or to save.

use std::borrow::Cow;
use std::mem::discriminant;

use tacit_arrays::{Adapter, Packed, Prepared, Ste, TrainedCodes};
use tacit_core::{Aval, ChildName, ImplicitArray};

use crate::Pattern;

/// A part of a model: some of its leaves, which are its dense parameters and the arrays that its implicit ones hold.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_nn::{ParameterFilter, Pattern};
///
/// // The factors of the adapters, and the scales of the norms beside them.
/// let part = ParameterFilter::Lora.or(ParameterFilter::Paths("*norm.weight".parse::<Pattern>()?));
/// assert_eq!(format!("{part:?}"), "AnyOf([Lora, Paths(Pattern(*norm.weight))])");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum ParameterFilter {
    /// Every leaf.
    All,
    /// Parameters that are dense arrays, without running statistics.
    Dense,
    /// The adapters' own arrays, such as both factors of a [`Lora`](tacit_arrays::Lora), without their bases.
    Lora,
    /// Scales and biases of packed arrays, and those of prepared parameters that are trained.
    Scales,
    /// Float masters, from which each step quantizes, and codes that are trained without one. Those in the base of an adapter are
    /// frozen with it.
    Masters,
    /// Leaves whose path or whose parameter's path the pattern names.
    Paths(Pattern),
    /// Leaves that any of these mean.
    AnyOf(Vec<ParameterFilter>),
}

impl ParameterFilter {
    /// These leaves and those of another part.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::AnyOf(mut parts) => {
                parts.push(other);
                Self::AnyOf(parts)
            }
            part => Self::AnyOf(vec![part, other]),
        }
    }

    /// What tells this part from others in one run of a program. The text of a pattern is quoted: it may read as another
    /// part.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Paths(pattern) => format!("Paths({:?})", pattern.identity()),
            Self::AnyOf(parts) => format!("{:?}", parts.iter().map(Self::identity).collect::<Vec<_>>()),
            part => format!("{part:?}"),
        }
    }

    /// The parts that are meant as a whole, by the names that files have for them; what a pattern names has no such name.
    pub(crate) fn whole(&self) -> Vec<&'static str> {
        match self {
            Self::Paths(_) => Vec::new(),
            Self::AnyOf(parts) => parts.iter().flat_map(Self::whole).collect(),
            part => {
                PARTS.iter().filter(|(_, own)| discriminant(own) == discriminant(part)).map(|(name, _)| *name).collect()
            }
        }
    }

    /// The part that a file names.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PARTS.iter().find(|(own, _)| *own == name).map(|(_, part)| part)
    }

    pub(crate) fn chooses(&self, leaf: &Leaf<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Dense => leaf.role == Role::Dense,
            Self::Lora => leaf.role == Role::Factor,
            Self::Scales => leaf.role == Role::Scale,
            Self::Masters => matches!(leaf.role, Role::Master | Role::Coded),
            Self::Paths(pattern) => leaf.names().iter().any(|path| pattern.matches(path, &leaf.aval)),
            Self::AnyOf(parts) => parts.iter().any(|part| part.chooses(leaf)),
        }
    }
}

/// The parts that have a name in a file.
static PARTS: [(&str, ParameterFilter); 5] = [
    ("all", ParameterFilter::All),
    ("dense", ParameterFilter::Dense),
    ("lora", ParameterFilter::Lora),
    ("scales", ParameterFilter::Scales),
    ("masters", ParameterFilter::Masters),
];

/// What is trained where nothing is said: dense parameters, adapters and masters.
///
/// Scales, codes and the parts of other arrays, such as the factors of a [`LowRank`](tacit_arrays::LowRank), are trained where a
/// filter names them.
impl Default for ParameterFilter {
    fn default() -> Self {
        Self::AnyOf(vec![Self::Dense, Self::Lora, Self::Masters])
    }
}

pub(crate) struct Leaf<'a> {
    pub(crate) path: &'a str,
    /// The path of the parameter that it is part of.
    pub(crate) parameter: &'a str,
    /// Other paths of the parameter, which are tied to it.
    pub(crate) tied: &'a [&'a str],
    pub(crate) role: Role,
    pub(crate) aval: Aval,
}

impl Leaf<'_> {
    /// Every path by which a pattern may name it: its own and its parameter's, under each path of the parameter.
    fn names(&self) -> Vec<Cow<'_, str>> {
        let within = &self.path[self.parameter.len()..];
        let mut names = vec![Cow::from(self.path), Cow::from(self.parameter)];
        for &tied in self.tied {
            names.extend([Cow::from(tied), Cow::from(format!("{tied}{within}"))]);
        }
        names
    }
}

/// The field of an adapter that holds what it adapts, which may be an adapter itself; the others are parts of it.
pub(crate) const BASE: &str = "base";

/// What a leaf is to its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Dense,
    Statistic,
    Factor,
    Scale,
    Master,
    /// A part of what is trained as its codes, which steps replace.
    Coded,
    /// What the base of an adapter holds, scales aside: it is frozen where nothing is said.
    Base,
    /// Which features an adapter drops in a step: a key.
    Choice,
    Other,
}

impl Role {
    /// The role of a parameter that is a dense array.
    pub(crate) fn of_dense(path: &str) -> Self {
        if crate::module::is_statistic(path) { Self::Statistic } else { Self::Dense }
    }

    /// The role of a child of an implicit array, `within` another child of this role.
    pub(crate) fn of_child(array: &dyn ImplicitArray, child: ChildName, within: Option<Self>) -> Self {
        let any = array.as_any();
        match child.field {
            field if array.family::<dyn Adapter>().is_some_and(|adapter| adapter.trained().contains(&field)) => {
                Self::Factor
            }
            "key" if array.family::<dyn Adapter>().is_some() => Self::Choice,
            BASE if array.family::<dyn Adapter>().is_some() => Self::Base,
            "master" if any.is::<Ste>() || any.is::<Prepared>() => match within {
                Some(Self::Base) => Self::Base,
                _ => Self::Master,
            },
            "value" if any.is::<TrainedCodes>() && within != Some(Self::Base) => Self::Master,
            _ if any.is::<TrainedCodes>() && within != Some(Self::Base) || within == Some(Self::Coded) => Self::Coded,
            "scales" | "biases" if any.is::<Prepared>() || array.family::<dyn Packed>().is_some() => Self::Scale,
            _ => within.unwrap_or(Self::Other),
        }
    }
}

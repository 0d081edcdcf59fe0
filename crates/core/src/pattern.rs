//! What a handler takes, as a partially ordered value.

use std::any::{TypeId, type_name};
use std::cmp::Ordering;
use std::fmt;

use crate::ImplicitArray;

/// The type of an operand as dispatch sees it: `None` is dense.
pub type OperandType = Option<TypeId>;

/// What one operand of a handler may be.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// `&Array`: a dense array.
    Dense,
    /// `&T`: that implicit type.
    Type(TypeId, fn() -> &'static str),
    /// `&dyn ImplicitArray`: any implicit array.
    AnyImplicit,
    /// `&Value`: anything.
    Any,
    /// `&[&Value]`: the rest of the operands, whatever they are.
    Rest,
}

impl Pattern {
    /// The pattern of the implicit type `T`.
    #[must_use]
    pub const fn of<T: ImplicitArray>() -> Self {
        Self::Type(TypeId::of::<T>(), type_name::<T>)
    }

    fn matches(self, operand: OperandType) -> bool {
        match self {
            Self::Dense => operand.is_none(),
            Self::Type(ty, _) => operand == Some(ty),
            Self::AnyImplicit => operand.is_some(),
            Self::Any | Self::Rest => true,
        }
    }

    /// Whether everything that `self` matches is matched by `other`.
    fn within(self, other: Self) -> bool {
        match (self, other) {
            (_, Self::Any | Self::Rest)
            | (Self::Dense, Self::Dense)
            | (Self::Type(..) | Self::AnyImplicit, Self::AnyImplicit) => true,
            (Self::Type(a, _), Self::Type(b, _)) => a == b,
            _ => false,
        }
    }

    /// What both match.
    fn meet(self, other: Self) -> Option<Self> {
        if self.within(other) {
            Some(self)
        } else if other.within(self) {
            Some(other)
        } else {
            None
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense"),
            Self::Type(_, name) => f.write_str(last_segment(name())),
            Self::AnyImplicit => f.write_str("any implicit"),
            Self::Any => f.write_str("any"),
            Self::Rest => f.write_str(".."),
        }
    }
}

fn last_segment(path: &str) -> &str {
    let plain = path.split('<').next().unwrap_or(path);
    plain.rsplit("::").next().map_or(path, |last| &path[plain.len() - last.len()..])
}

/// The primitive and the operands that a handler takes.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// The primitive's name, or `None` for any primitive.
    pub primitive: Option<&'static str>,
    /// The operands; [`Pattern::Rest`] only as the last.
    pub operands: &'static [Pattern],
}

impl Signature {
    fn has_rest(&self) -> bool {
        matches!(self.operands.last(), Some(Pattern::Rest))
    }

    /// The pattern at a position, if the signature reaches that far.
    fn at(&self, position: usize) -> Option<Pattern> {
        match self.operands.get(position) {
            Some(Pattern::Rest) | None => self.has_rest().then_some(Pattern::Any),
            Some(&pattern) => Some(pattern),
        }
    }

    fn fixed(&self) -> usize {
        self.operands.len() - usize::from(self.has_rest())
    }

    /// Whether the signature takes these operands of a primitive of this name.
    #[must_use]
    pub fn matches(&self, primitive: &str, operands: &[OperandType]) -> bool {
        let arity = if self.has_rest() { operands.len() >= self.fixed() } else { operands.len() == self.fixed() };
        arity
            && self.primitive.is_none_or(|own| own == primitive)
            && operands.iter().enumerate().all(|(i, &operand)| self.at(i).is_some_and(|p| p.matches(operand)))
    }

    /// Whether everything that `self` takes is taken by `other`.
    fn within(&self, other: &Self) -> bool {
        let arity = match (self.has_rest(), other.has_rest()) {
            (false, false) => self.fixed() == other.fixed(),
            (_, true) => self.fixed() >= other.fixed(),
            (true, false) => false,
        };
        arity
            && (other.primitive.is_none() || self.primitive == other.primitive)
            && (0..self.fixed().max(other.fixed())).all(|i| match (self.at(i), other.at(i)) {
                (Some(a), Some(b)) => a.within(b),
                _ => false,
            })
    }

    /// Orders by specificity: `Less` is the more specific one.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self.within(other), other.within(self)) {
            (true, true) => Some(Ordering::Equal),
            (true, false) => Some(Ordering::Less),
            (false, true) => Some(Ordering::Greater),
            (false, false) => None,
        }
    }

    /// Whether some call is taken by both, and if so, whether `by` takes every such call.
    #[must_use]
    pub(crate) fn overlap_within(&self, other: &Self, by: Option<&Self>) -> bool {
        let primitive = match (self.primitive, other.primitive) {
            (Some(a), Some(b)) if a != b => return false,
            (a, b) => a.or(b),
        };
        let fixed = self.fixed().max(other.fixed());
        let meet: Option<Vec<Pattern>> = (0..fixed).map(|i| self.at(i)?.meet(other.at(i)?)).collect();
        let Some(meet) = meet else { return false };
        let rest = self.has_rest() && other.has_rest();
        by.is_none_or(|by| {
            let arity = if by.has_rest() { fixed >= by.fixed() } else { !rest && fixed == by.fixed() };
            arity
                && (by.primitive.is_none() || by.primitive == primitive)
                && meet.iter().enumerate().all(|(i, p)| by.at(i).is_some_and(|q| p.within(q)))
        })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.primitive.map_or_else(|| "any primitive".to_owned(), tacit_bridge::typed::snake))?;
        for (i, operand) in self.operands.iter().enumerate() {
            write!(f, "{}{operand}", if i == 0 { " of " } else { ", " })?;
        }
        Ok(())
    }
}

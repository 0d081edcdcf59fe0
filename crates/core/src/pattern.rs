//! The operands that a handler takes, as a partially ordered value.

use std::any::{TypeId, type_name};
use std::cmp::Ordering;
use std::fmt;

use tacit_bridge::typed::{self, Class};

use crate::ImplicitArray;
use crate::array_type::{ArrayType, StaticType, last_segment};

/// The type of an operand as dispatch sees it: `None` is dense.
pub type OperandType = Option<&'static ArrayType>;

/// What one operand of a handler may be.
#[derive(Clone, Copy, Debug)]
pub enum OperandPattern {
    /// `&Array`: a dense array.
    Dense,
    /// `&T`: that implicit type.
    Type(&'static ArrayType),
    /// `&dyn Family`: every type that joins this family.
    Family(TypeId, fn() -> &'static str),
    /// `&dyn ImplicitArray`: any implicit array.
    AnyImplicit,
    /// `&Value`: anything.
    Any,
    /// `&[&Value]`: the rest of the operands, whatever they are.
    Rest,
}

impl OperandPattern {
    /// The pattern of the implicit type `T`.
    #[must_use]
    pub const fn for_type<T: StaticType>() -> Self {
        Self::Type(T::TYPE)
    }

    /// The pattern of the family `F`, such as `dyn Packed`, whose members are implicit arrays: `|member| member`.
    #[must_use]
    pub const fn family<F: ?Sized + 'static>(_: fn(&F) -> &dyn ImplicitArray) -> Self {
        Self::Family(TypeId::of::<F>(), type_name::<F>)
    }

    /// Whether an operand is one that the handler takes there.
    #[must_use]
    pub fn matches(self, operand: OperandType) -> bool {
        match (self, operand) {
            (Self::Dense, operand) => operand.is_none(),
            (Self::Type(own), Some(ty)) => own == ty,
            (Self::Family(family, _), Some(ty)) => ty.is_of(family),
            (Self::Type(_) | Self::Family(..), None) => false,
            (Self::AnyImplicit, operand) => operand.is_some(),
            (Self::Any | Self::Rest, _) => true,
        }
    }

    /// Whether everything that `self` matches is matched by `other`.
    fn within(self, other: Self) -> bool {
        match (self, other) {
            (_, Self::Any | Self::Rest)
            | (Self::Dense, Self::Dense)
            | (Self::Type(_) | Self::Family(..) | Self::AnyImplicit, Self::AnyImplicit) => true,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Type(a), Self::Family(b, _)) => a.is_of(b),
            (Self::Family(a, _), Self::Family(b, _)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for OperandPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense"),
            Self::Type(ty) => f.write_str(last_segment((ty.name)())),
            Self::Family(_, name) => write!(f, "any {}", last_segment(name())),
            Self::AnyImplicit => f.write_str("any implicit"),
            Self::Any => f.write_str("any"),
            Self::Rest => f.write_str(".."),
        }
    }
}

/// The primitives that a handler takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimitivePattern {
    /// The one of this name.
    Named(&'static str),
    /// The primitives of these classes, under the name of them all.
    Classes(&'static str, &'static [Class]),
    /// Any.
    Any,
}

impl PrimitivePattern {
    /// Whether the primitive of this name, as handlers know it, is one of them.
    #[must_use]
    pub fn matches(self, primitive: &str) -> bool {
        match self {
            Self::Named(own) => own == primitive,
            Self::Classes(_, classes) => typed::describe(primitive).is_some_and(|row| classes.contains(&row.class)),
            Self::Any => true,
        }
    }

    /// Orders by specificity: `Less` is the more specific one; `None` where neither is.
    fn compare(self, other: Self) -> Option<Ordering> {
        let within = |a: Self, b: Self| match (a, b) {
            (_, Self::Any) => true,
            (Self::Named(a), b) => b.matches(a),
            (Self::Classes(_, a), Self::Classes(_, b)) => a.iter().all(|class| b.contains(class)),
            _ => false,
        };
        ordering(within(self, other), within(other, self))
    }

    /// Whether some primitive is one of both.
    fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Classes(_, a), Self::Classes(_, b)) => a.iter().any(|class| b.contains(class)),
            _ => self.compare(other).is_some(),
        }
    }
}

impl fmt::Display for PrimitivePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(&typed::snake(name)),
            Self::Classes(name, _) => write!(f, "any {} primitive", name.to_lowercase()),
            Self::Any => f.write_str("any primitive"),
        }
    }
}

fn ordering(within: bool, around: bool) -> Option<Ordering> {
    match (within, around) {
        (true, true) => Some(Ordering::Equal),
        (true, false) => Some(Ordering::Less),
        (false, true) => Some(Ordering::Greater),
        (false, false) => None,
    }
}

/// The primitive and the operands that a handler takes.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// The primitives.
    pub primitive: PrimitivePattern,
    /// The operands; [`OperandPattern::Rest`] only as the last.
    pub operands: &'static [OperandPattern],
}

impl Signature {
    fn has_rest(&self) -> bool {
        matches!(self.operands.last(), Some(OperandPattern::Rest))
    }

    /// The pattern at a position, if the signature reaches that far.
    fn at(&self, position: usize) -> Option<OperandPattern> {
        match self.operands.get(position) {
            Some(OperandPattern::Rest) | None => self.has_rest().then_some(OperandPattern::Any),
            Some(&pattern) => Some(pattern),
        }
    }

    fn fixed(&self) -> usize {
        self.operands.len() - usize::from(self.has_rest())
    }

    /// Whether the signature takes these operands of the primitive that handlers know by this name.
    #[must_use]
    pub fn matches(&self, primitive: &str, operands: &[OperandType]) -> bool {
        self.primitive.matches(primitive) && self.takes(operands)
    }

    fn takes(&self, operands: &[OperandType]) -> bool {
        let arity = if self.has_rest() { operands.len() >= self.fixed() } else { operands.len() == self.fixed() };
        arity && operands.iter().enumerate().all(|(i, &operand)| self.at(i).is_some_and(|p| p.matches(operand)))
    }

    /// Whether each operand that `self` takes is one that `other` takes there.
    fn within(&self, other: &Self) -> bool {
        (0..self.fixed().max(other.fixed())).all(|i| match (self.at(i), other.at(i)) {
            (Some(a), Some(b)) => a.within(b),
            _ => false,
        })
    }

    /// Orders by specificity: `Less` is the more specific one, by its operands; where these are equal, by naming all of
    /// them; and then by its primitive.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        if !self.primitive.meets(other.primitive) {
            return None;
        }
        match ordering(self.within(other), other.within(self))?.then(self.has_rest().cmp(&other.has_rest())) {
            Ordering::Equal => self.primitive.compare(other.primitive),
            decided => Some(decided),
        }
    }

    /// The operands that both take, as far as both say what each is, drawn from `types`; none where no call is both's.
    pub(crate) fn shared(&self, other: &Self, types: &[OperandType]) -> Vec<Vec<OperandType>> {
        let (fixed, rest) = (self.fixed().max(other.fixed()), self.has_rest() || other.has_rest());
        if !self.primitive.meets(other.primitive) || (!rest && self.fixed() != other.fixed()) {
            return Vec::new();
        }
        (0..fixed).fold(vec![Vec::new()], |calls, i| {
            let (Some(a), Some(b)) = (self.at(i), other.at(i)) else { return Vec::new() };
            let both = types.iter().filter(|&&ty| a.matches(ty) && b.matches(ty));
            both.flat_map(|&ty| calls.iter().map(move |call| call.iter().copied().chain([ty]).collect())).collect()
        })
    }

    /// Whether this takes a call that was drawn for two others, whatever their primitives have in common.
    pub(crate) fn covers(&self, first: &Self, second: &Self, operands: &[OperandType]) -> bool {
        let within = |other: &Self| self.primitive.compare(other.primitive).is_some_and(Ordering::is_ge);
        (within(first) || within(second)) && self.takes(operands)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primitive.fmt(f)?;
        for (i, operand) in self.operands.iter().enumerate() {
            write!(f, "{}{operand}", if i == 0 { " of " } else { ", " })?;
        }
        Ok(())
    }
}

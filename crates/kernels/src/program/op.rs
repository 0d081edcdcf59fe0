//! What a step of a program may do.

/// An op of a program. Truth is 1, and every number but 0 is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `|a|`.
    Abs,
    /// The least whole number that is not below `a`.
    Ceil,
    /// `a` itself, which the precision of its step rounds.
    Copy,
    /// Cosine.
    Cos,
    /// Error function.
    Erf,
    /// Inverse of the error function.
    ErfInv,
    /// `e^a`.
    Exp,
    /// `e^a - 1`.
    Expm1,
    /// The greatest whole number that is not above `a`.
    Floor,
    /// Natural logarithm.
    Log,
    /// `log(1 + a)`.
    Log1p,
    /// Whether `a` is not true.
    Not,
    /// `-a`.
    Negate,
    /// Whether `a` is not 0.
    NotZero,
    /// The nearest whole number, ties to even.
    Round,
    /// `1 / sqrt(a)`.
    Rsqrt,
    /// Logistic function.
    Sigmoid,
    /// 1, 0 or -1; 0 of NaN.
    Sign,
    /// Sine.
    Sin,
    /// `sqrt(a)`.
    Sqrt,
    /// `a * a`.
    Square,
    /// Hyperbolic tangent.
    Tanh,
    /// `a` itself, for each element of its row.
    Spread,
    /// `a + b`.
    Add,
    /// `a - b`.
    Subtract,
    /// `a * b`.
    Multiply,
    /// `a / b`.
    Divide,
    /// `a^b`.
    Power,
    /// The greater one; NaN if one of them is.
    Maximum,
    /// The lesser one; NaN if one of them is.
    Minimum,
    /// Whether `a == b`.
    Equal,
    /// Whether `a != b`.
    NotEqual,
    /// Whether `a < b`.
    Less,
    /// Whether `a <= b`.
    LessEqual,
    /// Whether both are true.
    And,
    /// Whether one of them is true.
    Or,
    /// `b` where `a` is true, and else `c`.
    Select,
    /// The sum of a row.
    Sum,
    /// The greatest of a row; NaN if one is.
    Max,
    /// The least of a row; NaN if one is.
    Min,
}

/// The type that a step computes in: as an op on arrays of that type, what it makes is rounded to it.
///
/// Elementary functions of half floats are looked up by them, so their operands are numbers of that type already. Arithmetic and
/// [`Op::Copy`] take any numbers. Steps that compare, choose or round to integers make nothing that needs rounding of numbers of
/// that type, and leave others as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision.
    #[default]
    Single,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

impl Op {
    /// The number of its operands.
    #[must_use]
    pub fn arity(self) -> usize {
        match self {
            Self::Select => 3,
            Self::Add
            | Self::Subtract
            | Self::Multiply
            | Self::Divide
            | Self::Power
            | Self::Maximum
            | Self::Minimum
            | Self::Equal
            | Self::NotEqual
            | Self::Less
            | Self::LessEqual
            | Self::And
            | Self::Or => 2,
            _ => 1,
        }
    }

    /// Whether it makes one number of a row.
    #[must_use]
    pub fn is_reduction(self) -> bool {
        matches!(self, Self::Sum | Self::Max | Self::Min)
    }
}

//! An array type as the suite sees it.

use std::slice;

use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit_core::{ArrayType, Aval, ImplicitArray, Result, Value};

use crate::elements::near;
use crate::oracle::Structure;

type Make = Box<dyn Fn(&Array) -> Result<Value> + Send + Sync>;
type Through = Box<dyn Fn(&dyn Fn(&Array) -> Result<Value>, &Array) -> Result<Value> + Send + Sync>;

/// How an implicit array is made of a dense one, and what is claimed of it.
///
/// Without further claims a subject must only equal what it materializes to. `within`, `exact_zero` and the like also
/// compare it with the dense array that it was made of.
#[allow(clippy::struct_excessive_bools, reason = "each is a claim of its own")]
pub struct Subject {
    name: &'static str,
    make: Make,
    through: Option<Through>,
    pub(crate) tolerance: f64,
    pub(crate) bound: Option<f64>,
    pub(crate) floor: f64,
    pub(crate) overflows: Option<f64>,
    pub(crate) exact_zero: bool,
    pub(crate) refuses_non_finite: bool,
    pub(crate) ignores_values: bool,
    pub(crate) shared_children: bool,
    pub(crate) over_ranks: Option<fn(f64) -> f64>,
    passes_straight: bool,
    pub(crate) elsewhere: Vec<&'static str>,
    pub(crate) thresholds: Vec<f32>,
}

impl Subject {
    /// A subject that `make` makes; an error says that the type cannot stand for that array.
    #[must_use]
    pub fn new<V: Into<Value>>(name: &'static str, make: impl Fn(&Array) -> Result<V> + Send + Sync + 'static) -> Self {
        Self {
            name,
            make: Box::new(move |x| make(x).map(Into::into)),
            through: None,
            tolerance: 1e-5,
            bound: None,
            floor: f64::from(f32::MIN_POSITIVE),
            overflows: None,
            exact_zero: false,
            refuses_non_finite: false,
            ignores_values: false,
            shared_children: false,
            over_ranks: None,
            passes_straight: false,
            elsewhere: Vec::new(),
            thresholds: Vec::new(),
        }
    }

    /// Asks handlers for another relative error than 1e-5 in f32.
    ///
    /// In f16 at least 5e-3 and in bf16 at least 3e-2 are granted: a few roundings of the dense weight that a packed one
    /// does not have.
    #[must_use]
    pub fn tolerance(self, tolerance: f64) -> Self {
        Self { tolerance, ..self }
    }

    /// Claims that no element differs from the original by more than this part of the largest magnitude.
    #[must_use]
    pub fn within(self, bound: f64) -> Self {
        Self { bound: Some(bound), ..self }
    }

    /// Lets elements below this magnitude be lost, whatever `within` claims: the least scale of a format.
    #[must_use]
    pub fn floor(self, floor: f64) -> Self {
        Self { floor, ..self }
    }

    /// Lets a group that reaches the greatest f32 decode to infinity or NaN: its scale times its code is rounded beyond.
    #[must_use]
    pub fn overflows(self) -> Self {
        self.overflows_from(f64::from(f32::MAX / 2.0))
    }

    /// Lets an array whose largest magnitude is above this, the range of a format, be refused when it is evaluated, or its
    /// elements become infinite or NaN.
    #[must_use]
    pub fn overflows_from(self, largest: f64) -> Self {
        Self { overflows: Some(largest), ..self }
    }

    /// Claims that zero is stored exactly.
    #[must_use]
    pub fn exact_zero(self) -> Self {
        Self { exact_zero: true, ..self }
    }

    /// Claims that NaN and infinities are an error, when it is made or when it is evaluated.
    ///
    /// Without this claim they may also be kept; a finite number in their place is never right.
    #[must_use]
    pub fn refuses_non_finite(self) -> Self {
        Self { refuses_non_finite: true, ..self }
    }

    /// Says that only the shape and dtype of the original count, as for a constant.
    #[must_use]
    pub fn ignores_values(self) -> Self {
        Self { ignores_values: true, ..self }
    }

    /// Leaves out the gradients of the surface: that of a child which all elements share is one sum, of terms that cancel in a
    /// softmax or a norm, and no relative error bounds it.
    ///
    /// Those of handlers are compared.
    #[must_use]
    pub fn shared_children(self) -> Self {
        Self { shared_children: true, ..self }
    }

    /// Says that each process holds a part of the array and runs the suite at the same time, and how a number is summed over
    /// the processes.
    #[must_use]
    pub fn over_ranks(self, sum: fn(f64) -> f64) -> Self {
        Self { over_ranks: Some(sum), ..self }
    }

    /// Names handlers of the type that the suite does not reach, and tests of their own do.
    #[must_use]
    pub fn elsewhere(self, handlers: &[&'static str]) -> Self {
        Self { elsewhere: handlers.to_vec(), ..self }
    }

    /// Claims that the code changes at these values, ascending, where the largest magnitude is 1: the two neighbors of each by
    /// one unit in the last place decode to two numbers, and the value itself to one of these.
    #[must_use]
    pub fn thresholds(self, thresholds: &[f32]) -> Self {
        Self { thresholds: thresholds.to_vec(), ..self }
    }

    /// Tries the subject also behind `ste`, which applies a quantizer to a float master that gets the gradient.
    #[must_use]
    pub fn straight_through(
        self,
        ste: impl Fn(&dyn Fn(&Array) -> Result<Value>, &Array) -> Result<Value> + Send + Sync + 'static,
    ) -> Self {
        if self.passes_straight { self } else { Self { through: Some(Box::new(ste)), ..self } }
    }

    /// Claims that the type passes gradients straight through itself, so that it is not tried behind `ste` again.
    #[must_use]
    pub fn passes_straight(self) -> Self {
        Self { passes_straight: true, ..self }
    }

    /// The name in the list.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The implicit array that stands for `x`, or why there is none.
    ///
    /// # Errors
    ///
    /// The type cannot stand for `x`.
    pub fn make(&self, x: &Array) -> Result<Value> {
        (self.make)(x)
    }

    /// Whether what a transform gives is right; derivatives add errors up.
    pub(crate) fn near_transformed(&self, found: &Array, expected: &Array) -> Result<(), String> {
        near(found, expected, self.tolerance.max(1e-4))
    }

    /// The implicit array with `x` as its master, if there is a straight-through function.
    pub(crate) fn through(&self, x: &Array) -> Option<Result<Value>> {
        self.through.as_ref().map(|through| through(&self.make, x))
    }

    /// The implicit array of positive numbers, if the type can stand for that shape and dtype.
    pub(crate) fn positive(&self, aval: &Aval) -> Option<Value> {
        let numbers = normal(1, &aval.shape, Dtype::Float32).abs().ok()?.add(Array::from_f32(0.25)).ok()?;
        self.stand_in(&numbers.as_dtype(aval.dtype).ok()?)
    }

    /// The implicit array of normal numbers of a seed, if the type can stand for that shape and dtype.
    pub(crate) fn normal(&self, aval: &Aval, seed: u64) -> Option<Value> {
        self.stand_in(&normal(seed, &aval.shape, aval.dtype))
    }

    /// The implicit array that stands for `x`, its children ready, if there is one.
    ///
    /// A child that cannot be evaluated says so once: MLX then takes it for evaluated, whatever it holds.
    pub(crate) fn stand_in(&self, x: &Array) -> Option<Value> {
        let value = self.make(x).ok()?;
        implicit(&value)?;
        transforms::eval(&Structure::from_operands(slice::from_ref(&value)).leaves).ok().map(|()| value)
    }

    /// Whether the type can stand for arrays of this shape and dtype.
    pub(crate) fn stands_for(&self, aval: &Aval) -> bool {
        let zeros = ops::ones_dtype(&aval.shape, aval.dtype);
        zeros.is_ok_and(|zeros| self.make(&zeros).is_ok_and(|value| value.is_implicit()))
    }

    /// What the tolerance becomes where these dtypes take part.
    pub(crate) fn tolerance_for(&self, dtypes: &[Dtype]) -> f64 {
        dtypes.iter().fold(self.tolerance, |most, dtype| match dtype {
            Dtype::Float16 => most.max(5e-3),
            Dtype::Bfloat16 => most.max(3e-2),
            _ => most,
        })
    }
}

pub(crate) fn type_of(value: &Value) -> Option<&'static ArrayType> {
    implicit(value).map(ImplicitArray::array_type)
}

pub(crate) fn implicit(value: &Value) -> Option<&dyn ImplicitArray> {
    match value {
        Value::Implicit(array) => Some(&**array),
        Value::Dense(_) => None,
    }
}

/// Normal numbers of a seed, ready.
pub(crate) fn normal(seed: u64, shape: &[i32], dtype: Dtype) -> Array {
    let array = random::key(seed)
        .and_then(|key| random::normal::<f32>(shape, None, None, Some(&key)))
        .and_then(|array| array.as_dtype(dtype))
        .and_then(|array| array.eval().map(|()| array));
    array.expect("normal numbers of any shape")
}

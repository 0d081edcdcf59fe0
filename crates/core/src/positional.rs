//! Positional arguments and results: arrays inside a traced function, values outside.

use mlx_rs::Array;

use crate::{Error, Result, Value};

/// One array, a list of arrays, or a tuple of arrays, as a traced function takes and returns them.
///
/// Outside the function the same structure holds [`Value`]s.
pub trait Arrays: Sized {
    /// The same structure with values.
    type Values;

    /// The arrays in order.
    fn into_arrays(self) -> Vec<Array>;

    /// The structure of these arrays.
    ///
    /// # Errors
    ///
    /// Their number does not fit.
    fn from_arrays(arrays: Vec<Array>) -> Result<Self>;

    /// The values in order.
    fn into_values(values: Self::Values) -> Vec<Value>;

    /// The structure of these values.
    ///
    /// # Errors
    ///
    /// Their number does not fit.
    fn from_values(values: Vec<Value>) -> Result<Self::Values>;
}

fn count<T, const N: usize>(items: Vec<T>) -> Result<[T; N]> {
    let found = items.len();
    items.try_into().map_err(|_| {
        Error::invalid(format!("{found} arrays do not fit a structure of {N}"), format!("pass {N} of them"))
    })
}

impl Arrays for Array {
    type Values = Value;

    fn into_arrays(self) -> Vec<Array> {
        vec![self]
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        count(arrays).map(|[array]| array)
    }

    fn into_values(value: Value) -> Vec<Value> {
        vec![value]
    }

    fn from_values(values: Vec<Value>) -> Result<Value> {
        count(values).map(|[value]| value)
    }
}

impl Arrays for Vec<Array> {
    type Values = Vec<Value>;

    fn into_arrays(self) -> Vec<Array> {
        self
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        Ok(arrays)
    }

    fn into_values(values: Vec<Value>) -> Vec<Value> {
        values
    }

    fn from_values(values: Vec<Value>) -> Result<Vec<Value>> {
        Ok(values)
    }
}

impl<const N: usize> Arrays for [Array; N] {
    type Values = [Value; N];

    fn into_arrays(self) -> Vec<Array> {
        self.into()
    }

    fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
        count(arrays)
    }

    fn into_values(values: [Value; N]) -> Vec<Value> {
        values.into()
    }

    fn from_values(values: Vec<Value>) -> Result<[Value; N]> {
        count(values)
    }
}

macro_rules! tuples {
    ($($n:literal: $($array:ident $value:ident $name:ident),+;)+) => {
        $(
            impl Arrays for ($($array,)+) {
                type Values = ($($value,)+);

                fn into_arrays(self) -> Vec<Array> {
                    let ($($name,)+) = self;
                    vec![$($name),+]
                }

                fn from_arrays(arrays: Vec<Array>) -> Result<Self> {
                    count(arrays).map(|[$($name),+]: [Array; $n]| ($($name,)+))
                }

                fn into_values(($($name,)+): Self::Values) -> Vec<Value> {
                    vec![$($name),+]
                }

                fn from_values(values: Vec<Value>) -> Result<Self::Values> {
                    count(values).map(|[$($name),+]: [Value; $n]| ($($name,)+))
                }
            }
        )+
    };
}

tuples! {
    2: Array Value a, Array Value b;
    3: Array Value a, Array Value b, Array Value c;
    4: Array Value a, Array Value b, Array Value c, Array Value d;
}

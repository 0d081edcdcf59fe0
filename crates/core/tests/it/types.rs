//! The types and the readings that the tests share.

use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};
use tacit::__private::open;
use tacit::{
    Aval, Equation, Error, ImplicitArray, Materialize, Policy, PolicyGuard, Primitive, Registry, RegistryGuard, Result,
    Taker, Value, explain,
};

/// Declares types that hide a dense array; what stands behind the name are further arguments of the derive.
macro_rules! hiding {
    ($($ty:ident $name:literal [$($argument:tt)*];)*) => {$(
        #[derive(ImplicitArray, Clone, Debug)]
        #[implicit(name = $name $($argument)*)]
        pub(crate) struct $ty {
            pub(crate) array: Array,
            #[implicit(aux)]
            aval: Aval,
        }

        impl $ty {
            pub(crate) fn of(array: &Array) -> Value {
                Self { array: array.clone(), aval: Aval::from(array) }.into()
            }
        }

        impl Materialize for $ty {
            fn materialize(&self) -> Result<Value> {
                Ok(self.array.clone().into())
            }
        }
    )*};
}

hiding! {
    Left "test.Left" [];
    Right "test.Right" [];
    Ordered "test.Ordered" [, no_commute];
    Willing "test.Willing" [, default = take_all];
    Eager "test.Eager" [, default = take_all];
    Shy "test.Shy" [, default = take_nothing];
}

/// The default of two types: every primitive on what is inside.
fn take_all(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    let inside = |value: &&Value| match value {
        Value::Dense(array) => Ok(array.clone()),
        Value::Implicit(array) => open(&**array)?.dense(),
    };
    let dense = operands.iter().map(inside).collect::<Result<Vec<Array>>>()?;
    Ok(primitive.emit(&dense)?.into_iter().map(Value::from).collect())
}

/// A default that never wants.
fn take_nothing(_: &Primitive, _: &[&Value]) -> Result<Vec<Value>> {
    Err(Error::decline("it never wants"))
}

/// A layer around another value.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Outer")]
pub(crate) struct Outer {
    pub(crate) inner: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Outer {
    pub(crate) fn of(inner: Value) -> Value {
        let aval = inner.aval().expect("the inner types declare it");
        Self { inner, aval }.into()
    }
}

impl Materialize for Outer {
    fn materialize(&self) -> Result<Value> {
        Ok(self.inner.clone())
    }
}

/// Refuses to be built.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Refusing")]
pub(crate) struct Refusing {
    #[implicit(aux)]
    pub(crate) aval: Aval,
}

impl Materialize for Refusing {
    fn materialize(&self) -> Result<Value> {
        Err(Error::refuse("it is a secret"))
    }
}

/// Says one aval and is built as another.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Liar")]
pub(crate) struct Liar {
    #[implicit(aux)]
    pub(crate) aval: Aval,
}

impl Materialize for Liar {
    fn materialize(&self) -> Result<Value> {
        Ok(Array::from_f32(0.0).into())
    }
}

pub(crate) fn aval(shape: &[i32]) -> Aval {
    Aval::new(shape, Dtype::Float32)
}

pub(crate) fn vector(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32])
}

/// `1, 2, 3, ..` in a matrix.
pub(crate) fn matrix(rows: i32, columns: i32) -> Array {
    let values: Vec<f32> = (1..=rows * columns).map(|i| i as f32).collect();
    Array::from_slice(&values, &[rows, columns])
}

pub(crate) fn numbers(array: &Array) -> Vec<f32> {
    let array = array.contiguous().expect("makes rows");
    array.eval().expect("evaluates");
    array.as_slice::<f32>().to_vec()
}

/// The numbers of a value that must be dense.
pub(crate) fn dense(value: &Value) -> Vec<f32> {
    numbers(value.as_dense().unwrap_or_else(|| panic!("{value} is not dense")))
}

/// Puts a registry of these handlers and no others in force, and `Policy::Allow`.
pub(crate) fn with_handlers(registry: Registry) -> (RegistryGuard, PolicyGuard) {
    (Arc::new(registry).scope(), Policy::Allow.scope())
}

/// Puts a registry without handlers in force, and `Policy::Allow`.
pub(crate) fn without_handlers() -> (RegistryGuard, PolicyGuard) {
    with_handlers(Registry::new())
}

/// Who took each primitive, in words.
pub(crate) fn takers(
    registry: Registry,
    f: impl FnMut(Vec<Array>) -> Result<Vec<Array>, Exception>,
    args: Vec<Value>,
) -> Result<Vec<String>> {
    let _scopes = with_handlers(registry);
    Ok(explain(args, f)?.equations.iter().map(taker).collect())
}

pub(crate) fn taker(equation: &Equation) -> String {
    match &equation.taker {
        Taker::Handler(site) => site.name.to_owned(),
        Taker::Default(name) => format!("default of {name}"),
        Taker::Materialized => "materialized".to_owned(),
        Taker::Computed => "computed".to_owned(),
        Taker::Dense => "dense".to_owned(),
    }
}

/// The error that something which must fail ends in.
pub(crate) fn error<T>(outcome: Result<T>) -> Error {
    outcome.err().expect("it fails")
}

/// The message of that error, and a line's end.
pub(crate) fn said_of<T>(outcome: Result<T>) -> String {
    message(&error(outcome)) + "\n"
}

/// A message with `:LINE` for every line number behind a source file's name.
pub(crate) fn message(error: &Error) -> String {
    without_lines(&error.to_string())
}

pub(crate) fn without_lines(text: &str) -> String {
    let mut parts = text.split(".rs:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + ".rs:LINE" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

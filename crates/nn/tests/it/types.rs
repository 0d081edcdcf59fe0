//! The types and the readings that the tests share.

use mlx_rs::{Array, random};
use tacit_core::tree::{self, TreeDef};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Tree, Value};

/// Hides an array, dense or not.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Hidden")]
pub(crate) struct Hidden {
    array: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Hidden {
    pub(crate) fn of(array: impl Into<Value>) -> Value {
        let array = array.into();
        let aval = array.aval().expect("has one");
        Self { array, aval }.into()
    }
}

impl Materialize for Hidden {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone())
    }
}

pub(crate) fn vector(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32])
}

/// 1, 2, 3, ..
pub(crate) fn matrix(rows: i32, columns: i32) -> Array {
    let values: Vec<f32> = (1..=rows * columns).map(|i| i as f32).collect();
    Array::from_slice(&values, &[rows, columns])
}

pub(crate) fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    let array = random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers");
    array.eval().expect("evaluates");
    array
}

pub(crate) fn numbers(array: &Array) -> Vec<f32> {
    array.eval().expect("evaluates");
    array.as_slice::<f32>().to_vec()
}

pub(crate) fn dense(value: &Value) -> Vec<f32> {
    numbers(&value.dense().expect("dense"))
}

#[track_caller]
pub(crate) fn error<T>(result: Result<T>) -> Error {
    result.err().expect("it should fail")
}

/// The message of an error, and a line's end.
#[track_caller]
pub(crate) fn said_of<T>(result: Result<T>) -> String {
    error(result).to_string() + "\n"
}

pub(crate) fn def(tree: &impl Tree) -> TreeDef {
    tree::structure(tree).expect("has a structure")
}

pub(crate) fn paths(def: &TreeDef) -> Vec<String> {
    def.paths().iter().map(ToString::to_string).collect()
}

//! Checks of what the trait of implicit arrays promises: children, static fields, clones, storage.

use std::hash::{DefaultHasher, Hasher};
use std::slice;

use dyn_clone::clone_box;
use mlx_rs::{Array, transforms};
use tacit_core::store;
use tacit_core::{Aval, ImplicitArray, Value, short_name};

use crate::call::{bits_equal, dense, text};
use crate::oracle::Structure;
use crate::report::Report;
use crate::subject::{Subject, implicit};

/// Takes the subject apart and puts it together again: children, clone, storage, another thread.
///
/// Each time the result must have equal static fields, with an equal hash, and materialize to the same bits. The aval
/// is that of the original and of what it materializes to; bytes are those of the children.
#[must_use]
pub fn structure(subject: &Subject) -> Report {
    let mut report = Report::new(format!("structure of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    for &rank in &shapes.ranks {
        for &dtype in &shapes.dtypes {
            let aval = Aval::new(&shapes.shape(&[2, 3], rank, (2, 3)), dtype);
            let Some(value) = subject.normal(&aval, 1) else { continue };
            let Some(array) = implicit(&value) else { continue };
            for (name, check) in CHECKS {
                report.compare(format_args!("{name} of {aval}"), || check(array, &aval));
            }
        }
    }
    report
}

type Check = fn(&dyn ImplicitArray, &Aval) -> Result<(), String>;

const CHECKS: [(&str, Check); 8] = [
    ("the aval", avals),
    ("the children", children),
    ("wrong children", wrong_children),
    ("a clone", |array, _| same(&*clone_box(array), array)),
    ("a stored copy", stored),
    ("a broken file", broken),
    ("the text", text_of),
    ("another thread", on_another_thread),
];

/// The aval is the original's, and each layer's.
fn avals(array: &dyn ImplicitArray, aval: &Aval) -> Result<(), String> {
    let mut value = Value::from(clone_box(array));
    loop {
        let found = value.aval().map_err(text)?;
        if found != *aval {
            return Err(format!("{value} has the aval {found}, expected {aval}"));
        }
        value = match &value {
            Value::Dense(_) => return Ok(()),
            Value::Implicit(array) => tacit_core::__private::open(&**array).map_err(text)?,
        };
    }
}

/// With its own children it is the same array, whose bytes they hold.
fn children(array: &dyn ImplicitArray, _: &Aval) -> Result<(), String> {
    let children: Vec<Value> = array.children().into_iter().map(|(_, child)| child).collect();
    let bytes = children.iter().map(Value::nbytes).sum::<usize>();
    if bytes != array.nbytes() {
        return Err(format!("it says that it holds {} bytes, expected the {bytes} of its children", array.nbytes()));
    }
    let mut names: Vec<String> = array.children().iter().map(|(name, _)| name.to_string()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    if names.len() != count {
        return Err(format!("its {count} children have the names {names:?}, expected one each"));
    }
    same(&*array.with_children(children).map_err(text)?, array)
}

/// Too many or too few children are an error; others than its own are at least no panic.
fn wrong_children(array: &dyn ImplicitArray, _: &Aval) -> Result<(), String> {
    let mut children: Vec<Value> = array.children().into_iter().map(|(_, child)| child).collect();
    let nested = children.iter().map(|_| Value::from(clone_box(array))).collect();
    drop(array.with_children(nested));
    let count = children.len();
    let taken =
        |children: &[Value]| format!("it takes {} children, expected an error as it has {count}", children.len());
    children.push(Array::from_f32(0.0).into());
    if array.with_children(children.clone()).is_ok() {
        return Err(taken(&children));
    }
    children.truncate(count.saturating_sub(1));
    if children.len() < count && array.with_children(children.clone()).is_ok() {
        return Err(taken(&children));
    }
    Ok(())
}

/// Structure as JSON, and the arrays beside it.
fn saved(array: &dyn ImplicitArray) -> Result<(String, store::Arrays), String> {
    let (json, arrays) = store::collect(|| serde_json::to_string(array));
    Ok((json.map_err(|error| error.to_string())?, arrays))
}

fn loaded(json: &str, arrays: store::Arrays) -> Result<Box<dyn ImplicitArray>, String> {
    store::provide(arrays, || serde_json::from_str(json)).map_err(|error: serde_json::Error| error.to_string())
}

/// Whether it is read from what is stored of it, which checks that its children and static fields belong together.
pub(crate) fn reloads(array: &dyn ImplicitArray) -> bool {
    saved(array).and_then(|(json, arrays)| loaded(&json, arrays)).is_ok()
}

fn stored(array: &dyn ImplicitArray, _: &Aval) -> Result<(), String> {
    let (json, arrays) = saved(array)?;
    let name = array.typetag_name();
    if !name.contains('.') || !json.contains(&format!("{name:?}")) {
        return Err(format!("the name is {name}, expected one with a namespace that stands in {json}"));
    }
    same(&*loaded(&json, arrays)?, array)
}

/// Without its arrays, or cut short, it cannot be loaded.
fn broken(array: &dyn ImplicitArray, _: &Aval) -> Result<(), String> {
    let (json, arrays) = saved(array)?;
    if !arrays.is_empty() && loaded(&json, store::Arrays::new()).is_ok() {
        return Err("it is loaded without its arrays, expected an error".to_owned());
    }
    for length in [json.len() / 2, json.len() - 1] {
        let cut = json.get(..length).unwrap_or_default();
        if loaded(cut, arrays.clone()).is_ok() {
            return Err(format!("it is loaded from {cut}, expected an error"));
        }
    }
    Ok(())
}

fn text_of(array: &dyn ImplicitArray, aval: &Aval) -> Result<(), String> {
    let printed = Value::from(clone_box(array)).to_string();
    let expected = format!("{}({aval})", short_name(array));
    if printed == expected && !format!("{array:?} {:?}", array.aux()).is_empty() {
        return Ok(());
    }
    Err(format!("it prints as {printed}, expected {expected}"))
}

/// Evaluated, it goes to another thread and is the same there.
fn on_another_thread(array: &dyn ImplicitArray, _: &Aval) -> Result<(), String> {
    let value = Value::from(clone_box(array));
    transforms::eval(&Structure::from_operands(slice::from_ref(&value)).leaves).map_err(text)?;
    let expected = dense(&value)?;
    let sent = clone_box(array);
    let thread = std::thread::spawn(move || {
        let found = dense(&sent.into())?;
        // A lazy array stays on its thread; an evaluated one may leave it.
        found.eval().map_err(text)?;
        Ok::<_, String>(found)
    });
    let found = thread.join().map_err(|_| "panicked on another thread".to_owned())??;
    bits_equal(&found, &expected)
}

/// Equal static fields both ways, equal hashes, the same bits.
fn same(found: &dyn ImplicitArray, expected: &dyn ImplicitArray) -> Result<(), String> {
    if !found.aux_eq(expected) || !expected.aux_eq(found) {
        return Err(format!("its static fields are {:?}, expected {:?}", found.aux(), expected.aux()));
    }
    let (hash, expected_hash) = (hash(found), hash(expected));
    if hash != expected_hash {
        return Err(format!("its static fields have the hash {hash:x}, expected {expected_hash:x} as equal ones have"));
    }
    let bits = |array: &dyn ImplicitArray| dense(&clone_box(array).into());
    bits_equal(&bits(found)?, &bits(expected)?)
}

fn hash(array: &dyn ImplicitArray) -> u64 {
    let mut hasher = DefaultHasher::new();
    array.aux_hash(&mut hasher);
    hasher.finish()
}

//! The check that a value that is split already is not split again.

use tacit_arrays::Distributed;
use tacit_core::{Error, Result, Value};

/// Checks that neither a value nor anything inside it is kept in parts over ranks.
///
/// A part of a part would be put together as something else: the arrays inside are not those of the whole.
pub(crate) fn check_whole(value: &Value) -> Result<()> {
    let Some(placed) = placed(value) else { return Ok(()) };
    let message = match value.as_dense() {
        None if placed.to_string() != value.to_string() => {
            format!("{value} has {placed} inside, which is split over the ranks already")
        }
        _ => format!("{value} is split over the ranks already"),
    };
    Err(Error::invalid(message, "split the whole value, once"))
}

fn placed(value: &Value) -> Option<Value> {
    let Value::Implicit(array) = value else { return None };
    if array.family::<dyn Distributed>().is_some() {
        return Some(value.clone());
    }
    array.children().iter().find_map(|(_, child)| placed(child))
}

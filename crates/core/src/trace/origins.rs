//! Which arguments a value of a trace is computed from, for errors.

use std::collections::{BTreeSet, HashMap};

use tacit_bridge::{Slot, Tape};

use super::slots::Slots;
use crate::{Argument, Error, Value, short_name};

/// The error with the arguments that the denied operands of a node come of, by their slots.
pub(super) fn told(mut error: Error, tape: &Tape, slots: &Slots, node: usize) -> Error {
    let Error::MaterializationDenied { ty, arguments, .. } = &mut error else { return error };
    let value = |slot: &Slot| slots.get(*slot).map(|layers| &layers.outermost);
    let implicit =
        |node: usize| tape.operands(node).flatten().filter(|slot| value(slot).is_some_and(Value::is_implicit));
    let is_denied = |slot: &Slot| matches!(value(slot), Some(Value::Implicit(array)) if short_name(&**array) == *ty);
    let mut open: Vec<Slot> = implicit(node).filter(is_denied).collect();
    if open.is_empty() {
        // A layer of one of them, or what a handler makes of them.
        open.extend(implicit(node));
    }
    let mut makers = HashMap::new();
    for before in 0..node {
        makers.extend(tape.results(before).map(|slot| (slot.index(), before)));
    }
    let mut known = BTreeSet::new();
    while let Some(slot) = open.pop() {
        if known.insert(slot.index())
            && let Some(&maker) = makers.get(&slot.index())
        {
            open.extend(implicit(maker));
        }
    }
    *arguments = known.into_iter().filter(|slot| !makers.contains_key(slot)).map(Argument::Number).collect();
    error
}

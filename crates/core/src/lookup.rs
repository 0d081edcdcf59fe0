//! Which handlers may take the calls of one trace, remembered from call to call.

use std::cell::RefCell;
use std::sync::Arc;

use tacit_bridge::NameId;

use crate::Registry;
use crate::pattern::OperandType;
use crate::registry::Resolution;

/// The registry in force, and what it said of the calls that came last: a model asks the same of each of its layers.
pub(crate) struct Lookup {
    registry: Arc<Registry>,
    memory: Memory,
}

/// Memory for the types of a call's operands, and what was found.
#[derive(Default)]
struct Memory {
    types: Vec<OperandType>,
    /// At most [`LINES`], each name at its own place.
    lines: Vec<Line>,
}

#[derive(Default)]
struct Line {
    name: Option<NameId>,
    types: Vec<OperandType>,
    resolution: Arc<Resolution>,
}

const LINES: usize = 16;

thread_local! {
    /// Memory that is used again: one for each look-up that was in use at a time, as those inside handlers are.
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

impl Lookup {
    /// In the registry in force on this thread.
    pub(crate) fn current() -> Self {
        let mut memory = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        // What another registry said does not count.
        memory.lines.iter_mut().for_each(|line| line.name = None);
        Self { registry: Registry::current(), memory }
    }

    /// The types of the operands, as `list` lists them; nothing where all are dense.
    pub(crate) fn operands(&mut self, list: impl FnOnce(&mut Vec<OperandType>)) -> Option<Operands<'_>> {
        let Memory { types, lines } = &mut self.memory;
        types.clear();
        list(types);
        if types.iter().all(Option::is_none) {
            return None;
        }
        Some(Operands { types, lines, registry: &self.registry })
    }
}

/// The operands of a call, one of which is implicit.
pub(crate) struct Operands<'l> {
    types: &'l [OperandType],
    lines: &'l mut Vec<Line>,
    registry: &'l Registry,
}

impl<'l> Operands<'l> {
    /// Who may take a primitive on these.
    pub(crate) fn resolve(self, name: NameId) -> (&'l Registry, &'l [OperandType], &'l Resolution) {
        let Self { types, lines, registry } = self;
        if lines.is_empty() {
            lines.resize_with(LINES, Line::default);
        }
        let line = &mut lines[name.index() % LINES];
        if line.name != Some(name) || line.types != types {
            line.resolution = registry.resolve(name, types);
            line.types.clear();
            line.types.extend_from_slice(types);
            line.name = Some(name);
        }
        (registry, types, &line.resolution)
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        // A thread that ends may be without it already.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().push(memory));
    }
}

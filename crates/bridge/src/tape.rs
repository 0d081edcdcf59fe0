//! The walked nodes of a recorded graph, in order.

use std::cell::RefCell;
use std::ffi::c_void;

use mlx_rs::Array;

use crate::error::{BridgeError, check};
use crate::ffi::{self, AvalView, Edit, Node, Span, TapeView};
use crate::{Aval, NameId, Primitive, Scope, arrays};

/// Where a value of a trace lives: placeholders first, then the results of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

const NO_SLOT: u32 = u32::MAX;

impl Slot {
    /// The slot as an index below [`Tape::slots`].
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    fn known(raw: u32) -> Option<Self> {
        (raw != NO_SLOT).then_some(Self(raw))
    }
}

/// A value that [`Tape::keep`] holds.
#[derive(Clone, Copy, Debug)]
pub struct Kept(usize);

/// The nodes of a graph that depend on placeholders, in topological order.
///
/// One call walks the whole graph, without recursion. Nodes that do not depend on a placeholder are not on the tape. The
/// memory of one that is dropped serves the next on its thread.
pub struct Tape {
    raw: *mut c_void,
    /// The C++ side's own arrays, which do not change until it is freed.
    view: TapeView,
    plan: Plan,
}

#[derive(Default)]
struct Plan {
    edits: Vec<Edit>,
    /// The arrays that the edits point to.
    kept: Vec<Array>,
}

/// Edits that memory is kept for.
const MOST_SPARE: usize = 1 << 20;

thread_local! {
    /// Memory for plans, to be used again: one for each tape that was in use at a time.
    static PLANS: RefCell<Vec<Plan>> = const { RefCell::new(Vec::new()) };
}

impl Tape {
    /// Walks from `outputs` to `placeholders`, but not beyond `boundaries`: arrays that cannot depend on a placeholder,
    /// because they were there before it.
    pub fn walk(outputs: &[Array], placeholders: &[Array], boundaries: &[Array]) -> Result<Self, BridgeError> {
        Self::walk_from(std::ptr::null(), outputs, placeholders, boundaries)
    }

    /// Walks as [`walk`](Self::walk) does, to placeholders of `scope`. What an earlier walk met before the scope was made is
    /// a boundary as well, so that the history of what a function captures is walked once, and not each time.
    pub fn walk_in(
        scope: &Scope,
        outputs: &[Array],
        placeholders: &[Array],
        boundaries: &[Array],
    ) -> Result<Self, BridgeError> {
        Self::walk_from(scope.as_ptr(), outputs, placeholders, boundaries)
    }

    fn walk_from(
        scope: *const c_void,
        outputs: &[Array],
        placeholders: &[Array],
        boundaries: &[Array],
    ) -> Result<Self, BridgeError> {
        let [outputs, placeholders, boundaries] = [outputs, placeholders, boundaries].map(arrays::handles);
        let mut raw = std::ptr::null_mut();
        let mut view = TapeView { nodes: Span::new(&[]), operands: Span::new(&[]), outputs: Span::new(&[]), slots: 0 };
        // SAFETY: the scope is null or live, the slices hold live handles, and the out-pointers are live for the call.
        check(unsafe {
            ffi::tacit_tape_new(
                scope,
                Span::new(&outputs),
                Span::new(&placeholders),
                Span::new(&boundaries),
                &raw mut raw,
                &raw mut view,
            )
        })?;
        Ok(Self { raw, view, plan: PLANS.with_borrow_mut(Vec::pop).unwrap_or_default() })
    }

    #[inline]
    fn nodes(&self) -> &[Node] {
        // SAFETY: the view describes an array of the tape, which lives as long as `self`.
        unsafe { self.view.nodes.get() }
    }

    #[inline]
    fn node_operands(&self, node: usize) -> &[u32] {
        let Node { operand_start, operand_count, .. } = self.nodes()[node];
        // SAFETY: as in `nodes`.
        let operands = unsafe { self.view.operands.get() };
        &operands[operand_start as usize..(operand_start + operand_count) as usize]
    }

    /// The number of nodes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.nodes.count
    }

    /// Whether no node depends on a placeholder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.nodes.count == 0
    }

    /// The number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.view.slots as usize
    }

    /// The primitive name of a node.
    #[inline]
    #[must_use]
    pub fn name(&self, node: usize) -> NameId {
        NameId(self.nodes()[node].primitive)
    }

    /// The slots of a node's operands; `None` for one that does not depend on a placeholder.
    #[inline]
    #[must_use]
    pub fn operands(&self, node: usize) -> impl ExactSizeIterator<Item = Option<Slot>> + '_ {
        self.node_operands(node).iter().map(|&raw| Slot::known(raw))
    }

    /// The number of a node's operands.
    #[inline]
    #[must_use]
    pub fn arity(&self, node: usize) -> usize {
        self.nodes()[node].operand_count as usize
    }

    /// The slot of one operand of a node; `None` if it does not depend on a placeholder.
    #[inline]
    #[must_use]
    pub fn operand_slot(&self, node: usize, operand: usize) -> Option<Slot> {
        Slot::known(self.node_operands(node)[operand])
    }

    /// The slots of a node's results.
    #[inline]
    pub fn results(&self, node: usize) -> impl ExactSizeIterator<Item = Slot> + use<> {
        let node = self.nodes()[node];
        (node.result_start..node.result_start + node.result_count).map(Slot)
    }

    /// The slot of each walked output; `None` for one that does not depend on a placeholder.
    #[must_use]
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = Option<Slot>> + '_ {
        // SAFETY: as in `nodes`.
        let outputs = unsafe { self.view.outputs.get() };
        outputs.iter().map(|&raw| Slot::known(raw))
    }

    /// An operand as it was recorded.
    ///
    /// # Errors
    ///
    /// The node has no such operand.
    pub fn operand(&self, node: usize, operand: usize) -> Result<Array, BridgeError> {
        // SAFETY: the tape is live; the callee checks both indices.
        arrays::filled(|out| unsafe { ffi::tacit_tape_operand(self.raw, node as u32, operand as u32, out) })
    }

    /// A result as it was recorded.
    ///
    /// # Errors
    ///
    /// The node has no such result.
    pub fn result(&self, node: usize, result: usize) -> Result<Array, BridgeError> {
        // SAFETY: the tape is live; the callee checks both indices.
        arrays::filled(|out| unsafe { ffi::tacit_tape_result(self.raw, node as u32, result as u32, out) })
    }

    /// The aval of a result.
    ///
    /// # Errors
    ///
    /// The node has no such result.
    pub fn aval(&self, node: usize, result: usize) -> Result<Aval, BridgeError> {
        let (node, result) = (node as u32, result as u32);
        let none = AvalView { shape: std::ptr::null(), ndim: 0, dtype: 0 };
        // SAFETY: the tape is live, the callee checks both indices, and the out-pointer is live for the call.
        let aval = arrays::written(none, |aval| unsafe { ffi::tacit_tape_aval(self.raw, node, result, aval) })?;
        // SAFETY: the call succeeded, so it described an array that the tape holds.
        unsafe { arrays::aval_of(aval) }
    }

    /// The primitive of a node.
    pub fn primitive(&self, node: usize) -> Result<Primitive, BridgeError> {
        // SAFETY: the tape and the pointer are live for the call; the callee checks the index.
        let raw = arrays::pointer(|raw| unsafe { ffi::tacit_tape_primitive(self.raw, node as u32, raw) })?;
        // SAFETY: the call succeeded, so it stored an object that is ours.
        Ok(unsafe { Primitive::owned(raw, self.name(node)) })
    }

    /// Keeps `value` for edits; one that goes to many edges is kept once.
    pub fn keep(&mut self, value: Array) -> Kept {
        self.plan.kept.push(value);
        Kept(self.plan.kept.len() - 1)
    }

    /// Plans to assign a kept value to an operand of a node; [`rewire`](Self::rewire) does it.
    #[inline]
    pub fn plan(&mut self, node: usize, operand: usize, value: Kept) {
        let value = self.plan.kept[value.0].as_ptr();
        self.plan.edits.push(Edit { node: node as u32, operand: operand as u32, value });
    }

    /// Whether anything is planned and not done.
    #[must_use]
    pub fn has_plan(&self) -> bool {
        !self.plan.edits.is_empty()
    }

    /// Does what was planned since the last time, in one call.
    ///
    /// # Errors
    ///
    /// A planned node has no such operand.
    pub fn rewire(&mut self) -> Result<(), BridgeError> {
        // SAFETY: the tape is live, and the plan keeps every array that the edits point to.
        let status = unsafe { ffi::tacit_tape_rewire(self.raw, self.plan.edits.as_ptr(), self.plan.edits.len()) };
        self.plan.edits.clear();
        check(status)
    }

    /// Makes the recorded results of nodes copies of other arrays of the same avals, where anybody holds them.
    ///
    /// The nodes come in their order, each with all of its results; `None` is one that has no array to give, and a node that
    /// has one of these stays as it is. A node that nobody holds lets go of what it takes. None is what was recorded any more.
    ///
    /// # Errors
    ///
    /// There is no such node, or it has fewer results.
    pub fn supersede<'a, R>(&mut self, nodes: impl IntoIterator<Item = (usize, R)>) -> Result<(), BridgeError>
    where
        R: IntoIterator<Item = Option<&'a Array>>,
    {
        self.plan.edits.clear();
        for (node, results) in nodes {
            self.plan.edits.extend(results.into_iter().enumerate().map(|(result, value)| Edit {
                node: node as u32,
                operand: result as u32,
                value: value.map_or(arrays::NONE, Array::as_ptr),
            }));
        }
        // SAFETY: the tape is live, and the caller lends every array that the edits point to.
        let status = unsafe { ffi::tacit_tape_supersede(self.raw, self.plan.edits.as_ptr(), self.plan.edits.len()) };
        self.plan.edits.clear();
        check(status)
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        // SAFETY: the tape is ours and is freed once.
        unsafe { ffi::tacit_tape_free(self.raw) };
        let mut plan = std::mem::take(&mut self.plan);
        plan.edits.clear();
        plan.kept.clear();
        if plan.edits.capacity() > MOST_SPARE {
            return;
        }
        // A thread that ends may be without it already.
        let _ = PLANS.try_with(|plans| plans.borrow_mut().push(plan));
    }
}

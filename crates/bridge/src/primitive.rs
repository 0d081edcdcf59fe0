//! A primitive apart from the node it was recorded in.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use mlx_rs::Array;

use crate::error::BridgeError;
use crate::ffi::{self, Span};
use crate::kernel::Kernel;
use crate::typed::Class;
use crate::{NameId, Param, arrays, kernel, param, typed};

/// One MLX primitive with its static parameters.
///
/// It can be emitted again with other operands, whatever it is: nothing here knows what it computes.
#[derive(Clone)]
pub struct Primitive {
    name: NameId,
    raw: Arc<Raw>,
}

struct Raw(*mut c_void);

// SAFETY: the C++ object is never changed after it is made, and its reference counts are atomic.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the object is ours and is freed once.
        unsafe { ffi::tacit_primitive_free(self.0) };
    }
}

impl Primitive {
    /// The primitive that makes `node`.
    pub(crate) fn from_node(node: &Array, name: NameId) -> Result<Self, BridgeError> {
        // SAFETY: the handle and the pointer are live for the call.
        let raw = arrays::pointer(|raw| unsafe { ffi::tacit_primitive_of(node.as_ptr(), raw) })?;
        // SAFETY: the call succeeded, so it stored an object that is ours.
        Ok(unsafe { Self::owned(raw, name) })
    }

    /// Takes over a primitive of this name that the C++ side gives away.
    ///
    /// # Safety
    ///
    /// `raw` must own one that nothing else frees.
    pub(crate) unsafe fn owned(raw: *mut c_void, name: NameId) -> Self {
        Self { name, raw: Arc::new(Raw(raw)) }
    }

    /// The primitive that makes `array`; `None` for an array that no primitive makes, or that is evaluated.
    pub fn making(array: &Array) -> Result<Option<Self>, BridgeError> {
        // SAFETY: the handle and the pointer are live for the call.
        let id = arrays::written(u32::MAX, |id| unsafe { ffi::tacit_array_name(array.as_ptr(), id) })?;
        if id == u32::MAX { Ok(None) } else { Self::from_node(array, NameId(id)).map(Some) }
    }

    /// The name as MLX spells it, such as `Matmul`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.text()
    }

    /// The name as a number.
    #[must_use]
    pub fn name_id(&self) -> NameId {
        self.name
    }

    /// The static parameters, in the order of the table, or as a kernel tells them; empty for a primitive that has none or
    /// is not in the table.
    ///
    /// # Errors
    ///
    /// The loaded MLX lays the parameters out in a way that this build does not know.
    pub fn params(&self) -> Result<Vec<Param>, BridgeError> {
        if let Some(params) = self.kernel_params() {
            return Ok(params.into_iter().map(|(_, param)| param).collect());
        }
        // SAFETY: the object is live.
        unsafe { param::of_recorded(self.raw.0) }
    }

    /// The kernel that the primitive is, if it is one.
    #[must_use]
    pub fn kernel(&self) -> Option<&dyn Kernel> {
        self.held_kernel().map(|kernel| &**kernel)
    }

    /// The kernel that the primitive is, if it is one, for another node to run.
    #[must_use]
    pub fn shared_kernel(&self) -> Option<Arc<dyn Kernel>> {
        self.held_kernel().cloned()
    }

    fn held_kernel(&self) -> Option<&Arc<dyn Kernel>> {
        // SAFETY: the object lives as long as `self`.
        unsafe { kernel::of_recorded(self.raw.0) }
    }

    fn kernel_params(&self) -> Option<Vec<(&'static str, Param)>> {
        self.kernel()?.params()
    }

    /// How many operands of a [`checkpoint`](crate::checkpoint) are the arguments of its function, whose results are the others;
    /// nothing for any other primitive.
    #[must_use]
    pub fn checkpoint_args(&self) -> Option<usize> {
        // SAFETY: the object is live.
        Some(unsafe { ffi::tacit_primitive_args(self.raw.0) }).filter(|&args| args > 0)
    }

    /// Calls the function of a checkpoint.
    ///
    /// # Errors
    ///
    /// The function fails; the primitive is no checkpoint of so many arguments.
    pub fn call_checkpointed(&self, args: &[Array]) -> Result<Vec<Array>, BridgeError> {
        let handles = arrays::handles(args);
        // SAFETY: the object, the handles and the sink are live for the call.
        arrays::collected(|results| unsafe {
            ffi::tacit_primitive_call_again(self.raw.0, Span::new(&handles), results)
        })
    }

    /// Emits the primitive again with other operands.
    ///
    /// Operands of the recorded shapes give the recorded result shapes; other shapes are worked out by the primitive.
    ///
    /// # Errors
    ///
    /// The operands differ in number or dtype from the recorded ones, but for the dtype of what is only moved; or in shape,
    /// and the shapes do not go together or the primitive cannot work out its result shapes.
    pub fn emit(&self, operands: &[Array]) -> Result<Vec<Array>, BridgeError> {
        let handles = arrays::handles(operands);
        let class = self.name.description().map(|description| description.class);
        let moves = matches!(class, Some(Class::Moving | Class::Reshaping));
        // SAFETY: the object, the handles and the sink are live for the call.
        arrays::collected(|results| unsafe {
            ffi::tacit_primitive_emit(self.raw.0, Span::new(&handles), moves, results)
        })
    }
}

impl fmt::Display for Primitive {
    /// As in a jaxpr: `transpose[axes=(1,0)]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kernel_params() {
            Some(params) => f.write_str(&typed::print_named(self.name(), &params)),
            None => f.write_str(&typed::print(self.name(), &self.params().unwrap_or_default())),
        }
    }
}

impl fmt::Debug for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Primitive({self})")
    }
}

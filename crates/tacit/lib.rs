#![doc = include_str!("../../README.md")]

// The executable exports the BLAS that MLX's CPU backend then uses.
#[cfg(feature = "blas")]
use tacit_blas as _;

// Compiled graphs are rewritten by the passes that are linked.
use tacit_fusion as _;

// Array types register their handlers by being linked; a crate that is never named in code would register nothing.
pub use tacit_arrays::{self as arrays, format};
pub use tacit_core::{
    Aval, Counters, Error, ImplicitArray, Materialize, Policy, Primitive, Result, Tree, Value, compile, control,
    explain, extra_ops, handler, implicit, implicit_with_state, kernel, pass, primitives, store, transform, tree,
};
pub use tacit_distributed as distributed;
pub use tacit_executable as executable;
pub use tacit_io as io;
pub use tacit_models as decoders;
pub use tacit_nn as model;
pub use tacit_record as record;

/// How a primitive finds who takes it, and what a trace tells of it.
pub mod dispatch {
    pub use tacit_core::{
        Argument, Call, DEVICE_FALLBACK_VARIABLE, Decline, DefaultHandler, DeviceFallback, DeviceFallbackGuard,
        Equation, Explanation, Handler, HandlerDef, HandlerFn, HandlerPrimitive, IntoResults, NearMiss, OperandPattern,
        OperandType, POLICY_VARIABLE, Param, PolicyGuard, PrimitivePattern, Registry, RegistryGuard, Resolution,
        Results, Signature, Site, Taker, Variable,
    };
}

/// What is known of array types, and the children that one has.
pub mod types {
    pub use tacit_core::{
        ArrayType, ChildField, ChildName, ChildRef, NamedChild, StaticType, array_types, dtype_name, dtype_named,
        materialize, short_name,
    };
}

/// Macros that register types, formats and passes of one's own.
pub mod register {
    pub use tacit_arrays::register_format;
    pub use tacit_core::{register_array, register_node, register_pass};
}

/// What most programs need.
pub mod prelude {
    pub use crate::arrays::{AffineArray, Nf4Array, ste};
    pub use crate::format::{Affine, AnyFormat, Nf4, Quantizer};
    pub use crate::io::ModelFile;
    pub use crate::model::{
        LoraConfig, Model, ParameterFilter, Parameters, Rules, quantized, straight_through, with_parameters,
    };
    pub use crate::{
        Aval, Counters, Error, ImplicitArray, Materialize, Policy, Primitive, Result, Value, explain, handler,
        implicit, primitives,
    };
}

// What the output of the macros names beside the above.
#[doc(hidden)]
pub use tacit_core::{
    __private, ChildField, ChildName, ChildRef, DefaultHandler, Handler, OperandPattern, Signature, Site,
};

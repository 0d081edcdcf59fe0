#![doc = include_str!("../../README.md")]

// Array types register their handlers by being linked; a crate that is never named in code would register nothing.
use tacit_arrays as _;
// The executable exports the BLAS that MLX's CPU backend then uses.
#[cfg(feature = "blas")]
use tacit_blas as _;

pub use tacit_arrays::{
    AffineArray, BinaryArray, Cast, Concat, Constant, Diagonal, Dynamic8Array, E5m2Array, Fp4Array, Identity,
    Int8Array, Linear, Lora, LowRank, Masked, Mxfp4Array, Mxfp8Array, Nf4Array, Nvfp4Array, Packed, PackedArray,
    ScaleRule, Scaled, Sliced, Sparse24, Stacked, Ste, TernaryArray, Transposed, format, register_format, ste,
};
pub use tacit_core::{
    Arguments, ArrayType, Aval, Call, ChildField, ChildName, ChildRef, Counters, Decline, DefaultHandler, Equation,
    Error, Explanation, Handler, ImplicitArray, Materialize, NamedChild, NearMiss, OperandType, POLICY_VARIABLE, Param,
    Pattern, Policy, PolicyGuard, Primitive, PrimitivePattern, Registry, RegistryGuard, Resolution, Result, Results,
    Signature, Site, StaticType, Taker, Tree, Value, Variable, array_types, compile, compile_with, compile_with_state,
    control, dtype_name, dtype_named, explain, handler, implicit, kernel, materialize, op, register_array,
    register_node, short_name, store, transform, tree,
};
pub use tacit_executable::{self as executable, Executable};
pub use tacit_nn::{
    ImplicitModule, Inputs, Module, Parameters, Stateful, check_parameters, explain_with_parameters, quantized,
    straight_through, with_parameters,
};

/// The array types' own modules, which hold their handlers.
pub mod arrays {
    pub use tacit_arrays::{
        affine, binary, cast, concat, constant, diagonal, dynamic8, e5m2, fp4, identity, int8, linear, lora, low_rank,
        masked, mxfp4, mxfp8, nf4, nvfp4, packed, scaled, sliced, sparse24, stacked, ste, structural, ternary,
        transposed, views,
    };
}

/// What most programs need.
pub mod prelude {
    pub use crate::{
        AffineArray, Aval, Counters, Error, ImplicitArray, ImplicitModule, Materialize, Nf4Array, Parameters, Policy,
        Primitive, Result, Value, explain, handler, implicit, op, quantized, ste, straight_through, with_parameters,
    };
}

#[doc(hidden)]
pub use tacit_core::__private;

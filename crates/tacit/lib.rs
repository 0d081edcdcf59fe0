#![doc = include_str!("../../README.md")]

// Array types register their handlers by being linked; a crate that is never named in code would register nothing.
use tacit_arrays as _;
// The executable exports the BLAS that MLX's CPU backend then uses.
#[cfg(feature = "blas")]
use tacit_kernels as _;

pub use tacit_arrays::{
    AffineArray, BinaryArray, Cast, Concat, Constant, Diagonal, Dynamic8Array, Fp4Array, Identity, Int8Array, Lora,
    LowRank, Masked, Mxfp4Array, Mxfp8Array, Nf4Array, Nvfp4Array, ScaleRule, Scaled, Sliced, Sparse24, Stacked, Ste,
    TernaryArray, Transposed, ste,
};
pub use tacit_core::{
    Aval, ChildField, ChildName, ChildRef, Counters, DefaultHandler, Equation, Error, Explanation, Handler,
    ImplicitArray, Materialize, NamedChild, NearMiss, OperandType, POLICY_VARIABLE, Param, Parameters, Pattern, Policy,
    PolicyGuard, Primitive, Registry, RegistryGuard, Resolution, Result, Signature, Site, Taker, Tree, Value, Variable,
    check_parameters, compile, compile_with, compile_with_state, control, dtype_name, dtype_named, executable,
    executable::Executable, explain, explain_with_parameters, handler, implicit, kernel, materialize, op,
    register_node, short_name, store, transform, tree, with_parameters,
};
pub use tacit_nn::{ImplicitModule, quantized, straight_through};

/// The array types' own modules, which hold their handlers.
pub mod arrays {
    pub use tacit_arrays::{
        affine, binary, cast, concat, constant, diagonal, dynamic8, fp4, identity, int8, lora, low_rank, masked, mxfp4,
        mxfp8, nf4, nvfp4, scaled, sliced, sparse24, stacked, ste, structural, ternary, transposed,
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

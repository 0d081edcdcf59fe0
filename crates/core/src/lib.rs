//! Implicit arrays, handlers, dispatch and the interception of MLX graphs.
//!
//! [`implicit()`] records a function of plain mlx-rs code on placeholders, walks the graph that MLX built, sends each
//! primitive on an implicit operand to the handler registered for it ([`Registry`], `#[handler]`), materializes
//! operands where there is none ([`Policy`]), and gives the plain graph back to MLX. [`dispatch`](mod@dispatch) states
//! who takes a call.
//!
//! Calls read in one way. What runs a function once takes what the function runs on first, and the function last, so that
//! the types of a closure are inferred: `implicit(args, f)`, `vjp(args, cotangents, f)`, `scan(init, xs, length, f)`. What
//! makes a function takes how it is made first, and the function last, and gives an object: `grad(f)`, `vmap(in_axes,
//! out_axes, f)`, `compile_with(options, f)`; its `call(args)` runs it. `args` are [`Arguments`] everywhere: arrays, values,
//! implicit arrays, references to these, and structures of them.
//!
//! This crate knows no array type, see `tacit-arrays`, and no module, see `tacit-nn`.

// The macros' output names this crate as the facade does.
extern crate self as tacit;

mod approx;
mod array_type;
mod axes;
mod bits;
mod class;
pub mod compile;
pub mod control;
mod counters;
mod derive_support;
pub mod dispatch;
#[doc(hidden)]
pub mod embedding;
mod environment;
mod error;
mod explain;
pub mod extra_ops;
mod handler;
mod handling;
mod implicit;
mod implicit_array;
mod indices;
pub mod json_number;
pub mod kernel;
mod lookup;
mod macros;
mod materialize;
pub mod pass;
mod pattern;
mod phases;
mod policy;
mod primitive;
mod recording;
mod registry;
mod scoped;
mod site;
mod state;
pub mod store;
mod trace;
pub mod transform;
pub mod tree;
mod value;
mod values;

pub use array_type::{ArrayType, StaticType, array_types};
pub use compile::{compile, compile_with, compile_with_state};
pub use counters::Counters;
pub use dispatch::Taker;
pub use error::{Error, Result};
pub use explain::{CompiledGraph, CompiledNode, Equation, Explanation, Variable};
pub use handler::{Call, Handler, HandlerDef, HandlerFn, HandlerPrimitive, IntoResults, Results};
pub use implicit::{explain, implicit, implicit_with_state};
pub use implicit_array::{ChildField, ChildName, ChildRef, DefaultHandler, ImplicitArray, Materialize, NamedChild};
pub use materialize::materialize;
pub use pattern::{OperandPattern, OperandType, PrimitivePattern, Signature};
pub use policy::{DeviceFallback, Policy};
pub use primitive::Primitive;
pub use registry::{Registry, Resolution};
pub use scoped::{DEVICE_FALLBACK_VARIABLE, DeviceFallbackGuard, POLICY_VARIABLE, PolicyGuard, RegistryGuard};
pub use site::{Argument, Decline, NearMiss, Site};
pub use tacit_bridge::{
    Aval, Param, any_tracer, array_id, broadcast_source, dtype_name, dtype_named, forget_pages, has_shape_rules,
    in_transform,
};
pub use tacit_drawing::printable;
pub use tree::Arguments;
pub use tree::definition::Tree;
pub use value::{Value, short_name};

pub use macros::{ImplicitArray, Tree, handler};

/// The typed views of MLX's primitives, and the table that they come from.
pub mod primitives {
    pub use crate::axes::reshaped_axis;
    pub use crate::class::{
        Binary, Elementwise, Graph, Moving, Product, Reduction, Reshaping, Rowwise, Scan, Unary, Update,
    };
    pub use tacit_bridge::typed::*;
}

/// What the macros' output refers to.
#[doc(hidden)]
pub mod __private {
    pub use crate::array_type::{ArrayType, FamilyCast, Load, Membership, StaticType, TypeEntry, load};
    pub use crate::derive_support::*;
    pub use crate::handler::{
        HandlerDef, HandlerError, HandlerOperand, HandlerPrimitive, HandlerResult, Registration, family_operand,
        operand,
    };
    pub use crate::register_array;
    pub use crate::store::StoredChild;
    pub use crate::tree::{flatten_node, unflatten_node};
    pub use {inventory, serde};

    /// An alias: where a hidden module exports the type itself, the compiler no longer names it in its hints.
    pub type Array = mlx_rs::Array;
}

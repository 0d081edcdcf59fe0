//! The family of adapters: a frozen base and a trainable change beside it.

use mlx_rs::Array;
use tacit_core::{ImplicitArray, Result, Value};

use crate::families::linear::{Linear, Product};
use crate::kernel::Summands;

/// The family of adapters: matrices that are a frozen base and what is trained beside it, such as
/// [`Lora`](crate::Lora).
///
/// Whatever adapts a weight joins it, and is then trained, saved by itself, merged and stored as every other.
pub trait Adapter: Linear {
    /// The frozen array, transposed if the adapter is.
    fn base(&self) -> &Value;

    /// The same adapter on another base, such as that of a set of adapters.
    ///
    /// # Errors
    ///
    /// The base does not fit.
    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>>;

    /// The names of the children that are trained.
    fn trained(&self) -> &'static [&'static str];

    /// The probability with which an input feature is dropped in training.
    fn dropout(&self) -> f32 {
        0.0
    }

    /// The same adapter with this choice of dropped features, `u32[2]`, or with none dropped; one that drops nothing is itself.
    ///
    /// # Errors
    ///
    /// It is no key.
    fn with_key(&self, _key: Option<Array>) -> Result<Box<dyn ImplicitArray>> {
        self.with_base(self.base().clone())
    }

    /// The matrix, or its transpose if `transposed`, as a sum that kernels read; `None` where it is no such sum or the base
    /// is neither dense nor packed.
    ///
    /// # Errors
    ///
    /// Scales that are packed themselves are built, which the policy may forbid.
    fn summands(&self, transposed: bool) -> Result<Option<Summands>>;

    /// What of a product depends on the trained children. Its derivative for them is that of the whole product, its value
    /// need not be.
    ///
    /// # Errors
    ///
    /// It declines what it cannot take.
    fn change(&self, product: Product, x: &Array) -> Result<Array>;

    /// The array that it is merged into without loss, if there is one.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    fn lossless(&self) -> Result<Option<Value>> {
        Ok(None)
    }
}

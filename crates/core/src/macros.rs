//! The macros, with what the examples in their documentation need in scope.

/// Implements [`trait@ImplicitArray`](crate::ImplicitArray), and with it [`Arguments`](crate::Arguments), for a struct from
/// its fields.
///
/// ```
/// # extern crate tacit_core as tacit;
/// use tacit::{Aval, ImplicitArray, Materialize, Result, Value};
///
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "docs.Doubled")]
/// struct Doubled {
///     half: Value,
///     #[implicit(aux)]
///     aval: Aval,
/// }
///
/// impl Materialize for Doubled {
///     fn materialize(&self) -> Result<Value> {
///         let half = self.half.dense()?;
///         Ok((&half + &half).into())
///     }
/// }
/// # fn main() {}
/// ```
pub use tacit_macros::ImplicitArray;

/// Implements [`trait@Tree`](crate::Tree), and with it [`Arguments`](crate::Arguments), for a struct or an enum from its
/// fields.
///
/// ```
/// # extern crate tacit_core as tacit;
/// use mlx_rs::Array;
/// use tacit::tree::{self, Open};
/// use tacit::{Result, Tree, Value};
///
/// #[derive(Tree)]
/// struct Layer<L = Array> {
///     weight: L,
///     #[tree(static)]
///     heads: usize,
/// }
///
/// #[derive(Tree)]
/// enum Model<L = Array> {
///     Tied(Layer<L>),
///     Deep { layers: Vec<Layer<L>>, head: Option<L> },
/// }
///
/// # fn main() -> Result<()> {
/// let layer = || Layer { weight: Array::from_f32(1.0), heads: 4 };
/// let def = tree::structure(&Model::Deep { layers: vec![layer(), layer()], head: None })?;
/// assert_eq!(
///     def.to_string(),
///     "Model::Deep{layers: [Layer{weight: *, heads=4}, Layer{weight: *, heads=4}], head: None}"
/// );
/// // The same structure with other leaves.
/// let values: Model<Value> = tree::unflatten(&def, vec![Array::from_f32(2.0).into(), Array::from_f32(3.0).into()])?;
/// # assert!(matches!(values, Model::Deep { layers, head: None } if layers.len() == 2));
/// # let _ = Model::Tied(layer());
/// # Ok(())
/// # }
/// ```
pub use tacit_macros::Tree;

/// Registers a function as the handler of the primitive and the operands in its signature.
///
/// ```standalone_crate
/// # extern crate tacit_core as tacit;
/// # use mlx_rs::Array;
/// use tacit::primitives::Negative;
/// use tacit::{ImplicitArray, Materialize, Result, Value, handler, implicit};
///
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "docs.Doubled")]
/// struct Doubled {
///     half: Array,
/// }
///
/// #[handler]
/// fn negate_doubled(_op: &Negative, x: &Doubled) -> Result<Value> {
///     Ok(Doubled { half: x.half.negative()? }.into())
/// }
/// #
/// # impl Materialize for Doubled {
/// #     fn materialize(&self) -> Result<Value> { Ok((&self.half + &self.half).into()) }
/// # }
///
/// # fn main() -> Result<()> {
/// let x = Doubled { half: Array::from_slice(&[1f32, 2.0], &[2]) };
/// let y = implicit(x, |x| x.negative())?;
/// assert_eq!(y.to_string(), "Doubled(f32[2])");
/// # Ok(())
/// # }
/// ```
pub use tacit_macros::handler;

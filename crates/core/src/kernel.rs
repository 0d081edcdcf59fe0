//! Host code as an MLX primitive.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::mem::{Discriminant, discriminant};
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use mlx_rs::Array;
use tacit_bridge::kernel::{Placed, Placement};
use tacit_bridge::typed::describe;

pub use crate::scoped::{TracedForGuard, trace_for};
pub use tacit_bridge::kernel::{Element, EvalPiece, Fallback, GpuBackend, Input, Kernel, Launch, Output, Pieces};
pub use tacit_bridge::{Mapped, QuantizationMode, Quantized};

use crate::counters::Counters;
use crate::environment::{Setting, Switch};
use crate::error::way_out;
use crate::handler::HandlerPrimitive;
use crate::pattern::PrimitivePattern;
use crate::scoped::traced_for;
use crate::{Aval, DeviceFallback, Error, Policy, Primitive, Result, policy};

/// Puts `kernel` into the graph, applied to `inputs`.
///
/// # Errors
///
/// The kernel refuses the avals of the inputs, or has the name of a primitive of MLX. What it refuses when it runs becomes an
/// error of the eval.
pub fn apply(kernel: impl Kernel, inputs: &[Array]) -> Result<Vec<Array>> {
    // Handlers and passes know primitives by their names, and would take the kernel for what MLX computes.
    if let Some(own) = describe(kernel.name()) {
        let name = kernel.name();
        return Err(Error::invalid(
            format!("a kernel is named {name}, which is read as the primitive {} of MLX", own.name),
            format!("give it a name of its own, such as `yourcrate.{name}`"),
        ));
    }
    let host = DeviceFallback::current() == DeviceFallback::Cpu;
    let placement = Placement { host, sourceless: !gpu_sources(), traced_for: traced_for() };
    let kernel: Arc<dyn Kernel> = Arc::new(kernel);
    let (result, placed) = tacit_bridge::kernel::place(Arc::clone(&kernel), inputs, placement)?;
    match placed {
        Placed::Cpu | Placed::Gpu => {}
        Placed::Host => Counters { offloaded: 1, ..Counters::default() }.add(),
        Placed::Plain => {
            let backend = placement.traced_for.or_else(GpuBackend::available).filter(|_| placement.sourceless);
            let has_source = backend.is_some_and(|backend| {
                let avals: Vec<Aval> = inputs.iter().map(Aval::from).collect();
                kernel.launch(&avals, backend).is_some()
            });
            Counters { decomposed: 1, switched_off: has_source.into(), ..Counters::default() }.add();
        }
    }
    Ok(result)
}

/// The variable that says whether kernels run on GPUs from their sources: `on` or `off`.
pub const GPU_SOURCES_VARIABLE: &str = "TACIT_GPU_SOURCES";

/// Whether kernels run on GPUs from their sources, as the environment says (`TACIT_GPU_SOURCES=on` or `off`).
///
/// With `off` every kernel is one without a source, and [`DeviceFallback`] says what stands for it: the way out where the compiler
/// of a GPU refuses one. It is read once; a CPU runs kernels as ever.
#[must_use]
pub fn gpu_sources() -> bool {
    static SOURCES: Setting<Switch, 2> = Setting::new(GPU_SOURCES_VARIABLE, [("on", Switch::On), ("off", Switch::Off)]);
    SOURCES.get() == Switch::On
}

/// A kernel that handlers can take by its type, as [`Applied`].
pub trait NamedKernel: Kernel {
    /// The name that [`Kernel::name`] returns: the same for all kernels of the type, and for no kernel of another type or
    /// primitive of MLX.
    const NAME: &'static str;
}

/// A kernel that is applied to operands: the first parameter of its handlers, `op: &Applied<Cap>`.
///
/// ```standalone_crate
/// # extern crate tacit_core as tacit;
/// use mlx_rs::Array;
/// use tacit::kernel::{self, Applied, Input, Kernel, NamedKernel, Output};
/// use tacit::{Aval, ImplicitArray, Materialize, Result, Value, handler, implicit};
///
/// /// The same number everywhere.
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "doc.Same")]
/// struct Same {
///     number: Array,
///     #[implicit(aux)]
///     aval: Aval,
/// }
///
/// impl Materialize for Same {
///     fn materialize(&self) -> Result<Value> {
///         Ok(mlx_rs::ops::broadcast_to(&self.number, &self.aval.shape)?.into())
///     }
/// }
///
/// struct Cap {
///     most: f32,
/// }
///
/// impl Kernel for Cap {
///     fn name(&self) -> &'static str {
///         Self::NAME
///     }
///     // The shapes of the results, of a function without shapes as well, and what computes them.
/// #   fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, Box<dyn std::error::Error + Send + Sync>> {
/// #       Ok(inputs.to_vec())
/// #   }
/// #   fn eval_cpu(
/// #       &self, inputs: &[Input<'_>], outputs: &mut [Output<'_>],
/// #   ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// #       let capped = outputs[0].elements::<f32>()?.iter_mut().zip(inputs[0].elements::<f32>()?);
/// #       Ok(capped.for_each(|(y, x)| *y = x.min(self.most)))
/// #   }
/// #   fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, Box<dyn std::error::Error + Send + Sync>> {
/// #       Ok(vec![mlx_rs::ops::minimum(&inputs[0], Array::from_f32(self.most))?])
/// #   }
/// }
///
/// impl NamedKernel for Cap {
///     const NAME: &'static str = "Cap";
/// }
///
/// #[handler]
/// fn cap_same(op: &Applied<Cap>, x: &Same) -> Result<Value> {
///     let number = kernel::apply(Cap { most: op.most }, &[x.number.clone()])?.swap_remove(0);
///     Ok(Same { number, aval: x.aval.clone() }.into())
/// }
///
/// # fn main() -> Result<()> {
/// let x = Same { number: Array::from_f32(3.0), aval: Aval::new(&[1000], mlx_rs::Dtype::Float32) };
/// let cap = |x: Array| Ok::<_, tacit::Error>(kernel::apply(Cap { most: 2.0 }, &[x])?.swap_remove(0));
/// let y = implicit(x, cap)?;
/// assert_eq!(y.to_string(), "Same(f32[1000])");
/// # Ok(())
/// # }
/// ```
pub struct Applied<K> {
    primitive: Primitive,
    kernel: PhantomData<fn() -> K>,
}

impl<K> Applied<K> {
    /// The primitive, which can be put on other operands.
    #[must_use]
    pub fn primitive(&self) -> &Primitive {
        &self.primitive
    }
}

impl<K: Kernel> Deref for Applied<K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.primitive.kernel().unwrap_or_else(|| unreachable!("it was looked at before it was applied"))
    }
}

impl<K: NamedKernel> HandlerPrimitive for Applied<K> {
    const PATTERN: PrimitivePattern = PrimitivePattern::Named(K::NAME);

    fn with<R>(primitive: &Primitive, f: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        if primitive.kernel::<K>().is_none() {
            return Err(Error::decline(format!("it is another kernel of the name {}", K::NAME)));
        }
        f(&Self { primitive: primitive.clone(), kernel: PhantomData })
    }
}

/// Fails if `array` is computed from the results of a kernel that failed, as every read and eval of it does. A kernel that
/// has not run yet may still fail.
///
/// # Errors
///
/// The failure.
pub fn check_intact(array: &Array) -> Result<()> {
    Ok(tacit_bridge::kernel::check_intact(array)?)
}

/// Asks the policy whether what stands for a kernel may build `dense`, and counts it.
///
/// For the [fallback](Kernel::fallback) of a kernel that works on codes or parts, where its decomposition builds the array
/// that these stand for: that is materialization like any other. A vmap builds one for each example. The warning comes once
/// for each kernel and kind of reason.
///
/// # Errors
///
/// The policy forbids it.
pub fn permit_dense(kernel: &'static str, dense: &Aval, reason: Fallback) -> Result<()> {
    static WARNED: LazyLock<Mutex<Warned>> = LazyLock::new(Mutex::default);
    match Policy::current() {
        Policy::Allow => {}
        Policy::Warn => {
            // Whoever listens to warnings may come here again.
            let first = WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert((kernel, discriminant(&reason)));
            if first {
                let out = way_out(reason);
                policy::warn(&format!(
                    "kernel {kernel} builds a dense {dense} {reason}; {out}, or silence this with `Policy::Allow.scope()`"
                ));
            }
        }
        Policy::Deny => {
            return Err(Error::FallbackDenied { kernel, dense: dense.clone(), reason, arguments: Vec::new() });
        }
    }
    let examples = if let Fallback::Vmap { examples } = reason { examples } else { 1 };
    let materialized_bytes = (dense.nbytes() * examples) as u64;
    Counters { materialized: 1, materialized_bytes, ..Counters::default() }.add();
    Ok(())
}

/// The kernels, and why plain ops stood for them.
type Warned = HashSet<(&'static str, Discriminant<Fallback>)>;

/// MLX's own product with a matrix in one of its modes: `x W^T` if `transpose`, and else `x W`.
///
/// mlx-rs binds it for the affine mode alone.
///
/// # Errors
///
/// MLX refuses the shapes or the dtypes.
pub fn quantized_matmul(x: &Array, matrix: Quantized<'_>, transpose: bool) -> Result<Array> {
    Ok(tacit_bridge::quantized_matmul(x, matrix, transpose)?)
}

//! The book's chapter on a kernel of one's own: its loop, its derivative, its shapes, and a handler for it.

// ANCHOR: use
use std::slice;

use mlx_rs::{Array, ops};
use tacit::arrays::Constant;
use tacit::compile::{CompileOptions, compile_with};
use tacit::dispatch::Param;
use tacit::kernel::{self, Applied, GpuBackend, Input, Kernel, Launch, NamedKernel, Output, trace_for};
use tacit::prelude::*;
use tacit::transform::grad;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 5] =
    [("values", values), ("gradient", gradient), ("shapes", shapes), ("gpu", gpu), ("handled", handled)];

type BoxError = Box<dyn std::error::Error + Send + Sync>;

// ANCHOR: kernel
/// `cap tanh(x / cap)` of each element of `x: f32[..]`: logits that stay below a cap, as Gemma 2 has them.
struct SoftCap {
    cap: f32,
}

impl Kernel for SoftCap {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let elements = outputs[0].elements::<f32>()?.iter_mut().zip(inputs[0].elements::<f32>()?);
        elements.for_each(|(y, x)| *y = self.cap * (x / self.cap).tanh());
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        let cap = Array::from_f32(self.cap);
        Ok(vec![ops::tanh(inputs[0].divide(&cap)?)?.multiply(cap)?])
    }

    // ANCHOR_END: kernel
    // ANCHOR: params
    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(vec![("cap", Param::Float(self.cap.into()))])
    }
    // ANCHOR_END: params

    // ANCHOR: vjp
    fn vjp(&self, primals: &[Array], cotangents: &[Array], _: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let rule = || {
            let y = soft_cap(self.cap, &primals[0])?.divide(Array::from_f32(self.cap))?;
            let slope = Array::from_f32(1.0).subtract(y.square()?)?;
            Ok(vec![cotangents[0].multiply(slope)?])
        };
        Some(rule())
    }
    // ANCHOR_END: vjp

    // ANCHOR: launch
    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        let size: i32 = inputs[0].shape.iter().product();
        let at = match backend {
            GpuBackend::Metal => "thread_position_in_grid.x",
            GpuBackend::Cuda => "blockIdx.x * blockDim.x + threadIdx.x",
        };
        // What is compiled into the text is also in its name; what changes from call to call is a size.
        let (bits, cap) = (self.cap.to_bits(), self.cap);
        let body = format!("int at = {at};\nif (at < sizes_shape[0]) y[at] = {cap:?}f * tanh(x[at] / {cap:?}f);\n");
        let (threads, group) = (size as usize, 256);
        Some(Launch {
            name: format!("soft_cap_{bits:08x}"),
            header: String::new(),
            body,
            inputs: vec!["x".into()],
            outputs: vec!["y".into()],
            sizes: vec![size],
            grid: [threads.next_multiple_of(group), 1, 1],
            group: [group, 1, 1],
            memory: 0,
        })
    }
    // ANCHOR_END: launch
}

// ANCHOR: named
impl NamedKernel for SoftCap {
    const NAME: &'static str = "SoftCap";
}

fn soft_cap(cap: f32, x: &Array) -> Result<Array> {
    Ok(kernel::apply(SoftCap { cap }, slice::from_ref(x))?.swap_remove(0))
}
// ANCHOR_END: named

fn numbers(array: &Array) -> String {
    array.as_slice::<f32>().iter().map(|number| format!("{number:.3}")).collect::<Vec<_>>().join(" ")
}

// ANCHOR: values
fn values() -> Result<String> {
    let x = Array::from_slice(&[-100f32, -1.0, 0.0, 1.0, 100.0], &[5]);
    let y = soft_cap(30.0, &x)?;
    let plain = SoftCap { cap: 30.0 }.decompose(&[x]).map_err(Error::Function)?.swap_remove(0);
    assert!(y.all_close(&plain, 1e-6, 1e-6, None)?);
    Ok(numbers(&y))
}
// ANCHOR_END: values

// ANCHOR: gradient
fn gradient() -> Result<String> {
    let mut slopes = grad(|x: Array| Ok::<_, Error>(soft_cap(30.0, &x)?.sum(None)?));
    let x = Array::from_slice(&[-100f32, -1.0, 0.0, 1.0, 100.0], &[5]);
    Ok(numbers(slopes.call(x)?.array()?))
}
// ANCHOR_END: gradient

// ANCHOR: shapes
fn shapes() -> Result<String> {
    let options = CompileOptions { shapeless: true, ..CompileOptions::default() };
    let mut capped = compile_with(options, |x: Array| soft_cap(30.0, &x));
    for rows in [2, 3, 7] {
        let y = capped.call(ops::ones::<f32>(&[rows, 4])?)?;
        assert_eq!(y.aval()?.shape, [rows, 4]);
    }
    let stats = capped.stats();
    Ok(format!("calls: {}, traces: {}, shapes that were compared: {}", stats.calls, stats.traces, stats.checked))
}
// ANCHOR_END: shapes

// ANCHOR: gpu
fn gpu() -> Result<String> {
    let _cuda = trace_for(GpuBackend::Cuda);
    let x = Array::from_slice(&[-100f32, 1.0], &[2]);
    let (y, counters) = Counters::during(|| soft_cap(30.0, &x));
    Ok(format!("{}, {} kernels as plain ops", numbers(&y?), counters.decomposed))
}
// ANCHOR_END: gpu

// ANCHOR: handler
/// Of equal elements one is capped.
#[handler]
fn soft_cap_constant(op: &Applied<SoftCap>, x: &Constant) -> Result<Value> {
    let value = soft_cap(op.cap, x.value())?;
    Ok(Constant::full(&x.aval()?.shape, &value)?.into())
}
// ANCHOR_END: handler

// ANCHOR: handled
fn handled() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let logits = Constant::full(&[32, 50_000], &Array::from_f32(90.0))?;
    Ok(explain(&logits, |x| soft_cap(30.0, &x))?.to_string())
}
// ANCHOR_END: handled

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("-- {title}\n{}\n", section()?);
    }
    Ok(())
}

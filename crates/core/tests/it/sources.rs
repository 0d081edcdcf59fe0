//! Kernels with a source for GPUs: whether it is asked for, and what it is given. A CPU computes the same from the loop.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use tacit::kernel::{self, GPU_SOURCES_VARIABLE, GpuBackend, Input, Kernel, Launch, Output, trace_for};
use tacit::{Aval, Counters, DEVICE_FALLBACK_VARIABLE, Result};

use crate::environment;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// `s x`, for `s: f32[]` and `x: f32[..]`. The name of its scalar is the end of the word `sizes`.
struct Scaled;

impl Kernel for Scaled {
    fn name(&self) -> &'static str {
        "test.Scaled"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![inputs[1].clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let (s, x) = (inputs[0].elements::<f32>()?[0], inputs[1].elements::<f32>()?);
        outputs[0].elements::<f32>()?.iter_mut().zip(x).for_each(|(y, x)| *y = s * x);
        Ok(())
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        let at = match backend {
            GpuBackend::Metal => "thread_position_in_grid.x",
            GpuBackend::Cuda => "blockIdx.x * blockDim.x + threadIdx.x",
        };
        let size = inputs[1].size();
        Some(Launch {
            name: "test_scaled".to_owned(),
            header: String::new(),
            body: format!("int at = {at};\nif (at < sizes_shape[0]) y[at] = s[0] * x[at];\n"),
            inputs: vec!["s".to_owned(), "x".to_owned()],
            outputs: vec!["y".to_owned()],
            sizes: vec![i32::try_from(size).ok()?],
            grid: [size.next_multiple_of(64), 1, 1],
            group: [64, 1, 1],
            memory: 0,
        })
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(vec![inputs[0].multiply(&inputs[1])?])
    }
}

fn scaled(s: &Array, x: &Array) -> Result<Array> {
    Ok(kernel::apply(Scaled, &[s.clone(), x.clone()])?.swap_remove(0))
}

#[test]
fn a_scalar_may_have_a_name_that_sizes_end_in() -> Result<()> {
    let y = scaled(&Array::from_f32(2.0), &Array::from_slice(&[1.0_f32, -3.0, 0.5], &[3]))?;
    assert_eq!(y.as_slice::<f32>(), [2.0, -6.0, 1.0]);
    Ok(())
}

/// These numbers in the bytes of an array from `offset` on, and a view of them.
fn at_an_address(offset: usize, numbers: &[f32]) -> Result<Array> {
    let mut bytes = vec![0_u8; offset];
    bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    let bytes = Array::from_slice(&bytes, &[bytes.len() as i32]).try_index(offset as i32..)?;
    Ok(bytes.view_dtype(Dtype::Float32)?)
}

#[test]
fn inputs_may_begin_at_any_address() -> Result<()> {
    for offset in 0..4 {
        let (s, x) = (at_an_address(offset, &[2.0])?, at_an_address(offset, &[1.0, -3.0, 0.5, 4.0])?);
        let y = scaled(&s.reshape(&[])?, &x)?;
        assert_eq!(y.as_slice::<f32>(), [2.0, -6.0, 1.0, 8.0], "{offset}");
        let y = scaled(&s.reshape(&[])?, &x.reshape(&[2, 2])?.t())?;
        assert_eq!(y.as_slice::<f32>(), [2.0, 1.0, -6.0, 8.0], "{offset}");
    }
    Ok(())
}

#[test]
#[ignore = "the process that another test starts"]
fn tell_what_stands_for_a_kernel_with_a_source() {
    let _traced_for = trace_for(GpuBackend::Cuda);
    let (y, counters) = Counters::during(|| scaled(&Array::from_f32(2.0), &Array::from_slice(&[1.0_f32, 2.0], &[2])));
    let y = y.expect("fits");
    let Counters { decomposed, offloaded, switched_off, .. } = counters;
    println!("{decomposed} plain, {switched_off} of them off, {offloaded} on the CPU: {:?}", y.as_slice::<f32>());
}

/// Standard output and error of a process that tells it.
fn told(sources: Option<&str>, fallback: &str) -> (String, String) {
    let variables = [(DEVICE_FALLBACK_VARIABLE, Some(fallback)), (GPU_SOURCES_VARIABLE, sources)];
    environment::told("sources::tell_what_stands_for_a_kernel_with_a_source", &variables)
}

#[test]
fn the_environment_has_kernels_run_as_if_they_had_no_source() {
    let cases = [
        (None, "dense", "0 plain, 0 of them off, 0 on the CPU"),
        (Some("on"), "dense", "0 plain, 0 of them off, 0 on the CPU"),
        (Some("off"), "dense", "1 plain, 1 of them off, 0 on the CPU"),
        (Some("OFF"), "dense", "1 plain, 1 of them off, 0 on the CPU"),
        (Some("off"), "cpu", "0 plain, 0 of them off, 1 on the CPU"),
    ];
    for (sources, fallback, expected) in cases {
        let (out, error) = told(sources, fallback);
        assert!(out.contains(&format!("{expected}: [2.0, 4.0]")), "{sources:?}, {fallback}: {out}{error}");
    }
}

#[test]
fn another_word_is_said_and_sources_run() {
    let (out, error) = told(Some("none"), "dense");
    assert!(out.contains("0 plain"), "{out}");
    let line = error.lines().find(|line| line.contains(GPU_SOURCES_VARIABLE)).unwrap_or_default();
    assert_eq!(line, "warning: TACIT_GPU_SOURCES=none is not one of on and off; on is in force");
}

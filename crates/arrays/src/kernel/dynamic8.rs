//! Scales quantized to bitsandbytes' 8-bit dynamic floats.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_core::kernel::{Fallback, Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::{BlockScales, dynamic8};

use super::Scheme;
use super::encode::{blocks, rank, unit};
use super::host::{Fallible, int, several};
use super::quantize::{Quantize, one_by_one};

/// Codes a vector of `f32` about its mean, in blocks: codes, scales and the mean.
///
/// Gradients reach the scales and the mean.
///
/// # Errors
///
/// When it runs: an element is NaN or infinite.
pub fn quantize_dynamic8(x: &Array, block: usize) -> Result<[Array; 3]> {
    let mut results = apply(Dynamic8Quantize { block }, std::slice::from_ref(x))?;
    results[0] = stop_gradient(&results[0])?;
    Ok(several(results))
}

pub(super) struct Dynamic8Quantize {
    pub(super) block: usize,
}

impl Kernel for Dynamic8Quantize {
    fn name(&self) -> &'static str {
        "Dynamic8Quantize"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(vec![("block", int(self.block))])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let size = inputs[0].size();
        Ok(vec![
            Aval::new(&[size as i32], Dtype::Uint8),
            Aval::new(&[size.div_ceil(self.block) as i32], Dtype::Float32),
            Aval::new(&[], Dtype::Float32),
        ])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let [codes, scales, offset] = outputs else { return Err("three outputs are expected".into()) };
        let x = inputs[0].elements::<f32>()?;
        let mean = dynamic8::offset(x);
        let centered: Vec<f32> = x.iter().map(|x| x - mean).collect();
        let scales = BlockScales::Floats(scales.elements()?);
        dynamic8::encoder(self.block).quantize(&centered, codes.bytes(), scales)?;
        offset.elements()?.fill(mean);
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let x = &inputs[0];
        let mean = x.mean(None)?;
        let (size, centered) = (x.size() as i32, blocks(&x.subtract(&mean)?, self.block)?);
        let absmax = centered.abs()?.max_axis(-1, true)?;
        let map = dynamic8::map();
        let midpoints: Vec<f32> = map.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
        let codes = rank(&unit(&centered, &absmax)?, &midpoints)?.reshape(&[-1])?.try_index(..size)?;
        Ok(vec![codes, absmax.reshape(&[-1])?, mean])
    }

    /// On a GPU the codes are those of a table of 256 values about the mean, which has a source; plain ops would compare each
    /// number with all thresholds at once.
    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        if reason != Fallback::Device {
            return self.decompose(inputs);
        }
        let mean = inputs[0].mean(None)?;
        let scheme = Scheme::codebook("dynamic8", dynamic8::map());
        let mut results = apply(Quantize::new(scheme, self.block), &[inputs[0].subtract(&mean)?])?;
        results.push(mean);
        Ok(results)
    }

    /// The codes of the kernel itself, which refuses what the decomposition codes.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(one_by_one(|| Self { block: self.block }, inputs, axes))
    }
}

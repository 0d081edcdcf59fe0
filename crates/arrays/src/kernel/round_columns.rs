//! Columns rounded to the values of their codes, one after the other; the error of each is spread over those behind it.

use std::ops::Range;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{GpuBackend, Input, Kernel, Launch, Output, apply};
use tacit_core::{Aval, Error, Param, Result};
use tacit_kernels::{BlockScales, KernelError, Matrix, Scales, code_bytes, e4m3, e8m0, nvfp4};

use super::dequantize::dequantize;
use super::encode_by::{encode_by, scales_of};
use super::host::{Fallible, several};
use super::layout::scalar;
use super::scheme::NVFP4_RANGE;
use super::{Coding, Layout, Scaling, Scheme, gpu};

/// The columns of `x: f32[n, width]` as the numbers that they are coded as, and what each spread by `triangle: f32[width, width]`,
/// as [`tacit_kernels::RoundColumns`] has it.
///
/// Each column is in one of some `groups`. `stored` is what the rows of each group are coded by, `[groups, n]`: scales, then biases,
/// or the factor that all scales of NVFP4 are relative to, as the kernel that quantizes makes and takes them.
pub(crate) fn round_columns(
    scheme: Scheme,
    [x, triangle]: [&Array; 2],
    groups: &[i32],
    stored: &[Array],
) -> Result<[Array; 2]> {
    let count = stored.first().and_then(|scales| scales.shape().first().copied()).unwrap_or(0);
    if !groups.iter().all(|group| (0..count).contains(group)) {
        return Err(Error::invalid(FIT, "count the groups from 0, in the order of the scales"));
    }
    let groups = Array::from_slice(groups, &[groups.len() as i32]);
    let of_columns = |(place, numbers): (usize, &Array)| {
        if place > 0 && scheme.is_relative() { Ok(numbers.clone()) } else { numbers.take_axis(&groups, 0) }
    };
    let stored = stored.iter().enumerate().map(of_columns).collect::<Result<Vec<_>, Exception>>()?;
    let inputs: Vec<Array> = [x, triangle].into_iter().chain(&stored).cloned().collect();
    Ok(several(apply(RoundColumns { scheme }, &inputs)?))
}

const FIT: &str = "each column has a group, and each row numbers of all groups";

/// A kernel of the columns, the triangle, and what the rows of each column are coded by: `[width, n]`.
pub(super) struct RoundColumns {
    pub(super) scheme: Scheme,
}

impl Kernel for RoundColumns {
    fn name(&self) -> &'static str {
        self.scheme.kernel("RoundColumns")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.scheme.params().into())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let [x, _, scales, more @ ..] = inputs else {
            return Err("columns, a triangle and scales are expected".into());
        };
        let numbers = if self.scheme.biased { more } else { &[] };
        if [scales].into_iter().chain(numbers).any(|numbers| numbers.shape != [x.shape[1], x.shape[0]]) {
            return Err(FIT.into());
        }
        Ok(vec![x.clone(); 2])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let ([x, triangle, scales, more @ ..], [rounded, errors]) = (inputs, outputs) else {
            return Err("columns, a triangle and scales are expected".into());
        };
        let [n, width] = [0, 1].map(|axis| x.aval().shape[axis] as usize);
        let global = if self.scheme.is_relative() { more.first().map(scalar).transpose()? } else { None };
        let encoder = self.scheme.encoder(1, global)?.ok_or("half floats have no scales")?.with_block(1);
        let stored = scales_of(scales, more)?;
        let (units, biases) = self.units(stored, global);
        let round = |column: usize, rows: Range<usize>, x: &mut [f32]| -> Result<(), KernelError> {
            let first = column * n;
            let range = first + rows.start..first + rows.end;
            let stored = match stored {
                BlockScales::Floats(scales) => BlockScales::Floats(&scales[range.clone()]),
                BlockScales::Bytes(scales) => BlockScales::Bytes(&scales[range.clone()]),
                BlockScales::Biased(scales, biases) => {
                    BlockScales::Biased(&scales[range.clone()], &biases[range.clone()])
                }
            };
            let mut bytes = vec![0; code_bytes(x.len(), self.scheme.bits() as u32)];
            encoder.quantize_by(x, stored, &mut bytes)?;
            let codes = self.scheme.codes(&bytes).unwrap_or_else(|| unreachable!("half floats have no scales"));
            let (n, scales) = (x.len(), Scales::One);
            tacit_kernels::dequantize(&Matrix { n, k: 1, codes, scales, biases: None, block: n }, &mut *x)?;
            for (x, at) in x.iter_mut().zip(range) {
                *x *= units[at];
                if let Some(biases) = biases {
                    *x += biases[at];
                }
            }
            Ok(())
        };
        let columns = tacit_kernels::RoundColumns { width, triangle: triangle.elements()?, round: &round };
        let rounded = rounded.elements::<f32>()?;
        rounded.copy_from_slice(x.elements()?);
        Ok(columns.run(rounded, errors.elements()?)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::round_columns(&self.scheme, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [x, triangle, stored @ ..] = inputs else {
            return Err("columns, a triangle and scales are expected".into());
        };
        let (mut x, mut rounded, mut errors) = (x.clone(), Vec::new(), Vec::new());
        for column in 0..x.dim(1) {
            let values = x.try_index((.., column..column + 1))?;
            let result = self.rounded(&values, stored, column)?;
            let row = triangle.try_index(column..column + 1)?;
            let error = values.subtract(&result)?.divide(row.try_index((.., column..column + 1))?)?;
            x = x.subtract(error.multiply(row)?)?;
            rounded.push(result);
            errors.push(error);
        }
        Ok(vec![ops::concatenate(&rounded, 1)?, ops::concatenate(&errors, 1)?])
    }
}

impl RoundColumns {
    /// What the codes of elements are multiplied by, and what is added then.
    fn units<'a>(
        &self,
        stored: BlockScales<&'a [f32], &'a [u8]>,
        global: Option<f32>,
    ) -> (Vec<f32>, Option<&'a [f32]>) {
        match stored {
            BlockScales::Biased(scales, biases) => (scales.to_vec(), Some(biases)),
            BlockScales::Bytes(bytes) if self.scheme.scaling == Scaling::E4m3 => {
                let factor = nvfp4::factor(global);
                (bytes.iter().map(|&byte| e4m3(byte) * factor).collect(), None)
            }
            BlockScales::Bytes(bytes) => (bytes.iter().map(|&byte| e8m0(byte)).collect(), None),
            BlockScales::Floats(scales) if matches!(self.scheme.coding, Coding::Signed) => {
                (scales.iter().map(|scale| scale / 127.0).collect(), None)
            }
            BlockScales::Floats(scales) => (scales.to_vec(), None),
        }
    }

    /// A column, `f32[n, 1]`, coded by what is stored for it and read again.
    fn rounded(&self, x: &Array, stored: &[Array], column: i32) -> Fallible<Array> {
        // Columns of any length have codes in bytes.
        let scheme = self.scheme.in_bytes();
        let layout = Layout { scheme, n: x.size(), k: 1, block: 1 };
        let [scales, more @ ..] = stored else { return Err("scales are expected".into()) };
        let of_column = |numbers: &Array| numbers.try_index(column);
        let mut of_column_scales = vec![of_column(scales)?];
        let mut children = vec![match scheme.coding {
            Coding::Signed => of_column_scales[0].divide(Array::from_f32(127.0))?,
            _ => of_column_scales[0].clone(),
        }];
        if scheme.biased {
            of_column_scales.extend(more.iter().map(of_column).collect::<Result<Vec<_>, _>>()?);
            children.extend_from_slice(&of_column_scales[1..]);
        } else if let [global] = more {
            of_column_scales.push(global.clone());
            children.push(global.divide(Array::from_f32(NVFP4_RANGE))?);
        }
        children.insert(0, encode_by(scheme, 1, x, &of_column_scales)?);
        Ok(dequantize(layout, &children, Dtype::Float32)?)
    }
}

#[cfg(test)]
mod tests;

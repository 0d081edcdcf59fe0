//! NF4 as MLX primitives: quantize, dequantize, gather rows, multiply.
//!
//! The format is that of bitsandbytes; see [`tacit_kernels::nf4`]. Each kernel runs on the packed codes, and its
//! decomposition says the same in plain ops.

use mlx_rs::error::Exception;
use mlx_rs::ops::{self, indexing::TryIndexOp};
use mlx_rs::{Array, Dtype, stop_gradient, transforms};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::nf4::{self, CODEBOOK, Orientation, THRESHOLDS, Weight};

type Fallible<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Codes `x: f32[n]` in blocks: `packed: u8[ceil(n/2)]` and `absmax: f32[ceil(n/block)]`.
///
/// # Errors
///
/// When it runs: an element is NaN or infinite.
pub fn quantize(x: &Array, block: usize) -> Result<(Array, Array)> {
    let mut made = apply(Quantize { block }, std::slice::from_ref(x))?.into_iter();
    match (made.next(), made.next()) {
        (Some(packed), Some(absmax)) => Ok((packed, absmax)),
        _ => unreachable!("the kernel declares two results"),
    }
}

/// The values of `size` codes: `f32[size]`.
///
/// # Errors
///
/// The lengths of `packed` and `absmax` do not fit.
pub fn dequantize(packed: &Array, absmax: &Array, block: usize, size: usize) -> Result<Array> {
    single(apply(Dequantize { block, size }, &[packed.clone(), absmax.clone()])?)
}

/// Rows of a packed `[n, k]` matrix: `rows: u32[r]` gives `f32[r, k]`.
///
/// # Errors
///
/// When it runs: a row is outside the matrix.
pub fn gather_rows(packed: &Array, absmax: &Array, layout: Layout, rows: &Array) -> Result<Array> {
    single(apply(GatherRows(layout), &[packed.clone(), absmax.clone(), rows.clone()])?)
}

/// `x W^T` or `x W` for a packed `W: [n, k]`.
///
/// # Errors
///
/// The rows of `x` do not fit the weight.
pub fn matmul(x: &Array, packed: &Array, absmax: &Array, layout: Layout, orientation: Orientation) -> Result<Array> {
    single(apply(Matmul { layout, orientation }, &[x.clone(), packed.clone(), absmax.clone()])?)
}

fn single(made: Vec<Array>) -> Result<Array> {
    Ok(made.into_iter().next().unwrap_or_else(|| unreachable!("the kernel declares one result")))
}

/// How a matrix of `n` rows and `k` columns is cut into blocks.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Elements in a block.
    pub block: usize,
}

impl Layout {
    fn weight<'a>(&self, packed: &'a Input<'_>, absmax: &'a Input<'_>) -> Fallible<Weight<'a>> {
        let (packed, absmax) = (packed.elements()?, absmax.elements()?);
        Ok(Weight { packed, absmax, block: self.block, n: self.n, k: self.k })
    }

    fn decomposed(&self, packed: &Array, absmax: &Array) -> std::result::Result<Array, Exception> {
        decoded(packed, absmax, self.block, self.n * self.k)?.reshape(&[self.n as i32, self.k as i32])
    }

    fn params(self) -> Vec<(&'static str, Param)> {
        vec![("n", int(self.n)), ("k", int(self.k)), ("block", int(self.block))]
    }
}

fn int(value: usize) -> Param {
    Param::Int(value as i64)
}

struct Quantize {
    block: usize,
}

impl Kernel for Quantize {
    fn name(&self) -> &'static str {
        "Nf4Quantize"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(vec![("block", int(self.block))])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let size = inputs[0].size();
        let (packed, blocks) = (nf4::packed_len(size) as i32, nf4::absmax_len(size, self.block) as i32);
        Ok(vec![Aval::new(&[packed], Dtype::Uint8), Aval::new(&[blocks], Dtype::Float32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let [packed, absmax] = outputs else { return Err("two outputs are expected".into()) };
        Ok(nf4::quantize(inputs[0].elements()?, self.block, packed.elements()?, absmax.elements()?)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let x = &inputs[0];
        let (size, block) = (x.size() as i32, self.block as i32);
        let blocks = size.div_euclid(block) + i32::from(size % block > 0);
        let padded = ops::pad(x, &[(0, blocks * block - size)][..], None, None)?.reshape(&[blocks, block])?;
        let absmax = padded.abs()?.max_axis(-1, true)?;
        let least = ops::maximum(&absmax, Array::from_f32(1e-38))?;
        let scaled = ops::clip(padded.multiply(&least.reciprocal()?)?, (-1.0, 1.0))?;
        let thresholds = Array::from_slice(&THRESHOLDS, &[THRESHOLDS.len() as i32]);
        // Codes have no gradient, and MLX has none for their integer ops.
        let scaled = stop_gradient(scaled)?;
        let codes = scaled.expand_dims(-1)?.gt(&thresholds)?.as_type::<u8>()?.sum_axis(-1, None)?;
        let codes = codes.reshape(&[-1])?.as_type::<u8>()?.try_index(..size)?;
        let codes = ops::pad(&codes, &[(0, size % 2)][..], Array::from_slice(&[7u8], &[]), None)?.reshape(&[-1, 2])?;
        let high = codes.try_index((.., 0))?.multiply(Array::from_slice(&[16u8], &[]))?;
        Ok(vec![high.add(codes.try_index((.., 1))?)?, absmax.reshape(&[-1])?])
    }
}

/// The values of packed codes, in plain ops.
fn decoded(packed: &Array, absmax: &Array, block: usize, size: usize) -> std::result::Result<Array, Exception> {
    let sixteen = Array::from_slice(&[16u8], &[]);
    let codes = ops::stack(&[packed.floor_divide(&sixteen)?, packed.remainder(&sixteen)?], -1)?.reshape(&[-1])?;
    let codebook = Array::from_slice(&CODEBOOK, &[CODEBOOK.len() as i32]);
    let values = codebook.take_axis(codes.try_index(..size as i32)?, 0)?;
    let scales = ops::repeat_axis::<f32>(absmax.clone(), block as i32, 0)?.try_index(..size as i32)?;
    values.multiply(scales)
}

struct Dequantize {
    block: usize,
    size: usize,
}

impl Kernel for Dequantize {
    fn name(&self) -> &'static str {
        "Nf4Dequantize"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(vec![("block", int(self.block)), ("size", int(self.size))])
    }

    fn output_avals(&self, _: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[self.size as i32], Dtype::Float32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let (packed, absmax) = (inputs[0].elements()?, inputs[1].elements()?);
        Ok(nf4::dequantize(packed, absmax, self.block, self.size, outputs[0].elements()?)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        Ok(vec![decoded(&inputs[0], &inputs[1], self.block, self.size)?])
    }
}

struct GatherRows(Layout);

impl Kernel for GatherRows {
    fn name(&self) -> &'static str {
        "Nf4GatherRows"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.0.params())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[inputs[2].size() as i32, self.0.k as i32], Dtype::Float32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let weight = self.0.weight(&inputs[0], &inputs[1])?;
        Ok(nf4::gather_rows(&weight, inputs[2].elements()?, outputs[0].elements()?)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        Ok(vec![self.0.decomposed(&inputs[0], &inputs[1])?.take_axis(&inputs[2], 0)?])
    }

    /// The rows of all examples at once, if they share the weight.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let [None, None, Some(axis)] = *axes else { return None };
        let all = || -> Fallible<Mapped> {
            let rows = inputs[2].move_axis(axis as i32, 0)?;
            let made = gather_rows(&inputs[0], &inputs[1], self.0, &rows.reshape(&[-1])?)?;
            Ok((vec![made.reshape(&[rows.dim(0), rows.dim(1), self.0.k as i32])?], vec![0]))
        };
        Some(all())
    }
}

struct Matmul {
    layout: Layout,
    orientation: Orientation,
}

impl Matmul {
    fn columns(&self) -> usize {
        match self.orientation {
            Orientation::Transposed => self.layout.n,
            Orientation::Plain => self.layout.k,
        }
    }

    fn turned(&self) -> Orientation {
        match self.orientation {
            Orientation::Transposed => Orientation::Plain,
            Orientation::Plain => Orientation::Transposed,
        }
    }
}

impl Kernel for Matmul {
    fn name(&self) -> &'static str {
        "Nf4Matmul"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let mut params = self.layout.params();
        params.push(("transpose", Param::Bool(self.orientation == Orientation::Transposed)));
        Some(params)
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[inputs[0].shape[0], self.columns() as i32], Dtype::Float32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let weight = self.layout.weight(&inputs[1], &inputs[2])?;
        let m = inputs[0].aval().shape[0] as usize;
        Ok(nf4::matmul(inputs[0].elements()?, m, &weight, self.orientation, outputs[0].elements()?)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let dense = self.layout.decomposed(&inputs[1], &inputs[2])?;
        let right = match self.orientation {
            Orientation::Transposed => dense.t(),
            Orientation::Plain => dense,
        };
        Ok(vec![inputs[0].matmul(right)?])
    }

    /// The gradient for `x` is the product with the same packed weight turned round; the one for `absmax` is that of
    /// the decomposition, and the codes have none.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let one = |argnum: &usize| -> Fallible<Array> {
            match argnum {
                0 => Ok(matmul(&cotangents[0], &primals[1], &primals[2], self.layout, self.turned())?),
                1 => Ok(ops::zeros_like(&primals[1])?),
                _ => {
                    let through = |absmax: &[Array]| {
                        self.decompose(&[primals[0].clone(), primals[1].clone(), absmax[0].clone()])
                            .map_err(|error| Exception::custom(error.to_string()))
                    };
                    let (_, mut gradients) = transforms::fallible_vjp(through, &primals[2..3], cotangents)?;
                    gradients.pop().ok_or_else(|| "the vjp of the decomposition gave nothing".into())
                }
            }
        };
        Some(argnums.iter().map(one).collect())
    }

    /// One product of the rows of all examples, if they share the weight.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let [Some(axis), None, None] = *axes else { return None };
        let all = || -> Fallible<Mapped> {
            let x = inputs[0].move_axis(axis as i32, 0)?;
            let rows = x.flatten(0, 1)?;
            let made = matmul(&rows, &inputs[1], &inputs[2], self.layout, self.orientation)?;
            Ok((vec![made.reshape(&[x.dim(0), x.dim(1), self.columns() as i32])?], vec![0]))
        };
        Some(all())
    }
}

#[cfg(test)]
mod tests;

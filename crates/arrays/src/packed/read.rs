//! How kernels read the codes and scales of a packed array.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use tacit_core::{Error, Result, Value};

use crate::families::packed::{Packed, Stored};
use crate::kernel::{self, Coding, Layout, NVFP4_RANGE, Nested, Scaling};
use crate::packed::units::integers;

impl Stored {
    /// The children as the kernels read them, for a matrix of `n` rows.
    pub(crate) fn kernel(&self, n: i32) -> Result<(Layout, Vec<Array>)> {
        let mut scheme = self.scheme;
        let mut children = vec![self.codes.clone()];
        let (n, size) = (n as usize, self.aval.size());
        let layout = Layout { scheme, n, k: size.checked_div(n).unwrap_or_default(), block: self.block };
        let Some(scales) = &self.scales else { return Ok((layout, children)) };
        match (scales, self.double_quantized()) {
            (scales, None) if matches!(scheme.nested, Some(Nested::Integers { .. })) => {
                let (scaling, parts) = read_integers(scales, &layout)?;
                scheme.scaling = scaling;
                children.extend(parts);
            }
            (_, Some(nested)) => {
                scheme.scaling = Scaling::Nested { block: nested.block_size() };
                children.extend(match scheme.coding {
                    Coding::Signed => nested.scaled(|number| Ok(number.divide(Array::from_f32(127.0))?))?.parts(),
                    // Children that were cast, as a tree of them may be.
                    _ => nested.scaled(|number| Ok(number.as_dtype(Dtype::Float32)?))?.parts(),
                });
            }
            (scales, None) => {
                let scales = scales.dense()?;
                children.push(match scheme.coding {
                    Coding::Signed => scales.divide(Array::from_f32(127.0))?,
                    _ => scales,
                });
            }
        }
        children.extend(self.biases.clone());
        if let Some(global_scale) = &self.global_scale {
            children.push(global_scale.divide(Array::from_f32(NVFP4_RANGE))?);
        }
        Ok((Layout { scheme, ..layout }, children))
    }
}

pub(crate) fn dense(array: &dyn Packed) -> Result<Value> {
    let stored = array.stored();
    let shape = stored.shape();
    let (layout, children) = stored.kernel(shape.first().copied().unwrap_or(1))?;
    let result = kernel::dequantize(layout, &children, stored.aval.dtype)?.reshape(&shape)?;
    Ok(if stored.transposed { result.swap_axes(-1, -2)? } else { result }.into())
}

/// Scales and biases as the kernels read them, where a block has integers for both, and how their numbers follow from these.
/// Without biases there are only scales.
fn read_integers(scales: &Value, layout: &Layout) -> Result<(Scaling, Vec<Array>)> {
    let block = layout.scheme.integers()?;
    let blocks = (layout.n * layout.k).div_ceil(layout.block) as i32;
    // A range is read where it lies, which what an index takes is not.
    let at = |array: &Array, row: i32| Ok::<_, Error>(array.try_index(row..row + 1)?.reshape(&[-1])?);
    let row = |array: &Array, number: i32| -> Result<Array> {
        let row = at(array, number)?;
        Ok(if row.size() as i32 == blocks { row } else { row.try_index(..blocks)? })
    };
    let rows = 0..if layout.scheme.is_centered() { 1 } else { 2 };
    let Some((_, stored)) = integers(scales) else {
        // Scales that a tree of them made dense.
        let dense = scales.dense()?;
        return Ok((Scaling::Float, rows.map(|number| row(&dense, number)).collect::<Result<_>>()?));
    };
    // The integers' own unit is their largest magnitude, 127.
    let factors = stored.scales.as_ref().ok_or_else(|| Error::decline("the integers have no scales"))?;
    let factors = factors.dense()?.as_dtype(Dtype::Float32)?.divide(Array::from_f32(127.0))?;
    let factors = factors.reshape(&[stored.codes.dim(0), -1])?;
    let mut numbers = Vec::new();
    for number in rows {
        numbers.extend([row(&stored.codes, number)?, at(&factors, number)?]);
    }
    Ok((Scaling::Integers { block }, numbers))
}

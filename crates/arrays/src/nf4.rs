//! bitsandbytes' 4-bit `NormalFloat`.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::op::{AddMM, AsType, Gather, Matmul, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler};
use tacit_kernels::nf4::Orientation;

use crate::kernel::nf4::{self, Layout};
use crate::matrix::{PackedMatrix, packed_matrix_handlers};

/// An array of any shape in 4 bits an element, bit for bit as bitsandbytes stores it.
///
/// The elements are flattened row-major and cut into blocks; each block has its largest magnitude in `absmax`, and each
/// element the 4-bit code of a quantile of the normal distribution. Transposing a matrix is a view.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_arrays::Nf4Array;
/// use tacit_core::{Value, implicit};
/// use mlx_rs::{Array, ops};
///
/// let w = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit(|[x, w]: [Array; 2]| x.matmul(w.t()))([x.into(), w.into()])?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The format is defined by the paper `QLoRA` (Dettmers et al., 2023) and by bitsandbytes' kernels.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Nf4")]
pub struct Nf4Array {
    /// Two codes to a byte, the first in the high nibble: `u8[ceil(size/2)]`.
    packed: Array,
    /// The scale of each block: `f32[ceil(size/block_size)]`.
    absmax: Value,
    #[implicit(aux)]
    block_size: usize,
    /// Whether the stored matrix has its axes the other way round.
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Nf4Array {
    /// Quantizes `x` in blocks of `block_size` elements: 32, 64 (the usual choice), 128, up to 4096.
    ///
    /// It is lazy, and works inside `grad` and `compile`.
    ///
    /// # Errors
    ///
    /// `x` is not float or has no elements, or the block size is not a power of two from 32 to 4096. A NaN or an
    /// infinity in `x` is an error of the eval.
    pub fn quantize(x: &Array, block_size: usize) -> Result<Self> {
        let aval = Aval::from(x);
        check(&aval, block_size)?;
        let flat = x.reshape(&[-1])?.as_dtype(Dtype::Float32)?;
        let (packed, absmax) = nf4::quantize(&flat, block_size)?;
        Ok(Self { packed, absmax: absmax.into(), block_size, transposed: false, aval })
    }

    /// The array of codes and scales that were made elsewhere, such as a bitsandbytes checkpoint.
    ///
    /// # Errors
    ///
    /// A shape or dtype does not fit `aval` and `block_size`.
    pub fn from_parts(packed: Array, absmax: impl Into<Value>, block_size: usize, aval: Aval) -> Result<Self> {
        check(&aval, block_size)?;
        let absmax = absmax.into();
        let size = aval.size();
        let bytes = Aval::new(&[size.div_ceil(2) as i32], Dtype::Uint8);
        let scales = Aval::new(&[size.div_ceil(block_size) as i32], Dtype::Float32);
        for (name, expected, found) in [("packed", bytes, Aval::from(&packed)), ("absmax", scales, absmax.aval()?)] {
            if expected != found {
                return Err(Error::invalid(
                    format!("{name} is {found}, and an nf4 array of {aval} has {expected}"),
                    "flatten the codes and scales, and give the shape of the whole array",
                ));
            }
        }
        Ok(Self { packed, absmax, block_size, transposed: false, aval })
    }

    /// The codes, two to a byte.
    #[must_use]
    pub fn packed(&self) -> &Array {
        &self.packed
    }

    /// The scales, one a block.
    #[must_use]
    pub fn absmax(&self) -> &Value {
        &self.absmax
    }

    fn layout(&self) -> Result<Layout> {
        let &[rows, columns] = self.aval.shape.as_slice() else {
            return Err(Error::decline(format!("{} is not a matrix", self.aval)));
        };
        let (n, k) = if self.transposed { (columns, rows) } else { (rows, columns) };
        Ok(Layout { n: n as usize, k: k as usize, block: self.block_size })
    }
}

fn check(aval: &Aval, block_size: usize) -> Result<()> {
    if !aval.dtype.is_float() || aval.dtype == Dtype::Float64 {
        return Err(Error::invalid(format!("{aval} cannot be nf4"), "quantize an f32, f16 or bf16 array"));
    }
    if aval.shape.iter().any(|&extent| extent < 1) {
        return Err(Error::invalid(format!("{aval} has no elements to quantize"), "keep an empty array dense"));
    }
    if !block_size.is_power_of_two() || !(32..=4096).contains(&block_size) {
        return Err(Error::invalid(
            format!("the nf4 block size {block_size} is not a power of two from 32 to 4096"),
            "use 64, the usual choice",
        ));
    }
    Ok(())
}

impl Materialize for Nf4Array {
    fn materialize(&self) -> Result<Value> {
        let flat = nf4::dequantize(&self.packed, &self.absmax.dense()?, self.block_size, self.aval.size())?;
        let cast = flat.as_dtype(self.aval.dtype)?;
        if !self.transposed {
            return Ok(cast.reshape(&self.aval.shape)?.into());
        }
        let Layout { n, k, .. } = self.layout()?;
        Ok(cast.reshape(&[n as i32, k as i32])?.t().into())
    }
}

impl PackedMatrix for Nf4Array {
    fn product(&self, x: &Array) -> Result<Array> {
        let orientation = if self.transposed { Orientation::Transposed } else { Orientation::Plain };
        let x32 = x.as_dtype(Dtype::Float32)?;
        let y = nf4::matmul(&x32, &self.packed, &self.absmax.dense()?, self.layout()?, orientation)?;
        Ok(y.as_dtype(x.dtype())?)
    }

    fn turned(&self, aval: Aval) -> Self {
        Self { transposed: !self.transposed, aval, ..self.clone() }
    }

    fn narrowed(&self, aval: Aval) -> Self {
        Self { aval, ..self.clone() }
    }
}

packed_matrix_handlers! {
    Nf4Array: nf4_matmul, nf4_matmul_left, nf4_addmm, nf4_addmm_left, nf4_transpose, nf4_astype
}

/// Rows of a matrix, as an embedding takes them.
#[handler]
pub fn nf4_gather(op: &Gather, w: &Nf4Array, rows: &Array) -> Result<Array> {
    let layout = w.layout()?;
    if w.transposed || op.axes != [0] || op.slice_sizes != [1, layout.k as i32] {
        return Err(Error::decline("only whole rows are gathered from packed codes"));
    }
    let wanted = rows.flatten(None, None)?.as_dtype(Dtype::Int32)?;
    let from_end = wanted.add(Array::from_int(layout.n as i32))?;
    let wanted = ops::select(wanted.lt(Array::from_int(0))?, from_end, wanted)?.as_dtype(Dtype::Uint32)?;
    let made = nf4::gather_rows(&w.packed, &w.absmax.dense()?, layout, &wanted)?;
    let shape = [rows.shape(), &[1, layout.k as i32]].concat();
    Ok(made.reshape(&shape)?.as_dtype(w.aval.dtype)?)
}

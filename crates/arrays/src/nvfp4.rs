//! NVIDIA's NVFP4.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, ImplicitArray, Materialize, Result, Value};

use crate::checks::{check_children, check_elements, check_groups, stored_shape};
use crate::kernel::{self, Encoding, Format};
use crate::linear::Linear;
use crate::packed::{self, Packed, Stored, dense_scales};

/// An array of 4 bits an element, OCP's E2M1, with a scale in E4M3 for each group of 16 elements of the last axis.
///
/// An element is `code * scale * global_scale / (448 * 6)`, or `code * scale` without a global scale. The layout is
/// that of MLX's mode `nvfp4`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::Nvfp4Array;
/// use tacit_core::implicit;
///
/// let w = Nvfp4Array::quantize(&ops::full::<f32>(&[8, 32], Array::from_f32(6.0))?, None)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [192.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The format is defined by NVIDIA's Blackwell architecture and its cuDNN documentation.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Nvfp4", family(Packed, Linear))]
pub struct Nvfp4Array {
    /// The codes, least significant bits first: `u32[.., k / 8]`.
    packed: Array,
    /// The scales as bytes of E4M3: `u8[.., k / 16]`.
    scales: Array,
    /// The largest magnitude of the whole tensor that the scales are relative to: `f32[]`.
    global_scale: Option<Array>,
    /// Whether the stored matrix has its axes the other way round.
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

/// Elements that share a scale.
const GROUP: usize = 16;

impl Nvfp4Array {
    /// Quantizes `x` in groups of 16 elements of its last axis.
    ///
    /// With the largest magnitude of the tensor as `global_scale: f32[]` the scales use all of E4M3's range. It is
    /// lazy, and works inside `grad` and `compile`.
    ///
    /// # Errors
    ///
    /// `x` is not `f32`, `f16` or `bf16`, has no elements, or its last axis is not whole groups; the global scale is
    /// not a scalar of `f32`. A NaN or an infinity in `x`, or a global scale that is not above zero, is an error of the
    /// eval.
    pub fn quantize(x: &Array, global_scale: Option<&Array>) -> Result<Self> {
        let aval = check(Aval::from(x), global_scale)?;
        let mut inputs = vec![x.as_dtype(Dtype::Float32)?];
        inputs.extend(global_scale.cloned());
        let [packed, scales] = kernel::quantize(Encoding::Nvfp4, GROUP, &inputs)?;
        Ok(Self { packed, scales, global_scale: global_scale.cloned(), transposed: false, aval })
    }

    /// The array of codes and scales that were made elsewhere, such as an MLX checkpoint, read as `dtype`.
    ///
    /// # Errors
    ///
    /// The shapes and dtypes do not belong to one array.
    pub fn from_parts(packed: Array, scales: Array, global_scale: Option<Array>, dtype: Dtype) -> Result<Self> {
        let mut shape = packed.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = last.saturating_mul(8);
        }
        let aval = Aval::new(&shape, dtype);
        let array = Self { packed, scales, global_scale, transposed: false, aval };
        array.check()?;
        Ok(array)
    }

    /// The codes.
    #[must_use]
    pub fn packed(&self) -> &Array {
        &self.packed
    }

    /// The scales as bytes of E4M3.
    #[must_use]
    pub fn scales(&self) -> &Array {
        &self.scales
    }

    /// The largest magnitude that the scales are relative to, if there is one.
    #[must_use]
    pub fn global_scale(&self) -> Option<&Array> {
        self.global_scale.as_ref()
    }
}

fn check(aval: Aval, global_scale: Option<&Array>) -> Result<Aval> {
    check_elements(Format::NVFP4.label, &aval)?;
    check_groups(Format::NVFP4.label, &aval, GROUP)?;
    if let Some(global) = global_scale {
        let scalar = Aval::new(&[], Dtype::Float32);
        check_children(Format::NVFP4.label, &aval, &[("the global scale", scalar, Aval::from(global))])?;
    }
    Ok(aval)
}

impl Materialize for Nvfp4Array {
    fn materialize(&self) -> Result<Value> {
        packed::dense(self)
    }

    fn check(&self) -> Result<()> {
        let shape = stored_shape(&self.aval, self.transposed)?;
        let aval = check(Aval::new(&shape, self.aval.dtype), self.global_scale.as_ref())?;
        let (codes, groups) = Format::NVFP4.children(&shape, GROUP);
        let children = [
            ("packed", Aval::new(&codes, Dtype::Uint32), Aval::from(&self.packed)),
            ("scales", Aval::new(&groups, Dtype::Uint8), Aval::from(&self.scales)),
        ];
        check_children(Format::NVFP4.label, &aval, &children)
    }
}

impl Packed for Nvfp4Array {
    fn stored(&self) -> Stored {
        Stored {
            format: Format::NVFP4,
            codes: self.packed.clone(),
            scales: (&self.scales).into(),
            modifier: self.global_scale.clone(),
            block: GROUP,
            transposed: self.transposed,
            aval: self.aval.clone(),
        }
    }

    fn restored(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        let Stored { codes: packed, scales, modifier: global_scale, transposed, aval, .. } = stored;
        let scales = dense_scales(&scales, &self.scales);
        Box::new(Self { packed, scales, global_scale, transposed, aval })
    }
}

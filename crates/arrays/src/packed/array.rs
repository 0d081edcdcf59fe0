//! The array type of every stored format.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::avals::checks::{self, check_children, check_elements, check_groups, stored_shape};
use crate::families::cut::Cut;
use crate::families::linear::Linear;
use crate::families::packed::{Packed, Stored};
use crate::format::declaration::Format;
use crate::kernel::{Nested, Scaling, Scheme};
use crate::packed::dynamic8::Dynamic8Array;
use crate::packed::read::dense;
use crate::packed::units::integers;

/// An array of any shape as the codes of a stored format, and their scales if it has any.
///
/// [`Nf4Array`](crate::Nf4Array), [`AffineArray`](crate::AffineArray) and their like are names of it, and so is the array
/// of a format of your own: see [`Format`]. Its handlers are those of the family [`Packed`]: products, rows, and the
/// structural ops that cut, join or scale codes and scales without making them anew. Transposing a matrix is a view.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::Nf4Array;
/// use tacit_arrays::format::Nf4;
/// use tacit_core::implicit;
///
/// let w = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, Nf4 { block: 64, double: true })?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = F::SAVED_AS, family(Packed, Linear, Cut))]
pub struct PackedArray<F: Format> {
    /// The codes, in the dtype and shape that the format gives them.
    #[implicit(get)]
    codes: Array,
    /// The scales, one for each block; none where the codes are the values.
    #[implicit(get)]
    scales: Option<Value>,
    /// The biases, one for each block, where the format has them.
    #[implicit(get)]
    biases: Option<Array>,
    /// What NVFP4's scales are relative to: `f32[]`.
    #[implicit(get)]
    global_scale: Option<Array>,
    /// The format, in which a row or a column is a block of so many elements.
    #[implicit(aux, get)]
    pub(super) format: F,
    /// Whether products with the transpose quantize the activations.
    #[implicit(aux)]
    int8_activations: bool,
    /// Whether the stored array has its last two axes the other way round.
    #[implicit(aux)]
    pub(super) transposed: bool,
    #[implicit(aux)]
    pub(super) aval: Aval,
}

/// The children of a [`PackedArray`].
#[derive(Clone, Debug)]
pub struct Parts {
    /// The codes.
    pub codes: Array,
    /// One for each block; none where the codes are the values.
    pub scales: Option<Value>,
    /// One for each block, where the format has them.
    pub biases: Option<Array>,
    /// What NVFP4's scales are relative to: `f32[]`.
    pub global_scale: Option<Array>,
}

impl Parts {
    /// Codes and scales alone.
    pub fn new(codes: Array, scales: impl Into<Value>) -> Self {
        Self { scales: Some(scales.into()), ..Self::unscaled(codes) }
    }

    /// Codes that are the values.
    #[must_use]
    pub fn unscaled(codes: Array) -> Self {
        Self { codes, scales: None, biases: None, global_scale: None }
    }
}

/// A format whose codes are integers, or are rounded to integers where activations are integers.
pub trait Int8Activations: Format {}

impl<F: Format> PackedArray<F> {
    /// The array of codes and scales that were made elsewhere, such as a checkpoint, for the array that `aval` says.
    ///
    /// # Errors
    ///
    /// A shape or dtype does not fit `aval` and the format.
    pub fn from_parts(parts: Parts, format: impl Into<F>, aval: Aval) -> Result<Self> {
        let format = format.into();
        let transposed = format.by_columns();
        let format = format.on(&stored_shape(&aval, transposed)?);
        checks::checked(Self { transposed, ..Self::unchecked(parts, format, aval) })
    }

    /// These parts, as they are stored.
    pub(super) fn unchecked(parts: Parts, format: F, aval: Aval) -> Self {
        let Parts { codes, scales, biases, global_scale } = parts;
        Self { codes, scales, biases, global_scale, format, int8_activations: false, transposed: false, aval }
    }

    /// The same array, whose products `x W^T` quantize each row of `x` to 8 bits first.
    ///
    /// That is faster for many rows on a CPU; a GPU multiplies the integers as `f32`. The result differs from the float product by
    /// about 3e-3 of its largest magnitude, and by 1e-2 at worst. The backward pass, products `x W` and those of a stack of matrices
    /// stay in floats.
    ///
    /// [`Affine`](crate::format::Affine), [`Symmetric`](crate::format::Symmetric) and [`KQuant`](crate::format::KQuant) have such
    /// products with any bits, and so `Q4_0` to `Q8_0` and `Q2_K` to `Q6_K` of a GGUF file.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::{AffineArray, format::Affine};
    /// use tacit_core::implicit;
    ///
    /// let w = AffineArray::quantize(&ops::ones::<f32>(&[8, 64])?, Affine { bits: 4, group: 64 })?;
    /// let x = ops::ones::<f32>(&[2, 64])?;
    /// let y = implicit((x, w.with_int8_activations()?), |(x, w)| x.matmul(w.t()))?;
    /// assert!(y.dense()?.as_slice::<f32>().iter().all(|y| (y - 64.0).abs() < 1e-4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The codes of the format are not multiplied as integers, as those of a format of your own with a table of other than 16 values.
    pub fn with_int8_activations(self) -> Result<Self>
    where
        F: Int8Activations,
    {
        self.rounding()
    }

    /// The same array with activations that are rounded, where the format has such products.
    fn rounding(self) -> Result<Self> {
        checks::checked(Self { int8_activations: true, ..self })
    }

    /// How the scales are quantized, where those of the format are so.
    fn nested(&self) -> Option<Nested> {
        let scales = self.scales.as_ref()?;
        if let Some(nested) = scales.downcast::<Dynamic8Array>() {
            return Some(Nested::Dynamic8 { block: nested.block_size() });
        }
        let (_, integers) = integers(scales)?;
        Some(Nested::Integers { block: integers.block })
    }
}

pub(crate) fn checked<F: Format>(aval: Aval, format: &F) -> Result<Aval> {
    check_elements(F::NAME, &aval)?;
    format.check()?;
    let scheme = format.scheme();
    scheme.check()?;
    if scheme.is_grouped() {
        check_groups(F::NAME, &aval, format.block())?;
    }
    Ok(aval)
}

/// Whether scales are quantized as a format has it: in its blocks, or in parts of them, as a cut leaves them.
fn divides(found: Option<Nested>, own: Option<Nested>) -> bool {
    match (found, own) {
        (Some(Nested::Dynamic8 { block: part }), Some(Nested::Dynamic8 { block })) => block.is_multiple_of(part),
        _ => found == own,
    }
}

/// The dtype that scales have: `f32`; where there are biases that of the array, or a wider one after a product with a float; of
/// symmetric integers any float type, unless the scales are quantized.
fn scale_dtype(scheme: &Scheme, found: Dtype, own: Dtype) -> Dtype {
    match scheme.scaling {
        Scaling::E8m0 | Scaling::E4m3 => Dtype::Uint8,
        _ if !scheme.takes_half_scales() => Dtype::Float32,
        _ if found.is_float() && found != Dtype::Float64 => found,
        _ => own,
    }
}

impl<F: Format> Materialize for PackedArray<F> {
    fn materialize(&self) -> Result<Value> {
        dense(self)
    }

    fn check(&self) -> Result<()> {
        let shape = stored_shape(&self.aval, self.transposed)?;
        let aval = checked(Aval::new(&shape, self.aval.dtype), &self.format)?;
        let (scheme, label) = (self.format.scheme(), self.format.to_string());
        let (codes, scales) = scheme.children(&shape, self.format.block());
        let found = self.scales.as_ref().map(Value::aval).transpose()?;
        let blocks = scales.iter().map(|&extent| extent as usize).product();
        let scales = if scheme.nested.is_some() { scheme.nested_shape(blocks) } else { scales };
        let dtype = scale_dtype(&scheme, found.as_ref().map_or(aval.dtype, |found| found.dtype), aval.dtype);
        let scales = Aval::new(&scales, dtype);
        let mut children = vec![("codes", Aval::new(&codes, scheme.storage), Aval::from(&self.codes))];
        children.extend(found.filter(|_| scheme.is_scaled()).map(|found| ("scales", scales.clone(), found)));
        children.extend(self.biases.as_ref().map(|biases| ("biases", scales, Aval::from(biases))));
        let scalar = Aval::new(&[], Dtype::Float32);
        children.extend(self.global_scale.as_ref().map(|global| ("global_scale", scalar, Aval::from(global))));
        check_children(&label, &aval, &children)?;
        let (scaled, biased, relative) = (scheme.is_scaled(), scheme.biased, scheme.scaling == Scaling::E4m3);
        for (name, has, needed, given) in [
            ("scales", scaled, scaled, self.scales.is_some()),
            ("biases", biased, biased, self.biases.is_some()),
            ("global_scale", relative, false, self.global_scale.is_some()),
        ] {
            let (message, help) = match (has, needed, given) {
                (false, _, true) => (format!("{label} has no {name}"), "leave them out"),
                (_, true, false) => (format!("{label} has {name}, and none are given"), "give one for each block"),
                _ => continue,
            };
            return Err(Error::invalid(message, help));
        }
        if self.int8_activations && !scheme.takes_int8_activations() {
            return Err(Error::invalid(
                format!("{label} has no products with activations in 8 bits"),
                "leave `int8_activations` out, or use nf4, fp4, int8, affine, symmetric or k",
            ));
        }
        let nested = self.nested();
        if !divides(nested, scheme.nested) {
            let scales = |nested: Option<Nested>| match nested {
                Some(Nested::Dynamic8 { block }) => format!("scales that are quantized in blocks of {block}"),
                Some(Nested::Integers { block, .. }) => format!("scales that are int8 in blocks of {block}"),
                None => "scales that are floats".to_owned(),
            };
            let message = format!("{label} has {}, and was given {}", scales(scheme.nested), scales(nested));
            return Err(Error::invalid(message, "name the format of the scales that there are"));
        }
        Ok(())
    }
}

impl<F: Format> Packed for PackedArray<F> {
    fn stored(&self) -> Stored {
        Stored {
            scheme: self.format.scheme(),
            codes: self.codes.clone(),
            scales: self.scales.clone(),
            biases: self.biases.clone(),
            global_scale: self.global_scale.clone(),
            block: self.format.block(),
            transposed: self.transposed,
            aval: self.aval.clone(),
        }
    }

    fn restored(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        let Stored { codes, scales, biases, global_scale, transposed, aval, .. } = stored;
        let format = self.format.clone();
        Box::new(Self { codes, scales, biases, global_scale, format, transposed, aval, ..*self })
    }

    fn format_text(&self) -> Option<String> {
        if !self.transposed {
            return Some(self.format.to_string());
        }
        // Blocks along columns have a text where each column is one.
        let [column, _] = self.aval.shape[..] else { return None };
        let columns = self.format.columns().filter(|_| self.format.block() == column as usize);
        columns.map(|format| format.to_string())
    }

    fn has_block(&self, block: usize) -> bool {
        block == self.format.block() || self.format.with_block(block).is_some_and(|format| format.check().is_ok())
    }

    fn reblocked(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        let format = self.format.with_block(stored.block).unwrap_or_else(|| self.format.clone());
        Self { format, ..self.clone() }.restored(stored)
    }

    fn encoded(&self, rows: &Array) -> Result<Stored> {
        Ok(Self::coded(rows, &self.format, self.global_scale.clone())?.stored())
    }

    fn int8_activations(&self) -> bool {
        self.int8_activations
    }

    fn rounding_activations(&self) -> Result<Box<dyn ImplicitArray>> {
        let array = self.clone().rounding()?;
        // The kernel takes one matrix, whose rows are multiplied: of others nothing would be rounded.
        let reason = match self.aval.shape.len() {
            2 if self.transposed => "is stored by columns",
            2 => return Ok(Box::new(array)),
            _ => "is no matrix",
        };
        Err(Error::invalid(
            format!("{} in {} {reason}, and its products stay in floats", self.aval, self.format),
            "round the activations of matrices that are stored by rows",
        ))
    }
}

//! The array type of every stored format.

use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::adapter::{Adapter, of};
use crate::checks::{check_children, check_elements, check_groups, stored_shape};
use crate::cut::Cut;
use crate::dynamic8::Dynamic8Array;
use crate::format::Fit;
use crate::format::declaration::{Format, Quantizer};
use crate::format::trained_scales::TrainedScales;
use crate::int8::Int8Array;
use crate::k_quant;
use crate::kernel::{self, Measure, Nested, Scaling, Scheme, Summands};
use crate::linear::Linear;
use crate::packed::{self, Packed, Stored};

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
    codes: Array,
    /// One for each block; none where the codes are the values.
    scales: Option<Value>,
    /// One for each block, as the scales, where the format has them.
    biases: Option<Array>,
    /// What NVFP4's scales are relative to: `f32[]`.
    global_scale: Option<Array>,
    #[implicit(aux)]
    format: F,
    /// Whether products with the transpose quantize the activations.
    #[implicit(aux)]
    int8_activations: bool,
    /// Whether the stored array has its last two axes the other way round.
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
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

/// A format whose codes are integers, or are rounded to such, when activations are integers too.
pub trait Int8Activations: Format {}

impl<F: Format> PackedArray<F> {
    /// Quantizes `x`.
    ///
    /// It is lazy, and works inside `grad` and `compile`.
    ///
    /// # Errors
    ///
    /// `x` is not `f32`, `f16` or `bf16`, or has no elements; the format has no such options, or its blocks do not divide
    /// the last axis of `x`. A NaN or an infinity in `x` is an error of the eval.
    pub fn quantize(x: &Array, format: impl Into<F>) -> Result<Self> {
        let format = format.into();
        let global = if kernel::is_relative(&format.scheme()) {
            Some(kernel::global_scale(&x.as_dtype(Dtype::Float32)?.abs()?.max(None)?)?)
        } else {
            None
        };
        if !format.by_columns() {
            return Self::coded(x, &format, global);
        }
        if x.ndim() != 2 {
            let message = format!("{} is not a matrix, which alone has columns", Aval::from(x));
            return Err(Error::invalid(message, "quantize rows or blocks"));
        }
        Ok(Self { transposed: true, aval: Aval::from(x), ..Self::coded(&x.t(), &format, global)? })
    }

    /// Quantizes `x` in blocks of its rows, relative to `global` where that is given.
    pub(crate) fn coded(x: &Array, format: &F, global_scale: Option<Array>) -> Result<Self> {
        let format = format.on(x.shape());
        let aval = checked(Aval::from(x), &format)?;
        let scheme = format.scheme();
        if scheme.half() == Some(x.dtype()) {
            let codes = stop_gradient(x)?.view_dtype(scheme.storage)?;
            return Ok(Self::of(Parts::unscaled(codes), format, aval));
        }
        let mut inputs = vec![x.as_dtype(Dtype::Float32)?];
        if matches!(scheme.nested, Some(Nested::Integers { .. })) {
            let (codes, scales) = k_quant::encoded(&inputs[0], &scheme, format.block())?;
            return Ok(Self::of(Parts::new(codes, scales), format, aval));
        }
        inputs.extend(global_scale.clone());
        let made = kernel::quantize(scheme, format.block(), &inputs)?;
        Self::of_codes(made, format, global_scale, aval)
    }

    /// Quantizes the rows of a sum that is not built, or, of a format by columns, those of its transpose.
    fn of_sum(sum: &Summands, format: &F, dtype: Dtype) -> Result<Self> {
        let (shape, by_columns) = ([sum.left.dim(0), sum.right.dim(1)], format.by_columns());
        let format = format.on(&shape);
        let aval = checked(Aval::new(&shape, dtype), &format)?;
        let scheme = format.scheme();
        let global = if kernel::is_relative(&scheme) {
            Some(kernel::global_scale(&sum.measure(Measure::Most)?.max(None)?)?)
        } else {
            None
        };
        let made = sum.quantize(scheme, format.block(), global.as_ref())?;
        let mut array = Self::of_codes(made, format, global, aval)?;
        if by_columns {
            array.transposed = true;
            array.aval.shape.reverse();
        }
        Ok(array)
    }

    /// The array of what a kernel made.
    fn of_codes(made: Vec<Array>, format: F, global_scale: Option<Array>, aval: Aval) -> Result<Self> {
        let scheme = format.scheme();
        let mut made = made.into_iter();
        let mut next = || made.next().unwrap_or_else(|| unreachable!("codes, scales, and biases if it has them"));
        let codes = next();
        if !scheme.is_scaled() {
            return Ok(Self::of(Parts::unscaled(codes), format, aval));
        }
        let mut scales = next();
        let biases = scheme.biased.then(next);
        if biases.is_some() {
            scales = scales.as_dtype(aval.dtype)?;
        }
        let biases = biases.map(|biases| biases.as_dtype(aval.dtype)).transpose()?;
        let scales = match scheme.nested {
            Some(Nested::Dynamic8 { block }) => Dynamic8Array::quantize(&scales, block)?.into(),
            _ => Value::from(scales),
        };
        Ok(Self::of(Parts { codes, scales: Some(scales), biases, global_scale }, format, aval))
    }

    /// The array of codes and scales that were made elsewhere, such as a checkpoint, for the array that `aval` says.
    ///
    /// # Errors
    ///
    /// A shape or dtype does not fit `aval` and the format.
    pub fn from_parts(parts: Parts, format: impl Into<F>, aval: Aval) -> Result<Self> {
        let format = format.into();
        let transposed = format.by_columns();
        let format = format.on(&stored_shape(&aval, transposed)?);
        let array = Self { transposed, ..Self::of(parts, format, aval) };
        array.check()?;
        Ok(array)
    }

    /// These parts, as they are stored.
    fn of(parts: Parts, format: F, aval: Aval) -> Self {
        let Parts { codes, scales, biases, global_scale } = parts;
        Self { codes, scales, biases, global_scale, format, int8_activations: false, transposed: false, aval }
    }

    /// The codes.
    #[must_use]
    pub fn codes(&self) -> &Array {
        &self.codes
    }

    /// The scales, one a block, unless the codes are the values.
    #[must_use]
    pub fn scales(&self) -> Option<&Value> {
        self.scales.as_ref()
    }

    /// The biases, one a block, if the format has them.
    #[must_use]
    pub fn biases(&self) -> Option<&Array> {
        self.biases.as_ref()
    }

    /// What the scales are relative to, if anything.
    #[must_use]
    pub fn global_scale(&self) -> Option<&Array> {
        self.global_scale.as_ref()
    }

    /// The format, in which a row or a column is a block of so many elements.
    #[must_use]
    pub fn format(&self) -> &F {
        &self.format
    }

    /// The same array, whose products `x W^T` quantize each row of `x` to 8 bits first.
    ///
    /// That is faster for many rows. The result differs from the float product by about 3e-3 of its largest magnitude,
    /// and by 1e-2 at worst. The backward pass, products `x W` and those of a stack of matrices stay in floats.
    #[must_use]
    pub fn with_int8_activations(self) -> Self
    where
        F: Int8Activations,
    {
        Self { int8_activations: true, ..self }
    }
}

impl<F: Format> PackedArray<F> {
    /// How the scales are quantized, where those of the format are so.
    fn nested(&self, own: Option<Nested>) -> Option<Nested> {
        let scales = self.scales.as_ref()?;
        if let Some(nested) = scales.downcast::<Dynamic8Array>() {
            return Some(Nested::Dynamic8 { block: nested.block_size() });
        }
        let centered = matches!(own, Some(Nested::Integers { centered: true, .. }));
        let integers = scales.downcast::<Int8Array>()?;
        Some(Nested::Integers { block: integers.format().block(), centered })
    }
}

pub(crate) fn checked<F: Format>(aval: Aval, format: &F) -> Result<Aval> {
    check_elements(F::NAME, &aval)?;
    format.check()?;
    if format.scheme().is_grouped() {
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

/// The dtype that scales have: that of the array, or a wider one after a product with a float, where it has biases.
fn scale_dtype(scheme: &Scheme, found: Dtype, own: Dtype) -> Dtype {
    match scheme.scaling {
        Scaling::E8m0 | Scaling::E4m3 => Dtype::Uint8,
        _ if !scheme.biased => Dtype::Float32,
        _ if found.is_float() && found != Dtype::Float64 => found,
        _ => own,
    }
}

impl<F: Format> Materialize for PackedArray<F> {
    fn materialize(&self) -> Result<Value> {
        packed::dense(self)
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
        for (name, has, given) in [
            ("scales", scheme.is_scaled(), self.scales.is_some()),
            ("biases", scheme.biased, self.biases.is_some()),
            ("global_scale", scheme.scaling == Scaling::E4m3, self.global_scale.is_some()),
        ] {
            if given && !has {
                return Err(Error::invalid(format!("{label} has no {name}"), "leave them out"));
            }
        }
        for (name, has, given) in
            [("scales", scheme.is_scaled(), self.scales.is_some()), ("biases", scheme.biased, self.biases.is_some())]
        {
            if has && !given {
                return Err(Error::invalid(
                    format!("{label} has {name}, and none are given"),
                    "give one for each block",
                ));
            }
        }
        if self.int8_activations && !scheme.takes_int8_activations() {
            return Err(Error::invalid(
                format!("{label} has no products with activations in 8 bits"),
                "leave `int8_activations` out, or use nf4, fp4 or int8",
            ));
        }
        let nested = self.nested(scheme.nested);
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

impl<F: Format> Quantizer for F {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Ok(PackedArray::<F>::quantize(x, self.clone())?.into())
    }

    fn quantize_sum(&self, sum: &dyn Adapter) -> Result<Value> {
        // The kernel makes no integers for scales.
        let coded = !matches!(self.scheme().nested, Some(Nested::Integers { .. }));
        match sum.summands(self.by_columns())? {
            Some(summands) if coded => Ok(PackedArray::of_sum(&summands, self, sum.aval()?.dtype)?.into()),
            _ => self.quantize(&of(sum).dense()?),
        }
    }

    fn quantize_by_fit(&self, x: &Array, fit: Fit) -> Result<Value> {
        Ok(PackedArray::<F>::fitted(x, self.clone(), fit)?.into())
    }

    fn fits(&self) -> bool {
        self.scheme().is_scaled()
    }

    fn stores(&self, value: &Value) -> bool {
        value.downcast::<PackedArray<F>>().is_some_and(|array| {
            let shape = stored_shape(&array.aval, array.transposed);
            array.transposed == self.by_columns() && shape.is_ok_and(|shape| self.on(&shape) == array.format)
        })
    }

    fn trained_scales(&self) -> Option<&dyn TrainedScales> {
        let scheme = self.scheme();
        (scheme.is_scaled() && scheme.nested.is_none()).then_some(self as &dyn TrainedScales)
    }

    fn supported(&self) -> Result<()> {
        self.on(&[1]).check()
    }
}

impl<F: Format> Packed for PackedArray<F> {
    fn stored(&self) -> Stored {
        Stored {
            scheme: self.format.scheme(),
            codes: self.codes.clone(),
            scales: self.scales.clone(),
            modifier: self.biases.as_ref().or(self.global_scale.as_ref()).cloned(),
            block: self.format.block(),
            transposed: self.transposed,
            aval: self.aval.clone(),
        }
    }

    fn restored(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        let Stored { codes, scales, modifier, transposed, aval, .. } = stored;
        let (biases, global_scale) = if self.biases.is_some() { (modifier, None) } else { (None, modifier) };
        let format = self.format.clone();
        Box::new(Self { codes, scales, biases, global_scale, format, transposed, aval, ..*self })
    }

    fn format_text(&self) -> Option<String> {
        Some(self.format.to_string())
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
}

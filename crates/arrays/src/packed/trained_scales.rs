//! Packed arrays whose scales are trained.

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::transform::{Differentiable, apply};
use tacit_core::{Aval, Result, Value};

use crate::families::packed::{Packed, Stored};
use crate::format::declaration::Format;
use crate::format::trained_scales::{FloatScales, TrainedScales};
use crate::kernel::{self, Coding, Layout, Nested, Scaling, Scheme, derivatives};
use crate::packed::array::{PackedArray, Parts, checked};
use crate::packed::dynamic8::Dynamic8Array;
use crate::packed::super_blocks;

impl FloatScales {
    /// The array `x`, in the shape in which its codes lie, coded by these scales as they are stored.
    pub(crate) fn coded(&self, scheme: &Scheme, block: usize, x: &Array) -> Result<Parts> {
        let (scheme, stored) = self.stored(scheme)?;
        let codes = kernel::encode_by(scheme, block, &x.as_dtype(Dtype::Float32)?, &stored.numbers()?)?;
        let Self { scales, biases, global_scale } = stored;
        Ok(Parts { codes, scales: Some(scales.into()), biases, global_scale })
    }

    /// The same where the scales may be quantized themselves, as the scheme has it: the codes of the first `size` elements of `x`.
    /// Codes are chosen for the scales as they are stored.
    pub(crate) fn nested(&self, scheme: &Scheme, block: usize, x: &Array, size: usize) -> Result<Parts> {
        match scheme.nested {
            None => self.coded(scheme, block, x),
            Some(Nested::Dynamic8 { block: nested_block }) => {
                let nested = Dynamic8Array::quantize(&self.scales, nested_block)?;
                let rounded = Self { scales: decoded(&nested)?, ..self.clone() };
                Ok(Parts { scales: Some(nested.into()), ..rounded.coded(scheme, block, x)? })
            }
            Some(Nested::Integers { .. }) => {
                let numbers: Vec<Array> = std::iter::once(&self.scales).chain(&self.biases).cloned().collect();
                let x = super_blocks::in_blocks(x, scheme, block)?;
                let (codes, scales) = super_blocks::encoded_by(&x, size, &numbers, scheme)?;
                Ok(Parts::new(codes, scales))
            }
        }
    }

    /// The array `x`, in the shape in which its codes lie, as codes by these scales, which are not quantized.
    pub(crate) fn stored_array(&self, scheme: &Scheme, block: usize, x: &Array) -> Result<Stored> {
        let Parts { codes, scales, biases, global_scale } = self.coded(scheme, block, x)?;
        let (scheme, aval) = (Scheme { nested: None, ..*scheme }, Aval::from(x));
        Ok(Stored { scheme, codes, scales, biases, global_scale, block, transposed: false, aval })
    }

    /// These scales as they are stored if they are not quantized, without a gradient, and the scheme that codes by them.
    pub(crate) fn stored(&self, scheme: &Scheme) -> Result<(Scheme, Self)> {
        let still = |array: &Array| stop_gradient(array);
        let stored = Self {
            scales: still(&kernel::rounded_scales(scheme.scaling, &self.scales)?)?,
            biases: self.biases.as_ref().map(still).transpose()?,
            global_scale: self.global_scale.as_ref().map(still).transpose()?,
        };
        let scheme = Scheme { nested: None, ..*scheme };
        // A factor that is there counts, whether the format asks for one or not.
        Ok((if self.global_scale.is_some() { scheme.relative() } else { scheme }, stored))
    }

    /// What is stored as the kernels that code by it take it.
    pub(crate) fn numbers(&self) -> Result<Vec<Array>> {
        let numbers = [Some(&self.scales), self.biases.as_ref(), self.global_scale.as_ref()].into_iter().flatten();
        let wide = numbers
            .map(|number| if number.dtype().is_float() { number.as_dtype(Dtype::Float32) } else { Ok(number.clone()) });
        Ok(wide.collect::<std::result::Result<_, _>>()?)
    }
}

impl Stored {
    /// The scales as floats, one for each block, also where they are quantized themselves; nothing if there are none.
    pub(crate) fn float_scales(&self) -> Result<Option<FloatScales>> {
        let Some(scales) = &self.scales else { return Ok(None) };
        if let Some(Nested::Integers { .. }) = self.scheme.nested {
            let (layout, children) = self.kernel(1)?;
            let mut numbers = layout.numbers(&children[1..])?.into_iter();
            let scales = numbers.next();
            return Ok(scales.map(|scales| FloatScales { scales, biases: numbers.next(), global_scale: None }));
        }
        let scales = match self.double_quantized() {
            Some(nested) => decoded(nested)?,
            None => kernel::float_scales(self.scheme.scaling, &scales.dense()?)?,
        };
        Ok(Some(FloatScales { scales, biases: self.biases.clone(), global_scale: self.global_scale.clone() }))
    }
}

/// What scales stand for that are quantized as bitsandbytes has it.
fn decoded(nested: &Dynamic8Array) -> Result<Array> {
    let [codes, absmax, offset] = nested.parts();
    Ok(kernel::nested(&codes, &absmax, &offset, nested.block_size())?)
}

impl<F: Format> TrainedScales for F {
    fn scales_of(&self, value: &Value) -> Option<FloatScales> {
        let array = value.downcast::<PackedArray<F>>().filter(|_| self.stores(value))?;
        let stored = array.stored();
        // Those that are implicit arrays are not trained.
        stored.scales.as_ref()?.as_dense()?;
        stored.float_scales().ok()?
    }

    fn quantize_by(&self, x: &Array, scales: &FloatScales) -> Result<(Value, Array)> {
        let transposed = |array: &Array| if self.by_columns() { array.t() } else { array.clone() };
        let x_stored = transposed(x);
        let format = self.on(x_stored.shape());
        checked(Aval::from(&x_stored), &format)?;
        let parts = scales.coded(&format.scheme(), format.block(), &x_stored)?;
        let inner = PackedArray::<F>::from_parts(parts, self.clone(), Aval::from(x))?;

        let (layout, children) = inner.stored().kernel(x_stored.shape().first().copied().unwrap_or(1))?;
        let mut args = vec![x_stored, scales.scales.clone()];
        args.extend(scales.biases.clone());
        let trained = args.len();
        args.extend(children);
        let master = apply(&args, ByScales { layout, trained })?.swap_remove(0);
        Ok((inner.into(), transposed(&master)))
    }
}

/// An array without a value that has the derivative of its first argument coded by the next ones: the scales, and the biases if
/// there are any. The other arguments are the codes and scales that this gave, as the layout reads them.
struct ByScales {
    layout: Layout,
    trained: usize,
}

impl ByScales {
    /// How many times the number that elements are multiplied by is its scale.
    fn unit(&self, children: &[Array]) -> Array {
        match (self.layout.scheme.coding, self.layout.scheme.scaling, children) {
            (_, Scaling::E4m3, [_, _, factor]) => factor.clone(),
            (Coding::Signed, ..) => Array::from_f32(1.0 / 127.0),
            _ => Array::from_f32(1.0),
        }
    }

    /// The gradients of the arguments that are trained, linear in the cotangent.
    fn gradients(&self, primals: &[Array], cotangent: &Array) -> Result<Vec<Array>> {
        let children = &primals[self.trained..];
        let mut results = kernel::scale_gradients(self.layout, &primals[0], cotangent, children)?;
        results[1] = results[1].multiply(self.unit(children))?;
        results.iter().zip(primals).map(|(gradient, primal)| Ok(gradient.as_dtype(primal.dtype())?)).collect()
    }
}

impl Differentiable for ByScales {
    fn name(&self) -> &'static str {
        "trained scales"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![ops::broadcast_to(ops::zeros_dtype(&[], args[0].dtype())?, args[0].shape())?])
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        let mut gradients = self.gradients(primals, &cotangents[0])?;
        for constant in &primals[self.trained..] {
            gradients.push(ops::zeros_like(constant)?);
        }
        Ok(gradients)
    }

    /// The transpose of the map from the cotangent to the gradients.
    fn tangents(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>>> {
        let along = || -> Result<Vec<Array>> {
            let tangent_of = |at: usize| argnums.iter().position(|&argnum| argnum == at).map(|place| &tangents[place]);
            let tangents = primals[..self.trained].iter().enumerate().map(|(at, primal)| match tangent_of(at) {
                Some(tangent) => Ok(tangent.as_dtype(primal.dtype())?),
                None => Ok(ops::zeros_like(primal)?),
            });
            let tangents = tangents.collect::<Result<Vec<_>>>()?;
            let at = [ops::zeros_like(&primals[0])?];
            derivatives::gradients(&at, &tangents, &|cotangents| self.gradients(primals, &cotangents[0]))
        };
        Some(along())
    }
}

//! Weights in quantization-aware training.

use std::ops::Range;

use mlx_rs::Array;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::avals::checks::{check_children, checked};
use crate::families::cut::{Cut, cut};
use crate::families::packed::Packed;
use crate::format::{AnyFormat, FloatScales, TrainedScales};
use crate::packed::alike::{check_alike, inside};
use crate::packed::reblock::cut_stored;
use crate::training::ste::{ste, with_gradient_of};
use crate::views::rotated::Rotated;

/// A float master that is quantized wherever it is used, with the gradient going straight through to it.
///
/// It stands for what [`convert`](Self::convert) makes, bit for bit, unless it is [switched](Self::switched) off, and is its own
/// structure: it is kept in a model as a parameter, saved with its format, and part of a compile key. In a trace it is quantized
/// once, however many primitives use it, and neither pass builds the dense quantized weight.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops, transforms};
/// use tacit_arrays::Prepared;
/// use tacit_arrays::format::Affine;
/// use tacit_core::implicit;
///
/// let x = ops::ones::<f32>(&[1, 2])?;
/// let loss = |master: &Array| -> tacit_core::Result<Array> {
///     let w = Prepared::new(master, Affine { bits: 2, group: 64 })?;
///     implicit((&x, w), |(x, w)| x.matmul(w)?.sum(None))?.dense()
/// };
/// let mut gradient = transforms::grad(move |master: &Array| Ok(loss(master)?));
/// assert_eq!(gradient(&ops::ones::<f32>(&[2, 64])?)?.as_slice::<f32>(), [1.0; 128]);
/// # Ok(())
/// # }
/// ```
///
/// The scales are those that the format makes of the master in each pass, or children that are trained with it, as
/// [`with_trained_scales`](Self::with_trained_scales) has them.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Prepared", family(Cut))]
pub struct Prepared {
    /// The floats that are trained.
    #[implicit(get)]
    master: Array,
    /// The scales, one for each block, where they are trained.
    #[implicit(get)]
    scales: Option<Array>,
    /// The biases, as the scales, where the format has them.
    #[implicit(get)]
    biases: Option<Array>,
    /// What NVFP4's scales are relative to: `f32[]`.
    global_scale: Option<Array>,
    /// The format that the master is quantized to.
    #[implicit(aux, get)]
    format: AnyFormat,
    #[implicit(aux)]
    on: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Prepared {
    /// The master of a weight that is to be stored in `format`.
    ///
    /// # Errors
    ///
    /// The format has no such options or rounds at random, or the master does not fit it.
    pub fn new(master: &Array, format: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Self> {
        let format = format.try_into().map_err(Into::into)?;
        let (scales, biases, global_scale) = (None, None, None);
        let aval = Aval::from(master);
        checked(Self { master: master.clone(), scales, biases, global_scale, format, on: true, aval })
    }

    /// The master that continues `value`: of a dense array itself; of one that is stored in `format` already its dense
    /// values, with its own scales as those that are trained, so that it stands for the same codes and scales at first; of
    /// anything else its dense values.
    ///
    /// One that is `Prepared` keeps its master, and its scales where the format stays.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), or the policy forbids to build the master of an implicit array.
    pub fn from_value(value: &Value, format: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<Self> {
        let format = format.try_into().map_err(Into::into)?;
        if let Some(prepared) = value.downcast::<Self>() {
            return if prepared.format == format {
                Ok(prepared.clone())
            } else {
                Ok(Self { on: prepared.on, ..Self::new(&prepared.master, format)? })
            };
        }
        let scales = format.trained_scales().and_then(|trained| trained.scales_of(value));
        let prepared = Self::new(&value.dense()?, format)?;
        Ok(match scales {
            Some(scales) => prepared.with_scales(scales),
            None => prepared,
        })
    }

    /// The same master with scales, and biases where the format has them, that are trained: children that begin as what the
    /// format makes of the master.
    ///
    /// Their gradients are those of LSQ (Esser et al., 2020) and LSQ+ (Bhalgat et al., 2020): an element within the range of
    /// the codes gives its scale what rounding changed, one beyond it the outermost code; and to the master the one gives its
    /// cotangent, the other nothing. A format that rounds scales to bytes has them as floats here, which are rounded in each
    /// pass with the gradient going straight through. Keep their steps small beside them: where a scale reaches
    /// zero, its block is lost.
    ///
    /// # Errors
    ///
    /// The format has no scales that can be trained.
    pub fn with_trained_scales(self) -> Result<Self> {
        if self.scales.is_some() {
            return Ok(self);
        }
        let codes = self.format.quantize(&self.master)?;
        let scales = self.trained()?.scales_of(&codes);
        let scales = scales.ok_or_else(|| no_scales(&self.format))?;
        Ok(self.with_scales(scales))
    }

    /// The same weight, quantized or not: until quantization is switched on it is its master, so that a training run can
    /// start in floats with the parameters and the state of the optimizer that it ends with.
    #[must_use]
    pub fn switched(self, on: bool) -> Self {
        Self { on, ..self }
    }

    /// The array of codes and scales that this stands for, whether or not quantization is on.
    ///
    /// # Errors
    ///
    /// The master does not fit the format, as after another one was put in its place.
    pub fn convert(&self) -> Result<Value> {
        match self.float_scales() {
            None => self.format.quantize(&self.master),
            Some(scales) => Ok(self.trained()?.quantize_by(&self.master, &scales)?.0),
        }
    }

    /// Whether the master is quantized where it is used.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    fn with_scales(self, scales: FloatScales) -> Self {
        let FloatScales { scales, biases, global_scale } = scales;
        Self { scales: Some(scales), biases, global_scale, ..self }
    }

    fn float_scales(&self) -> Option<FloatScales> {
        let (biases, global_scale) = (self.biases.clone(), self.global_scale.clone());
        self.scales.clone().map(|scales| FloatScales { scales, biases, global_scale })
    }

    fn trained(&self) -> Result<&dyn TrainedScales> {
        self.format.trained_scales().ok_or_else(|| no_scales(&self.format))
    }

    /// The quantized array with the derivative of the master and its scales; the master while quantization is off.
    fn straight(&self) -> Result<Value> {
        match self.float_scales() {
            _ if !self.on => Ok((&self.master).into()),
            None => ste(&self.master, |master| self.format.quantize(master)),
            Some(scales) => {
                let (inner, master) = self.trained()?.quantize_by(&self.master, &scales)?;
                with_gradient_of(inner, master)
            }
        }
    }
}

fn no_scales(format: &AnyFormat) -> Error {
    Error::invalid(
        format!("the format {format} has no scales that can be trained"),
        "train the master alone, or take a format with one float or byte for each block, such as nf4:64",
    )
}

impl Materialize for Prepared {
    fn materialize(&self) -> Result<Value> {
        self.straight()?.opened()
    }

    fn used_as(&self) -> Result<Option<Value>> {
        self.straight().map(Some)
    }

    fn check(&self) -> Result<()> {
        let found = self.convert()?.aval()?;
        check_children(
            "a prepared weight",
            &self.aval,
            &[
                ("its master", self.aval.clone(), Aval::from(&self.master)),
                ("what its format makes of it", self.aval.clone(), found),
            ],
        )
    }
}

impl Cut for Prepared {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let part = cut(&(&self.master).into(), axis as i32, range.clone())?.dense()?;
        let aval = Aval::from(&part);
        let mut result = Self { master: part, aval, ..self.clone() };
        let Some(scales) = &self.scales else {
            check_alike(&self.format, &self.aval, axis, &range)?;
            return Ok(result.into());
        };
        let codes = self.convert()?;
        let behind = match codes.downcast::<Rotated>() {
            Some(rotated) if rotated.axis() == axis => return Err(inside(&self.format, &self.aval, axis, &range)),
            Some(rotated) => rotated.inner(),
            None => &codes,
        };
        let array = behind.family::<dyn Packed>().ok_or_else(|| no_scales(&self.format))?;
        let mut stored = array.stored();
        stored.scales = Some(scales.into());
        if self.biases.is_some() {
            stored.biases.clone_from(&self.biases);
        }
        let block = stored.block;
        let stored = cut_stored(array, stored, axis, range.clone())?;
        if stored.block != block {
            return Err(inside(&self.format, &self.aval, axis, &range));
        }
        result.scales = stored.scales.as_ref().and_then(Value::as_dense).cloned();
        result.biases = self.biases.is_some().then_some(stored.biases).flatten();
        Ok(result.into())
    }
}

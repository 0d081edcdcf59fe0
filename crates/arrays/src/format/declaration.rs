//! What a format declares, and how its text is read.

use std::fmt;
use std::hash::{Hash, Hasher};

use mlx_rs::{Array, ops};
use tacit_core::__private::serde::Serialize;
use tacit_core::__private::serde::de::DeserializeOwned;
use tacit_core::{Aval, Error, Result, Value};

use crate::avals::checks::check_block;
use crate::families::adapter::Adapter;
use crate::families::structural::itself;
use crate::format::fit::{self, Fit};
use crate::format::pieces::RowPieces;
use crate::format::trained_scales::TrainedScales;
use crate::kernel::Scheme;

/// A stored format with its options.
///
/// An array that holds one, such as a [`Prepared`](crate::Prepared), is saved with its text, and is not saved unless that is read
/// again: the format then has a [`TextForm`] and a [`register_format!`](crate::register_format).
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::format::{self, Affine, Nf4, Quantizer};
///
/// let w = ops::ones::<f32>(&[8, 64])?;
/// assert_eq!(Affine { bits: 4, group: 64 }.quantize(&w)?.to_string(), "Affine(f32[8,64])");
/// let read = format::parse("nf4:64:double")?;
/// assert_eq!(read.quantize(&w)?.to_string(), "Nf4(f32[8,64])");
/// assert_eq!(read.to_string(), Nf4 { block: 64, double: true }.to_string());
/// # Ok(())
/// # }
/// ```
pub trait Quantizer: fmt::Display + fmt::Debug + Send + Sync {
    /// The array that stands for `x` in this format.
    ///
    /// It is lazy, and works inside `grad` and `compile`.
    ///
    /// # Errors
    ///
    /// The format has no such options, or `x` does not fit it: it is not float, empty, or no whole number of groups. That is an
    /// [`Error::Invalid`], and no other error is taken for it: see [`misfit`](Self::misfit). A format that rounds at random has no key
    /// here: see [`quantize_by_key`](super::quantize_by_key).
    fn quantize(&self, x: &Array) -> Result<Value>;

    /// Why the format does not fit arrays of this aval, if it does not.
    ///
    /// Nothing is evaluated, so that what fails for want of memory, or because of the numbers, is no reason.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::Dtype;
    /// use tacit_arrays::format::{Affine, Quantizer};
    /// use tacit_core::Aval;
    ///
    /// let format = Affine { bits: 4, group: 64 };
    /// assert_eq!(format.misfit(&Aval::new(&[8, 64], Dtype::Float32))?, None);
    /// assert!(format.misfit(&Aval::new(&[8, 65], Dtype::Float32))?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`quantize`](Self::quantize) fails with another error than an `Error::Invalid`, or for want of a random key.
    fn misfit(&self, aval: &Aval) -> Result<Option<String>> {
        match self.quantize(&ops::zeros_dtype(&aval.shape, aval.dtype)?) {
            Err(error @ Error::Invalid { .. }) if self.stochastic().is_none() => Ok(Some(error.clause())),
            quantized => quantized.map(|_| None),
        }
    }

    /// The array that stands for a value that is read in pieces, computed: none where the format needs all floats at once. It
    /// has the codes that [`quantize`](Self::quantize) makes. See [`quantize_in_pieces`](super::quantize_in_pieces).
    ///
    /// # Errors
    ///
    /// As for [`quantize`](Self::quantize), or a piece cannot be computed.
    fn quantize_pieces(&self, pieces: &RowPieces) -> Result<Option<Value>> {
        let _ = pieces;
        Ok(None)
    }

    /// The array that stands for the sum that an adapter is, without a gradient.
    ///
    /// A [`Format`] codes it block by block and builds no dense array where the base is dense or packed in the same
    /// orientation, unless its scales are integers, as those of a [`KQuant`](super::KQuant). Every other sum is built first, as it is
    /// for a [`Rotation`](super::Rotation) or a [`Fitted`](super::Fitted), which the policy is asked for.
    ///
    /// # Errors
    ///
    /// As for [`quantize`](Self::quantize), or the policy forbids to build the sum.
    fn quantize_sum(&self, sum: &dyn Adapter) -> Result<Value> {
        self.quantize(&itself(sum).dense()?)
    }

    /// The array that stands for `x` in this format, with scales by `fit`.
    ///
    /// # Errors
    ///
    /// As for [`quantize`](Self::quantize), or the format has no scales that are chosen, as [`fits`](Self::fits) says.
    fn quantize_by_fit(&self, x: &Array, fit: Fit) -> Result<Value> {
        if fit == Fit::Absmax { self.quantize(x) } else { Err(fit::unfit(&self.to_string(), fit)) }
    }

    /// Whether the format has scales that `fit` chooses, as every [`Format`] with scales has, but by [`Fit::Reach`] only one whose
    /// scales are the largest magnitude of a block over that of a table.
    fn fits(&self, fit: Fit) -> bool {
        let _ = fit;
        false
    }

    /// The format whose codes this one draws, where it rounds at random, as a [`Stochastic`](super::Stochastic) does.
    fn stochastic(&self) -> Option<&dyn Quantizer> {
        None
    }

    /// Whether `value` is in this format already.
    fn stores(&self, value: &Value) -> bool {
        let _ = value;
        false
    }

    /// How the scales of this format are trained, if they can be: those of every [`Format`] that has any can, unless they are
    /// quantized themselves as blocks of floats.
    fn trained_scales(&self) -> Option<&dyn TrainedScales> {
        None
    }

    /// Checks the options alone, before there is an array.
    ///
    /// # Errors
    ///
    /// The format has no such options.
    fn supported(&self) -> Result<()> {
        Ok(())
    }
}

/// A format of codes, and of scales if the codes are not the values themselves: the one declaration from which its array
/// type, its kernels, its plain ops, its text and its place in every handler follow.
///
/// ```
/// # extern crate tacit_arrays as tacit;
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_core::{implicit, register_array};
/// use tacit::format::{Format, PackedArray, Quantizer, Scheme, TextForm};
/// use tacit::register_format;
///
/// /// Signed powers of two of 3 bits.
/// #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
/// struct Powers {
///     block: usize,
/// }
///
/// impl Format for Powers {
///     const SAVED_AS: &'static str = "docs.Powers";
///
///     fn scheme(&self) -> Scheme {
///         Scheme::codebook(Self::NAME, &[-1.0, -0.5, -0.25, 0.0, 0.125, 0.25, 0.5, 1.0])
///     }
///
///     fn block(&self) -> usize {
///         self.block
///     }
/// }
///
/// impl TextForm for Powers {
///     const NAME: &'static str = "powers";
///     const FORMS: &'static str = "powers:BLOCK";
///
///     fn options(&self) -> String {
///         format!(":{}", self.block)
///     }
///
///     fn from_options(options: &[&str]) -> Option<Self> {
///         let [block] = options else { return None };
///         Some(Self { block: block.parse().ok()? })
///     }
/// }
///
/// register_format!(Powers);
/// register_array!(PackedArray<Powers>);
///
/// let w = Powers { block: 32 }.quantize(&ops::ones::<f32>(&[8, 64])?)?;
/// assert_eq!(w.to_string(), "Powers(f32[8,64])");
/// let x = ops::ones::<f32>(&[2, 64])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [64.0; 16]);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stored format",
    note = "implement `Format` and `TextForm` for it, and add `register_format!({Self})`"
)]
pub trait Format: TextForm + Clone + Eq + Hash + Serialize + DeserializeOwned {
    /// What its arrays are saved under, with a namespace: `yourcrate.Powers`.
    const SAVED_AS: &'static str;

    /// How codes and scales are made and read. Equal formats have equal schemes.
    fn scheme(&self) -> Scheme;

    /// Elements that share a scale, counted row-major; 1 where there are none.
    fn block(&self) -> usize;

    /// The same format with so many elements in a block: what an array becomes whose blocks are divided, each part with the
    /// scale of the whole. `None` where there is only the block that it has.
    #[must_use]
    fn with_block(&self, block: usize) -> Option<Self> {
        (block == self.block()).then(|| self.clone())
    }

    /// Checks the options.
    ///
    /// # Errors
    ///
    /// The format has no such ones.
    fn check(&self) -> Result<()> {
        check_block(Self::NAME, self.block())
    }

    /// The format for an array whose codes lie in this shape: where a row shares a scale, so many elements do.
    #[must_use]
    fn on(&self, shape: &[i32]) -> Self {
        let _ = shape;
        self.clone()
    }

    /// The same format with a block for each column of a matrix, which the transpose of a matrix with a block for each row
    /// is in. `None` where no options say so.
    #[must_use]
    fn columns(&self) -> Option<Self> {
        None
    }

    /// Whether blocks lie along the columns of a matrix, whose transpose is then stored.
    fn by_columns(&self) -> bool {
        false
    }
}

/// A format that has a text: its name, and its options behind colons.
pub trait TextForm: Quantizer + Sized + 'static {
    /// The name, `nf4`: one that no other format of the program has, without a space, `:` or `+`.
    const NAME: &'static str;
    /// The forms that are read, for messages: `nf4:BLOCK or nf4:BLOCK:double`.
    const FORMS: &'static str;

    /// The options as they are written, each behind a colon: `:64`.
    fn options(&self) -> String;

    /// The format with these options; `None` where there is no such one.
    fn from_options(options: &[&str]) -> Option<Self>;
}

impl PartialEq for dyn Quantizer {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for dyn Quantizer {}

impl Hash for dyn Quantizer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_string().hash(state);
    }
}

//! The elements of arrays, as a kernel reads and writes them.

use std::borrow::Cow;

use mlx_rs::Dtype;

use crate::error::BoxError;
use crate::ffi::{Buffer, Span};
use crate::{Aval, arrays, aval};

/// An element type that a kernel can read and write.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// The dtype of arrays of it.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $ty {}
            impl Element for $ty {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )*
    };
}

elements! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    half::f16 => Float16, half::bf16 => Bfloat16, f32 => Float32, f64 => Float64,
}

/// The elements of a kernel's array cannot be borrowed as they were asked for.
#[derive(Debug, thiserror::Error)]
pub enum ElementError {
    /// They are of another type.
    #[error("the array is {found}, not {}", aval::dtype_name(*.asked))]
    Dtype {
        /// What was asked for.
        asked: Dtype,
        /// What the array is.
        found: Aval,
    },
    /// They lie at an address that is not aligned for their type: the array views another one's bytes.
    #[error("the array {found} begins at an address that its elements may not have")]
    Alignment {
        /// What the array is.
        found: Aval,
    },
    /// They are where an output is.
    #[error("the array {found} is what output {output} begins as\nhelp: read it there, before the output is written")]
    InPlace {
        /// What the array is.
        found: Aval,
        /// The number of the output.
        output: usize,
    },
}

/// Checks that `T` is the element type and that its elements may lie where `data` does.
fn check_elements<T: Element>(data: &[u8], aval: &Aval) -> Result<(), ElementError> {
    if aval.dtype != T::DTYPE {
        return Err(ElementError::Dtype { asked: T::DTYPE, found: aval.clone() });
    }
    if !data.is_empty() && !data.as_ptr().cast::<T>().is_aligned() {
        return Err(ElementError::Alignment { found: aval.clone() });
    }
    Ok(())
}

/// A dense row-major array that a kernel reads.
pub struct Input<'a> {
    /// All bytes of the aval.
    data: &'a [u8],
    aval: Cow<'a, Aval>,
    /// The output in whose memory it is, with no bytes here.
    output: Option<usize>,
}

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8], aval: Cow<'a, Aval>) -> Self {
        Self { data, aval, output: None }
    }

    /// One that is where this output is.
    pub(crate) fn in_place(output: usize, aval: Cow<'a, Aval>) -> Self {
        Self { data: &[], aval, output: Some(output) }
    }

    /// Shape and dtype.
    #[must_use]
    pub fn aval(&self) -> &Aval {
        &self.aval
    }

    /// The output that holds the elements until it is written, where they are nowhere else: only kernels that say which
    /// may be so, by [`in_place`](super::Kernel::in_place), meet one.
    #[must_use]
    pub fn output(&self) -> Option<usize> {
        self.output
    }

    /// The elements.
    ///
    /// # Errors
    ///
    /// `T` is not the array's element type, the array is an unaligned view, or it is where an output is.
    pub fn elements<T: Element>(&self) -> Result<&[T], ElementError> {
        if let Some(output) = self.output {
            return Err(ElementError::InPlace { found: self.aval().clone(), output });
        }
        check_elements::<T>(self.data, &self.aval)?;
        if self.data.is_empty() {
            return Ok(&[]);
        }
        // SAFETY: the bytes are those of an array of this dtype, and the address was checked.
        Ok(unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), self.data.len() / size_of::<T>()) })
    }

    /// The elements as they lie in memory, whatever their type; none where they are in an [output](Self::output).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data
    }
}

/// A dense row-major array that a kernel fills: its elements are unspecified before they are written.
pub struct Output<'a> {
    /// All bytes of the aval.
    data: &'a mut [u8],
    aval: Cow<'a, Aval>,
}

impl<'a> Output<'a> {
    /// `fresh`: whether it holds nothing yet.
    ///
    /// # Safety
    ///
    /// There is room for an array of this aval, which has so many bytes, at `data`, and nobody else uses it for `'a`.
    pub(crate) unsafe fn new(data: *mut u8, bytes: usize, aval: Cow<'a, Aval>, fresh: bool) -> Self {
        let data: &mut [u8] = if bytes == 0 {
            &mut []
        } else {
            // SAFETY: as the caller promises. Whatever gave the bytes out is code which this compiler does not see and which may
            // have stored any value in each, so to Rust they are initialized, and numbers of every value are valid.
            unsafe { std::slice::from_raw_parts_mut(data, bytes) }
        };
        if cfg!(debug_assertions) && fresh {
            // A test sees what its kernel leaves out.
            data.fill(0xff);
        }
        Self { data, aval }
    }

    /// Shape and dtype.
    #[must_use]
    pub fn aval(&self) -> &Aval {
        &self.aval
    }

    /// The elements, unspecified before the kernel writes them.
    ///
    /// # Errors
    ///
    /// `T` is not the array's element type, or the array is an unaligned view.
    pub fn elements<T: Element>(&mut self) -> Result<&mut [T], ElementError> {
        check_elements::<T>(self.data, &self.aval)?;
        if self.data.is_empty() {
            return Ok(&mut []);
        }
        // SAFETY: as in `Input::elements`; nobody else holds the buffer of an output.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.as_mut_ptr().cast(), self.data.len() / size_of::<T>()) })
    }

    /// The elements as they lie in memory, whatever their type; unspecified before the kernel writes them.
    #[must_use]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.data
    }
}

/// # Safety
///
/// The buffer must be live and unaliased by a writer for `'a`.
pub(super) unsafe fn input<'a>(buffer: &Buffer) -> Result<Input<'a>, BoxError> {
    let aval = aval_of(buffer)?;
    // SAFETY: as the caller promises.
    let data = unsafe { Span { data: buffer.data.cast_const().cast(), count: buffer.bytes }.get() };
    Ok(Input::new(data, Cow::Owned(aval)))
}

/// # Safety
///
/// The buffer must be live and nobody else's for `'a`.
pub(super) unsafe fn output<'a>(buffer: &Buffer) -> Result<Output<'a>, BoxError> {
    let aval = aval_of(buffer)?;
    // SAFETY: as the caller promises; the aval has the bytes of the buffer.
    Ok(unsafe { Output::new(buffer.data.cast(), buffer.bytes, Cow::Owned(aval), true) })
}

fn aval_of(buffer: &Buffer) -> Result<Aval, BoxError> {
    // SAFETY: the shape belongs to the array behind the buffer, which is live.
    let aval = unsafe { arrays::aval_of(buffer.aval)? };
    if aval.nbytes() != buffer.bytes {
        return Err(format!("the buffer of {aval} has {} bytes", buffer.bytes).into());
    }
    Ok(aval)
}

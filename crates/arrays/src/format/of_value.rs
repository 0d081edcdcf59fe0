//! The format that a value is stored in.

use tacit_core::Value;

use super::declaration::TextForm;
use super::rotation::{Rotation, behind};
use crate::families::packed::Packed;
use crate::views::stacked::Stacked;

/// The text of the format that a value is stored in, as rules and the command line have it; `None` where it is dense, or what
/// a computation stands for, or a transpose whose blocks are not its columns.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::format;
///
/// let ones = ops::ones::<f32>(&[8, 64])?;
/// let value = format::parse("rotated:affine:5:32")?.quantize(&ones)?;
/// assert_eq!(format::of_value(&value).as_deref(), Some("rotated:affine:5:32"));
/// assert_eq!(format::of_value(&ones.into()), None);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn of_value(value: &Value) -> Option<String> {
    if let Some(packed) = value.family::<dyn Packed>() {
        return packed.format_text();
    }
    if let Some(inner) = behind(value) {
        return Some(format!("{}:{}", Rotation::NAME, of_value(inner)?));
    }
    let mut parts = value.downcast::<Stacked>()?.experts().iter().map(of_value);
    let first = parts.next()??;
    parts.all(|part| part.as_ref() == Some(&first)).then_some(first)
}

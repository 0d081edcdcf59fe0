//! The signed dynamic 8-bit format of bitsandbytes, in which it stores the absmax of its nested 4-bit formats.
//!
//! An element is a code of [`map`], in units of its block's absmax. The map is dense near zero and sparse far from it:
//! seven decades, each twice as finely divided as the one below.

use std::sync::{Arc, LazyLock};

use crate::{
    Encoder,
    encoder::{BlockRule, Rule},
    search::FarSearch,
};

/// The value of each code, ascending, in units of the block's absmax; code 127 is zero.
#[must_use]
pub fn map() -> &'static [f32; 256] {
    &TABLES.values
}

/// The encoder of blocks of `block` elements, a power of two from 32 to 4096, with the absmax of each.
///
/// An element takes the nearest value of [`map`]; halfway between two, the lesser.
///
/// ```
/// use tacit_kernels::{BlockScales, dynamic8};
///
/// let (mut codes, mut absmax) = ([0; 3], [0.0]);
/// dynamic8::encoder(256).quantize(&[2.0, 0.0, -1e-6], &mut codes, BlockScales::Floats(&mut absmax))?;
/// assert_eq!((codes, absmax), ([255, 127, 126], [2.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(block: usize) -> Encoder {
    let rule = Rule::NearestByte { search: Arc::clone(&TABLES.search), top: 1.0 };
    Encoder { blocks: BlockRule::PowerOfTwo, ..Encoder::new(block, rule) }
}

/// The mean of the absmax values, which bitsandbytes subtracts before it quantizes them; 0 of none.
///
/// It is summed in `f64` and so correctly rounded. bitsandbytes sums in `f32`, in an order that depends on the machine,
/// and can differ by an ulp or two.
#[must_use]
pub fn offset(absmax: &[f32]) -> f32 {
    if absmax.is_empty() {
        return 0.0;
    }
    (absmax.iter().map(|&value| f64::from(value)).sum::<f64>() / absmax.len() as f64) as f32
}

struct Tables {
    values: [f32; 256],
    /// By what lies between each value and the next.
    search: Arc<FarSearch>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut values = Vec::with_capacity(256);
    values.extend([0.0, 1.0]);
    for (decade, scale) in [1e-6_f32, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0].into_iter().enumerate() {
        let parts = 1_i16 << decade;
        let step = (1.0_f32 - 0.1) / f32::from(parts);
        // Counted from the nearer end and rounded once, as torch.linspace does, to the same bits.
        let boundary = |i: i16| {
            let (start, steps) = if i < (parts + 1) / 2 { (0.1, i) } else { (1.0, i - parts) };
            step.mul_add(f32::from(steps), start)
        };
        for i in 0..parts {
            let mean = f32::midpoint(boundary(i), boundary(i + 1)) * scale;
            values.extend([mean, -mean]);
        }
    }
    values.sort_by(f32::total_cmp);
    let values: [f32; 256] = std::array::from_fn(|i| values[i]);
    let thresholds: [f32; 255] = std::array::from_fn(|i| f32::midpoint(values[i], values[i + 1]));
    let search = FarSearch::new(&thresholds, &std::array::from_fn::<u8, 256, _>(|i| i as u8));
    Tables { search: Arc::new(search), values }
});

//! The signed dynamic 8-bit format of bitsandbytes, in which it stores the absmax of its nested 4-bit formats.
//!
//! An element is a code of [`map`], in units of its block's absmax. The map is dense near zero and sparse far from it:
//! seven decades, each twice as finely divided as the one below.

use std::sync::{Arc, LazyLock};

use crate::{
    Encoder,
    encoder::{BlockRule, Rule, Top},
    search::FarSearch,
};

/// The value of each code, ascending, in units of the block's absmax; code 127 is zero.
#[must_use]
pub fn map() -> &'static [f32; 256] {
    &TABLES.values
}

/// The map without a sign: the value of each code, ascending, in units of the block's largest value.
///
/// Each decade is twice as finely divided as that of [`map`]. Code 0 stands for the lower end of the lowest decade, 1e-7, where
/// bitsandbytes' map has zero: the square root of such a number is a divisor in Adam's step, and a step divided by almost nothing
/// is a jump.
#[must_use]
pub fn unsigned_map() -> &'static [f32; 256] {
    &UNSIGNED
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
    let rule = Rule::NearestByte { search: Arc::clone(&TABLES.search), top: Top::Absmax(1.0) };
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
    let mut values = vec![0.0, 1.0];
    values.extend(means(1).flat_map(|mean| [mean, -mean]));
    let values = sorted(values);
    let thresholds: [f32; 255] = std::array::from_fn(|i| f32::midpoint(values[i], values[i + 1]));
    let search = FarSearch::new(&thresholds, &std::array::from_fn::<u8, 256, _>(|i| i as u8));
    Tables { search: Arc::new(search), values }
});

static UNSIGNED: LazyLock<[f32; 256]> = LazyLock::new(|| {
    let mut values = vec![1e-7, 1.0];
    values.extend(means(2));
    sorted(values)
});

/// The middles of the parts of each decade, of which the lowest has `parts` and each other twice as many as the one below.
fn means(parts: i16) -> impl Iterator<Item = f32> {
    let decades = [1e-6_f32, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0].into_iter().enumerate();
    decades.flat_map(move |(decade, scale)| {
        let parts = parts << decade;
        let step = (1.0_f32 - 0.1) / f32::from(parts);
        // Counted from the nearer end and rounded once, as torch.linspace does, to the same bits.
        let boundary = move |i: i16| {
            let (start, steps) = if i < (parts + 1) / 2 { (0.1, i) } else { (1.0, i - parts) };
            step.mul_add(f32::from(steps), start)
        };
        (0..parts).map(move |i| f32::midpoint(boundary(i), boundary(i + 1)) * scale)
    })
}

fn sorted(mut values: Vec<f32>) -> [f32; 256] {
    values.sort_by(f32::total_cmp);
    std::array::from_fn(|i| values[i])
}

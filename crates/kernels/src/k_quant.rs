//! GGUF's K-quants: unsigned integers in groups, whose scales are 8-bit integers themselves, in units of a super-block of 256.
//!
//! The value of a code is `code * scale + bias`, where biases are stored as the scales are, or `(code - 2^(bits-1)) * scale`.
//! The formats are defined by `ggml-quants.c` of llama.cpp.

use crate::{
    Isa, KernelError,
    affine::{Affine, Line},
    encode,
    int8::Scale,
    matrix::check_length,
    simd::{Kernel, Simd, run},
    threads,
};

/// Elements of a super-block.
const SUPER: usize = 256;
/// Super-blocks that one task handles.
const TASK: usize = 256;

/// How a K-quant stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bits of a code.
    pub bits: u32,
    /// Elements that share a scale, 16 or 32.
    pub group: usize,
    /// Whether the middle code stands for zero, and there are no biases.
    pub centered: bool,
}

impl Layout {
    /// The scales of a super-block.
    fn groups(self) -> usize {
        SUPER / self.group
    }

    /// What is added to a code in the middle, in units of the scale.
    fn center(self) -> f32 {
        -((1_u32 << (self.bits - 1)) as f32)
    }

    /// The exact scale and bias of a group.
    fn line(self, low: f32, high: f32) -> [f32; 2] {
        if self.centered {
            // The larger end is the code 0, which reaches one step further than the last one.
            let edge = if low.abs() > high.abs() { low } else { high };
            return [edge / self.center(), 0.0];
        }
        let (low, top) = (low.min(0.0), ((1_u32 << self.bits) - 1) as f32);
        // The difference of the two might overflow.
        [high / top - low / top, low]
    }
}

/// Quantizes `x: f32[e]` into one stream of `codes`, the first in the lowest bits, and the scales of `s = ceil(e/256)`
/// super-blocks of `g = 256 / group` groups, then their biases: `numbers: i8[1 or 2, s, g]` in units of
/// `most / 127`, for `most: f32[1 or 2, s]`.
///
/// A scale is that of the group's range, without a search for a better one; what fills the last super-block up is zero. Codes
/// are chosen for the scales as they are stored.
///
/// ```
/// use tacit_kernels::k_quant::{self, Layout};
///
/// let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
/// let (mut codes, mut numbers, mut most) = ([0; 16], [0; 16], [0.0; 2]);
/// k_quant::quantize(&x, Layout { bits: 4, group: 32, centered: false }, &mut codes, &mut numbers, &mut most)?;
/// assert_eq!((codes[15], numbers[0], most), (0xfe, 127, [31.0 / 15.0, 0.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Bits outside 2 to 6, a group that is not 16 or 32, a wrong length, or a NaN or infinity in `x`. The outputs are then
/// unspecified.
pub fn quantize(
    x: &[f32],
    layout: Layout,
    codes: &mut [u8],
    numbers: &mut [i8],
    most: &mut [f32],
) -> Result<(), KernelError> {
    if !(2..=6).contains(&layout.bits) {
        return Err(KernelError::Bits { bits: layout.bits });
    }
    if !matches!(layout.group, 16 | 32) {
        return Err(KernelError::BlockSize { block: layout.group });
    }
    let (supers, groups) = (x.len().div_ceil(SUPER), layout.groups());
    let rows = if layout.centered { 1 } else { 2 };
    check_length(
        "numbers",
        numbers.len(),
        rows * supers * groups,
        "each group has one for its scale, and for its bias",
    )?;
    check_length("most", most.len(), rows * supers, "each super-block has one for its scales, and for its biases")?;
    let mut lines = vec![Line::default(); supers * groups];
    let isa = Isa::detect();
    let (scales, biases) = numbers.split_at_mut(supers * groups);
    let (most_scales, most_biases) = most.split_at_mut(supers);
    let mut biases = biases.chunks_mut(TASK * groups).zip(most_biases.chunks_mut(TASK));
    let parts = x
        .chunks(TASK * SUPER)
        .zip(lines.chunks_mut(TASK * groups))
        .zip(scales.chunks_mut(TASK * groups).zip(most_scales.chunks_mut(TASK)))
        .map(|((x, lines), scales)| Coarse { layout, x, lines, scales, biases: biases.next() });
    threads::for_each_part(usize::MAX, parts, &|part| run(isa, part));
    let blocks = x.len().div_ceil(layout.group);
    encode::quantize_by(isa, Affine::of(layout.bits), x, layout.group, &lines[..blocks], codes)
}

/// Integers, and the largest magnitude of each super-block of them.
type Integers<'a> = (&'a mut [i8], &'a mut [f32]);

/// The scales and biases of some super-blocks, as they are stored and as they are read back.
struct Coarse<'a> {
    layout: Layout,
    x: &'a [f32],
    lines: &'a mut [Line],
    scales: Integers<'a>,
    biases: Option<Integers<'a>>,
}

impl Kernel for Coarse<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (layout, groups) = (self.layout, self.layout.groups());
        for (s, x) in self.x.chunks(SUPER).enumerate() {
            let mut exact = [[0.0; SUPER / 16]; 2];
            for (g, x) in x.chunks(layout.group).enumerate() {
                let (mut low, mut high) = encode::range(simd, x);
                if x.len() < layout.group {
                    (low, high) = (low.min(0.0), high.max(0.0));
                }
                [exact[0][g], exact[1][g]] = layout.line(low, high);
            }
            let at = s * groups..(s + 1) * groups;
            let lines = &mut self.lines[at.clone()];
            let [scales, biases] = &mut exact;
            round(&mut scales[..groups], &mut self.scales.0[at.clone()], &mut self.scales.1[s]);
            match &mut self.biases {
                Some((numbers, most)) => round(&mut biases[..groups], &mut numbers[at], &mut most[s]),
                None => biases.iter_mut().zip(&*scales).for_each(|(bias, scale)| *bias = scale * layout.center()),
            }
            for (line, (&scale, &bias)) in lines.iter_mut().zip(scales.iter().zip(&*biases)) {
                *line = Line { scale: if scale == 0.0 { 1.0 } else { scale }, bias };
            }
        }
    }
}

/// Rounds numbers to integers in units of the largest magnitude over 127; the numbers then are what is read back.
#[inline(always)]
fn round(exact: &mut [f32], numbers: &mut [i8], most: &mut f32) {
    *most = exact.iter().fold(0.0, |most, x| most.max(x.abs()));
    let Scale { unit, factor } = Scale::new(*most);
    for (x, number) in exact.iter_mut().zip(numbers) {
        let integer = (*x * factor).clamp(-127.0, 127.0).round_ties_even();
        *number = integer as i8;
        *x = integer * unit;
    }
}

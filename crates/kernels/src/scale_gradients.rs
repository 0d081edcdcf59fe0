//! The gradients of a quantized matrix for its scales, its biases, and the floats that were quantized.

use half::{bf16, f16};

use crate::{
    Codes, KernelError, Matrix,
    matrix::{check_length, offset},
    threads,
};

/// The gradients through the rounding of `x` to `w`, a matrix of codes by the scales that `w` has, of which `cotangent` is
/// the gradient: of `x`, of each block's scale and, where `biases` are asked for, of its bias.
///
/// With `u = (x - bias) / scale` and `q` the value of the code, rounding passes straight through where `u` lies within the
/// range of the codes, and is constant beyond: an element gives its scale `q - u` and `q`, its bias 0 and 1, and
/// `x` 1 and 0 times its cotangent. That is the rule of LSQ (Esser et al., 2020), with a bias that of LSQ+ (Bhalgat et
/// al., 2020). Sums are taken in `f64`. A scale of zero has only what is within the range.
///
/// ```
/// use tacit_kernels::{Codes, Matrix, Scales, scale_gradients};
///
/// // 1.2 is 1 in units of 1.0, and 300 is beyond the range.
/// let w = Matrix { n: 1, k: 2, codes: Codes::Signed { codes: &[1, 127] }, scales: Scales::F32(&[1.0]), biases: None, block: 2 };
/// let (mut of_x, mut of_scales) = ([0.0; 2], [0.0]);
/// scale_gradients(&w, &[1.2, 300.0], &[1.0, 1.0], &mut of_x, &mut of_scales, None)?;
/// assert_eq!(of_x, [1.0, 0.0]);
/// assert!((of_scales[0] - (1.0 - 1.2 + 127.0)).abs() < 1e-4);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A wrong length.
pub fn scale_gradients(
    w: &Matrix<'_>,
    x: &[f32],
    cotangent: &[f32],
    of_x: &mut [f32],
    of_scales: &mut [f32],
    of_biases: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    let elements = w.check()?;
    let blocks = elements.div_ceil(w.block);
    for (name, length) in [("x", x.len()), ("cotangent", cotangent.len()), ("of_x", of_x.len())] {
        check_length(name, length, elements, "each element has one")?;
    }
    check_length("of_scales", of_scales.len(), blocks, "each block of elements has one")?;
    let mut unasked = Vec::new();
    let of_biases = of_biases.unwrap_or_else(|| {
        unasked.resize(blocks, 0.0);
        &mut unasked
    });
    check_length("of_biases", of_biases.len(), blocks, "each block of elements has one")?;
    let range = range(&w.codes);
    let per_task = threads::per_task(w.block);
    let parts = of_x
        .chunks_mut((per_task * w.block).max(1))
        .zip(of_scales.chunks_mut(per_task))
        .zip(of_biases.chunks_mut(per_task))
        .enumerate();
    threads::for_each_part(usize::MAX, parts, &|(task, ((of_x, of_scales), of_biases))| {
        let blocks = of_x.chunks_mut(w.block).zip(of_scales).zip(of_biases);
        for (block, ((of_x, of_scale), of_bias)) in (task * per_task..).zip(blocks) {
            let bias = w.biases.map_or(0.0, |biases| biases.get(block));
            let start = block * w.block;
            (*of_scale, *of_bias) =
                Block { w, start, scale: w.scales.get(block), bias, range }.gradients(x, cotangent, of_x);
        }
    });
    Ok(())
}

/// The least and the greatest finite value of the codes.
fn range(codes: &Codes<'_>) -> (f32, f32) {
    let of = |values: &[f32]| {
        let finite = values.iter().filter(|value| value.is_finite());
        finite.fold((f32::MAX, f32::MIN), |(low, high), &value| (low.min(value), high.max(value)))
    };
    match *codes {
        Codes::Table { bits, values, .. } => of(&values[..1 << bits]),
        Codes::Unsigned { bits, .. } => (0.0, ((1u32 << bits) - 1) as f32),
        Codes::Offset { bits, .. } => (-offset(bits), offset(bits) - 1.0),
        Codes::Signed { .. } => (-127.0, 127.0),
        Codes::E4m3 { .. } => (-448.0, 448.0),
        Codes::Bytes { values, .. } => of(values),
        Codes::F16 { .. } => (f16::MIN.to_f32(), f16::MAX.to_f32()),
        Codes::Bf16 { .. } => (bf16::MIN.to_f32(), bf16::MAX.to_f32()),
    }
}

/// What the outermost element of a block may lie beyond the range by, whose scale was rounded.
const SLACK: f32 = 1e-5;

struct Block<'a> {
    w: &'a Matrix<'a>,
    start: usize,
    scale: f32,
    bias: f32,
    range: (f32, f32),
}

impl Block<'_> {
    /// The gradients of the scale and of the bias; those of the elements go to `of_x`.
    fn gradients(&self, x: &[f32], cotangent: &[f32], of_x: &mut [f32]) -> (f32, f32) {
        let (low, high) = self.range;
        let slack = SLACK * (high - low);
        let (mut of_scale, mut of_bias) = (0.0_f64, 0.0_f64);
        for (at, of_x) in (self.start..).zip(of_x) {
            let (g, q) = (cotangent[at], self.w.codes.value(at));
            let u = if self.scale == 0.0 { 0.0 } else { (x[at] - self.bias) / self.scale };
            let inside = u >= low - slack && u <= high + slack;
            *of_x = if inside { g } else { 0.0 };
            of_scale += f64::from(g) * f64::from(if inside { q - u } else { q });
            of_bias += f64::from(if inside { 0.0 } else { g });
        }
        (of_scale as f32, of_bias as f32)
    }
}

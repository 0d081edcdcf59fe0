//! What an output holds before is not looked at: every function writes all of its outputs.

use half::{bf16, f16};
use tacit_kernels::{
    BlockScales, Encoder, Isa, KernelError, Orientation, ScaleRule, affine, binary, dequantize, dynamic8, fp4,
    gather_rows, int8, int8_matmul, matmul, mx, nf4, nvfp4, ternary,
};

use crate::{
    random::Random,
    stored::{KINDS, SCALINGS, Scaling, Stored},
};

/// What outputs hold before: no number, or all bits.
trait Garbage: Copy + PartialEq + std::fmt::Debug {
    const GARBAGE: [Self; 2];
}

impl Garbage for f32 {
    const GARBAGE: [Self; 2] = [Self::NAN, -1e30];
}

impl Garbage for f16 {
    const GARBAGE: [Self; 2] = [Self::NAN, Self::MIN];
}

impl Garbage for bf16 {
    const GARBAGE: [Self; 2] = [Self::NAN, Self::MIN];
}

impl Garbage for u8 {
    const GARBAGE: [Self; 2] = [0xff, 0x5a];
}

impl Garbage for i8 {
    const GARBAGE: [Self; 2] = [-1, 0x5a];
}

/// Fails unless two outputs, of lengths `a` and `b`, become the same whatever they held, and no NaN is left.
fn check<A: Garbage, B: Garbage>(
    what: &str,
    (a, b): (usize, usize),
    write: impl Fn(&mut [A], &mut [B]) -> Result<(), KernelError>,
) {
    let results = [0, 1].map(|i| {
        let (mut a, mut b) = (vec![A::GARBAGE[i]; a], vec![B::GARBAGE[i]; b]);
        write(&mut a, &mut b).unwrap();
        (a, b)
    });
    // A NaN that was left is not equal to anything.
    assert_eq!(results[0], results[1], "{what}");
}

#[test]
fn of_products_and_decoders_all_is_written() {
    for isa in Isa::available() {
        isa.with(products_and_decoders);
    }
}

fn products_and_decoders() {
    let (n, k) = (21, 64);
    let x = Random::new(3).normal(70 * k);
    for kind in KINDS {
        for scaling in SCALINGS {
            let stored = Stored::new(kind, scaling, scaling == Scaling::F32, 32, n, k);
            let (matrix, what) = (stored.matrix(), stored.describe());
            check::<f32, f16>(&what, (n * k, n * k), |a, b| {
                dequantize(&matrix, a)?;
                dequantize(&matrix, b)
            });
            check::<f32, bf16>(&what, (3 * k, 3 * k), |a, b| {
                gather_rows(&matrix, &[20, 0, 7], a)?;
                gather_rows(&matrix, &[20, 0, 7], b)
            });
            for m in [1, 2, 5, 9, 20, 70] {
                check::<f32, bf16>(&what, (m * n, m * k), |a, b| {
                    matmul(&x[..m * k], m, &matrix, Orientation::Transposed, a)?;
                    matmul(&x[..m * n], m, &matrix, Orientation::Plain, b)
                });
                let mut y = vec![0.0; m * n];
                if int8_matmul(&x[..m * k], m, &matrix, Orientation::Transposed, &mut y[..]).is_ok() {
                    check::<f32, f16>(&what, (m * n, m * n), |a, b| {
                        int8_matmul(&x[..m * k], m, &matrix, Orientation::Transposed, a)?;
                        int8_matmul(&x[..m * k], m, &matrix, Orientation::Transposed, b)
                    });
                }
            }
        }
    }
}

#[test]
fn of_quantizers_all_is_written() {
    for len in [0, 1, 63, 64, 320, 70_016] {
        let x = &Random::new(5).normal(len)[..];
        let blocks = |block: usize| len.div_ceil(block);
        let bytes = |bits: usize| (len * bits).div_ceil(8);
        let floats: [(&str, usize, usize, Encoder); 5] = [
            ("nf4", 4, 64, nf4::encoder(64)),
            ("fp4", 4, 64, fp4::encoder(64)),
            ("ternary", 2, 40, ternary::encoder(40)),
            ("binary", 1, 40, binary::encoder(40)),
            ("dynamic8", 8, 256, dynamic8::encoder(256)),
        ];
        for (name, bits, block, encoder) in floats {
            let sizes = (bytes(bits), blocks(block));
            check::<u8, f32>(name, sizes, |a, b| encoder.quantize(x, a, BlockScales::Floats(b)));
        }
        let in_bytes: [(&str, usize, usize, Encoder); 3] = [
            ("mxfp4", 4, 32, mx::mxfp4(ScaleRule::Ceil)),
            ("mxfp8", 8, 32, mx::mxfp8(ScaleRule::Floor)),
            ("nvfp4", 4, 16, nvfp4::encoder(Some(4.0))),
        ];
        for (name, bits, block, encoder) in in_bytes {
            let sizes = (bytes(bits), blocks(block));
            check::<u8, u8>(name, sizes, |a, b| encoder.quantize(x, a, BlockScales::Bytes(b)));
        }
        check::<i8, f32>("int8", (len, blocks(50)), |a, b| {
            int8::encoder(50).quantize(x, int8::as_bytes(a), BlockScales::Floats(b))
        });
        if len.is_multiple_of(64) && len > 0 {
            for bits in 1..=8 {
                check::<u8, f32>("affine", (bytes(bits as usize), blocks(32)), |codes, scales| {
                    let mut biases = vec![f32::NAN; scales.len()];
                    affine::encoder(32, bits).quantize(x, codes, BlockScales::Biased(scales, &mut biases))?;
                    scales.iter_mut().zip(&biases).for_each(|(scale, bias)| *scale += bias);
                    Ok(())
                });
            }
        }
    }
}

//! Every kernel on few elements, on each instruction set: what Miri runs in reasonable time, on the portable loops.
//!
//! `.ci/run undefined` has it check the aliasing of pointers, the bounds of reads, and races between tasks.

use half::{bf16, f16};
use tacit_kernels::program::{Columns, Data, DataMut, Kind as Element, Map, Op, Precision, Program, Source, Step};
use tacit_kernels::{
    Attention, BlockScales, Dense, Factors, Floats, Indices, Isa, Mask, MaskValues, Operand, Order, Orientation,
    OuterProducts, ScaleRule, Stack, affine, attention, binary, dense_matmul, dequantize, dynamic8, fp4, gather_matmul,
    gather_rows, grouped_matmul, hadamard, half_floats, int8, int8_matmul, matmul, mx, nf4, nvfp4,
    product_scale_gradients, scale_gradients, ternary, threads,
};

use crate::{
    random::Random,
    stored::{KINDS, Kind, SCALINGS, Scaling, Stored},
};

const BOTH: [Orientation; 2] = [Orientation::Transposed, Orientation::Plain];

fn normal(seed: u64, len: usize) -> Vec<f32> {
    Random::new(seed).normal(len)
}

/// Fails where a product is further from the exact one than the rounding of its terms explains.
fn near(ours: &[f32], x: &[f32], stored: &Stored, orientation: Orientation, first: usize, n: usize) {
    let k = stored.k;
    let (depth, columns) = if orientation == Orientation::Transposed { (k, n) } else { (n, k) };
    for (at, ours) in ours.iter().enumerate() {
        let (row, j) = (at / columns, at % columns);
        let (mut sum, mut size) = (0.0, 0.0);
        for d in 0..depth {
            let place = first + if orientation == Orientation::Transposed { j * k + d } else { d * k + j };
            let (value, most) = stored.element(place);
            let x = f64::from(x[row * depth + d]);
            (sum, size) = (sum + x * f64::from(value), size + x.abs() * f64::from(most));
        }
        assert!(
            (f64::from(*ours) - sum).abs() <= 1e-5 * size + 1e-30,
            "{} at {at}: {ours} and {sum}",
            stored.describe()
        );
    }
}

fn multiplied(stored: &Stored, m: usize) {
    for orientation in BOTH {
        let (depth, columns) =
            if orientation == Orientation::Transposed { (stored.k, stored.n) } else { (stored.n, stored.k) };
        let x = normal(3, m * depth);
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; m * columns];
            isa.with(|| matmul(&x[..], m, &stored.matrix(), orientation, &mut out[..])).unwrap();
            near(&out, &x, stored, orientation, 0, stored.n);
            let mut rounded = vec![bf16::NAN; m * columns];
            isa.with(|| matmul(&x[..], m, &stored.matrix(), orientation, &mut rounded[..])).unwrap();
            assert!(rounded.iter().zip(&out).all(|(rounded, out)| *rounded == bf16::from_f32(*out)), "{isa:?}");
        }
    }
}

#[test]
fn products_of_every_kind_of_codes() {
    for kind in KINDS {
        // Whole blocks and words, and what is neither.
        multiplied(&Stored::new(kind, Scaling::F32, true, 16, 3, 32), 1);
        multiplied(&Stored::new(kind, Scaling::F32, false, 8, 2, 21), 2);
    }
}

#[test]
fn products_with_every_kind_of_scales() {
    for scaling in SCALINGS {
        for biased in [false, true] {
            multiplied(&Stored::new(Kind::Unsigned(4), scaling, biased, 8, 2, 24), 2);
        }
    }
}

/// Rows of activations that are taken together, and those that are left over.
#[test]
fn products_of_many_rows() {
    for kind in [Kind::Table(4, Order::HighFirst), Kind::Unsigned(3), Kind::Signed] {
        multiplied(&Stored::new(kind, Scaling::F32, true, 8, 3, 16), 9);
    }
}

#[test]
fn elements_and_rows() {
    for kind in KINDS {
        let stored = Stored::new(kind, Scaling::Bf16, true, 8, 4, 19);
        let expected = stored.elements();
        for isa in Isa::available() {
            let mut out = vec![f32::NAN; expected.len()];
            isa.with(|| dequantize(&stored.matrix(), &mut out[..])).unwrap();
            assert_eq!(out, expected, "{isa:?} {kind:?}");
            let mut rows = vec![f16::NAN; 2 * stored.k];
            isa.with(|| gather_rows(&stored.matrix(), &[3, 0], &mut rows[..])).unwrap();
            let chosen = expected[3 * stored.k..].iter().chain(&expected[..stored.k]);
            assert!(rows.iter().zip(chosen).all(|(row, value)| *row == f16::from_f32(*value)), "{isa:?} {kind:?}");
        }
    }
}

#[test]
fn products_of_chosen_and_of_grouped_matrices() {
    for kind in [Kind::Table(4, Order::HighFirst), Kind::Signed, Kind::Unsigned(3)] {
        // Of three matrices the blocks of the last kind reach over their ends.
        let stored = Stored::new(kind, Scaling::F32, true, 8, 3 * 4, 16);
        let stack = Stack { matrix: stored.matrix(), count: 3 };
        for orientation in BOTH {
            let (depth, columns) = if orientation == Orientation::Transposed { (16, 4) } else { (4, 16) };
            let x = normal(4, 2 * 2 * depth);
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; 4 * 2 * columns];
                let chosen = Indices { rows: 2, x: &[1, 0, 1, 1], stack: &[2, 0, 0, 2] };
                isa.with(|| gather_matmul(&x[..], chosen, &stack, orientation, &mut out[..])).unwrap();
                for (pair, out) in out.chunks(2 * columns).enumerate() {
                    let from = &x[chosen.x[pair] as usize * 2 * depth..][..2 * depth];
                    near(out, from, &stored, orientation, chosen.stack[pair] as usize * 4 * 16, 4);
                }
                let mut out = vec![f32::NAN; 2 * 2 * columns];
                let grouped = || grouped_matmul(&x[..], 2, &[2, 1], &stored.matrix(), 4, orientation, &mut out[..]);
                isa.with(grouped).unwrap();
                for ((of, out), x) in [2, 1].into_iter().zip(out.chunks(2 * columns)).zip(x.chunks(2 * depth)) {
                    near(out, x, &stored, orientation, of * 4 * 16, 4);
                }
            }
        }
    }
}

#[test]
fn attention_with_and_without_a_mask() {
    let (keys, values) = (
        Stored::new(Kind::Unsigned(4), Scaling::F32, true, 16, 2 * 5, 16),
        Stored::new(Kind::Table(4, Order::HighFirst), Scaling::F32, false, 8, 2 * 5, 24),
    );
    let q = normal(5, 2 * 3 * 16);
    let visible = [1, 0, 1, 1, 0];
    let hiding = MaskValues::Visible { visible: &visible, hidden: f32::NEG_INFINITY };
    for isa in Isa::available() {
        for mask in [None, Some(Mask { values: hiding, entries: &[0, 0], row: 0, column: 1 })] {
            let mut out = vec![f32::NAN; 2 * 3 * 24];
            let (keys, values) = (keys.matrix(), values.matrix());
            let of = Attention { q: Floats::F32(&q), queries: 3, indices: &[1, 0], keys, values, tokens: 5, mask };
            isa.with(|| attention(&of, &mut out[..])).unwrap();
            assert!(out.iter().all(|x| x.is_finite()), "{isa:?}");
        }
    }
}

#[test]
fn products_in_eight_bits() {
    let kinds = [Kind::Table(4, Order::HighFirst), Kind::Signed, Kind::Unsigned(4), Kind::Unsigned(8)];
    for (kind, biased) in kinds.into_iter().map(|kind| (kind, matches!(kind, Kind::Unsigned(_)))) {
        let stored = Stored::new(kind, Scaling::F32, biased, 8, 5, 24);
        let x = normal(7, 3 * 24);
        for isa in Isa::available() {
            let mut out = [f32::NAN; 3 * 5];
            isa.with(|| int8_matmul(&x[..], 3, &stored.matrix(), Orientation::Transposed, &mut out[..])).unwrap();
            assert!(out.iter().all(|x| x.is_finite()), "{isa:?}");
        }
    }
}

#[test]
fn rotations_gradients_and_dense_products() {
    for isa in Isa::available() {
        let (a, b) = (normal(1, 5 * 7), normal(2, 7 * 3));
        let mut out = [f32::NAN; 5 * 3];
        let of = |values, rows, columns| Dense { values, rows, columns, stride: columns };
        let product = || {
            let plain = |matrix| Operand { matrix, orientation: Orientation::Plain };
            let (a, b) = (plain(of(&a[..], 5, 7)), plain(of(&b[..], 7, 3)));
            dense_matmul(a, b, Dense { values: &mut out[..], rows: 5, columns: 3, stride: 3 }, Factors::default())
        };
        isa.with(product).unwrap();
        assert!(out.iter().all(|x| x.is_finite()), "{isa:?}");
        let stored = Stored::new(Kind::Unsigned(4), Scaling::F32, true, 8, 2, 16);
        let (x, cotangent) = (normal(3, 32), normal(4, 32));
        let (mut of_x, mut scales, mut biases) = (vec![0.0; 32], vec![0.0; 4], vec![0.0; 4]);
        let gradients = || scale_gradients(&stored.matrix(), &x, &cotangent, &mut of_x, &mut scales, Some(&mut biases));
        isa.with(gradients).unwrap();
        let products = OuterProducts { rows: 1, left: &x[..2], right: &cotangent[..16], matrices: &[0] };
        let stack = Stack { matrix: stored.matrix(), count: 1 };
        isa.with(|| product_scale_gradients(&stack, &products, &mut scales, &mut biases)).unwrap();
        for n in [1, 8, 12, 40] {
            let x = normal(8, 2 * n);
            let (mut once, mut twice) = (vec![0.0; 2 * n], vec![0.0; 2 * n]);
            isa.with(|| hadamard(&x[..], n, &mut once[..])).unwrap();
            isa.with(|| hadamard(&once[..], n, &mut twice[..])).unwrap();
            assert!(twice.iter().zip(&x).all(|(twice, x)| (twice - x).abs() < 1e-5), "{isa:?} {n}");
        }
    }
}

/// More elements than one task has, of one block's length and of others: several threads write side by side.
#[test]
fn every_format_is_coded() {
    let x = normal(9, 96);
    for isa in Isa::available() {
        isa.with(|| {
            let (mut bytes, mut floats, mut more) = (vec![0; 96], vec![0.0; 3], vec![0.0; 3]);
            nf4::encoder(32).quantize(&x, &mut bytes[..48], BlockScales::Floats(&mut floats)).unwrap();
            fp4::encoder(32).quantize(&x, &mut bytes[..48], BlockScales::Floats(&mut floats)).unwrap();
            affine::encoder(32, 3).quantize(&x, &mut bytes[..36], BlockScales::Biased(&mut floats, &mut more)).unwrap();
            int8::encoder(32).quantize(&x, int8::as_bytes(&mut [0; 96]), BlockScales::Floats(&mut floats)).unwrap();
            ternary::encoder(32).quantize(&x, &mut bytes[..24], BlockScales::Floats(&mut floats)).unwrap();
            binary::encoder(32).quantize(&x, &mut bytes[..12], BlockScales::Floats(&mut floats)).unwrap();
            dynamic8::encoder(32).quantize(&x, &mut bytes, BlockScales::Floats(&mut floats)).unwrap();
            mx::mxfp4(ScaleRule::Ceil).quantize(&x, &mut bytes[..48], BlockScales::Bytes(&mut [0; 3])).unwrap();
            mx::mxfp8(ScaleRule::Round).quantize(&x, &mut bytes, BlockScales::Bytes(&mut [0; 3])).unwrap();
            nvfp4::encoder(Some(4.0)).quantize(&x, &mut bytes[..48], BlockScales::Bytes(&mut [0; 6])).unwrap();
            half_floats::to_f16(&x, &mut [f16::ZERO; 96]).unwrap();
            half_floats::to_bf16(&x, &mut [bf16::ZERO; 96]).unwrap();
        });
    }
    if cfg!(miri) {
        // Minutes there; the pool and its outputs have small tests of their own.
        return;
    }
    let x = vec![1.0; (1 << 14) + 40];
    let mut codes = vec![0; x.len().div_ceil(2)];
    let mut absmax = vec![0.0; x.len().div_ceil(64)];
    threads::with_count(2, || nf4::encoder(64).quantize(&x, &mut codes, BlockScales::Floats(&mut absmax))).unwrap();
    assert!(absmax.iter().all(|&most| most.to_bits() == 1f32.to_bits()));
}

#[test]
fn a_program_of_rows() {
    let each = Source { kind: Element::F32, map: Map { columns: Columns::All, divisor: 1, modulus: 3 } };
    let half = Source { kind: Element::Bf16, ..each };
    let steps = [
        Step { op: Op::Add, operands: [0, 1, 0], precision: Precision::Single },
        Step { op: Op::Exp, operands: [2, 0, 0], precision: Precision::Single },
        Step { op: Op::Sum, operands: [3, 0, 0], precision: Precision::Single },
        Step { op: Op::Divide, operands: [3, 4, 0], precision: Precision::Single },
    ];
    let program = Program::new([3, 7], vec![each, half], &[], &steps, &[(5, Element::F16)]).expect("a program");
    let (x, y) = (normal(1, 21), normal(2, 21).into_iter().map(bf16::from_f32).collect::<Vec<_>>());
    let mut out = vec![f16::ZERO; 21];
    program.run(&[Data::F32(&x), Data::Bf16(&y)], vec![DataMut::F16(&mut out)]).expect("it runs");
    for row in out.chunks(7) {
        assert!((row.iter().map(|x| x.to_f32()).sum::<f32>() - 1.0).abs() < 1e-2, "{row:?}");
    }
}

//! Which engine takes a product on machines that are described.

use std::fmt::Write;

use expect_test::{Expect, expect};
use tacit_kernels::{
    Codes, Isa, Matrix, Order, Orientation, Scales,
    choice::{self, Candidate},
    machine::{ByteSums, Machine},
    nf4,
};

/// Which engine takes each kind of product of a matrix of 4096 rows and columns on a machine.
fn check(machine: &Machine, expected: &Expect) {
    const SIDE: usize = 4096;
    const ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 512];
    let (bytes, scales) = (vec![0; SIDE * SIDE], vec![0.0; SIDE * SIDE / 64]);
    let signed = vec![0; SIDE * SIDE];
    let nf4 = Codes::Table { bytes: &bytes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
    let formats = [
        ("nf4", nf4, 64),
        ("affine4", Codes::Unsigned { bytes: &bytes, bits: 4 }, 64),
        ("affine3", Codes::Unsigned { bytes: &bytes, bits: 3 }, 64),
        ("int8", Codes::Signed { codes: &signed }, SIDE),
    ];
    let x = vec![0.0; 512 * SIDE];
    let mut text = String::new();
    for (name, codes, block) in formats {
        let biases = matches!(codes, Codes::Unsigned { .. }).then_some(Scales::F32(&scales));
        let matrix = &Matrix { n: SIDE, k: SIDE, codes, scales: Scales::F32(&scales), biases, block };
        for (orientation, way) in [(Orientation::Transposed, "x W^T"), (Orientation::Plain, "x W")] {
            let chosen = ROWS.map(|m| first(&choice::of_matmul(machine, &x[..m * SIDE], m, matrix, orientation)));
            writeln!(text, "{name} {way}: {}", runs(&ROWS, &chosen)).unwrap();
        }
        if !choice::of_int8_matmul(machine, 1, matrix).is_empty() {
            let chosen = ROWS.map(|m| first(&choice::of_int8_matmul(machine, m, matrix)));
            writeln!(text, "{name} in 8 bits: {}", runs(&ROWS, &chosen)).unwrap();
        }
    }
    expected.assert_eq(&text);
}

/// The engine that takes the product, and not one that hands it on.
fn first(candidates: &[Candidate]) -> &'static str {
    candidates.first().and_then(|candidate| candidate.names.last()).expect("an engine takes every product")
}

/// The engines in turn, each with the first number of rows that it takes.
fn runs(rows: &[usize], chosen: &[&str]) -> String {
    let starts = (0..rows.len()).filter(|&i| i == 0 || chosen[i] != chosen[i - 1]);
    starts.map(|i| format!("from {} {}", rows[i], chosen[i])).collect::<Vec<_>>().join(", ")
}

#[cfg(target_arch = "x86_64")]
#[test]
fn five_machines_choose_by_what_they_have() {
    check(
        &Machine::new(Isa::Amx, ByteSums::Fours, 2 << 20),
        &expect![[r#"
            nf4 x W^T: from 1 gemv, from 16 fused packed, from 32 tiles of codes, from 512 split packed
            nf4 x W: from 1 gemv, from 4 fused packed, from 64 split packed
            nf4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 tiles of bytes
            affine4 x W^T: from 1 gemv, from 16 fused packed, from 32 tiles of codes, from 512 split packed
            affine4 x W: from 1 gemv, from 2 fused packed, from 64 split packed
            affine4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 tiles of bytes
            affine3 x W^T: from 1 gemv, from 64 split packed
            affine3 x W: from 1 gemv, from 4 fused packed, from 64 split packed
            int8 x W^T: from 1 gemv, from 16 tiles of codes
            int8 x W: from 1 gemv, from 4 fused packed, from 64 split packed
            int8 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 tiles of bytes
        "#]],
    );
    check(
        &Machine::new(Isa::Avx512, ByteSums::Fours, 1 << 20),
        &expect![[r#"
            nf4 x W^T: from 1 gemv, from 16 fused packed
            nf4 x W: from 1 gemv, from 4 fused packed
            nf4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 packed bytes
            affine4 x W^T: from 1 gemv, from 16 fused packed
            affine4 x W: from 1 gemv, from 2 fused packed
            affine4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 packed bytes
            affine3 x W^T: from 1 gemv, from 64 fused packed
            affine3 x W: from 1 gemv, from 2 fused packed
            int8 x W^T: from 1 gemv, from 16 fused packed
            int8 x W: from 1 gemv, from 4 fused packed
            int8 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes, from 32 packed bytes
        "#]],
    );
    check(
        &Machine::new(Isa::Avx2, ByteSums::Pairs, 256 << 10),
        &expect![[r#"
            nf4 x W^T: from 1 gemv, from 16 fused packed
            nf4 x W: from 1 gemv, from 4 fused packed
            nf4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes
            affine4 x W^T: from 1 gemv, from 16 fused packed
            affine4 x W: from 1 gemv, from 2 fused packed
            affine4 in 8 bits: from 1 rows of bytes, from 2 lanes of bytes
            affine3 x W^T: from 1 gemv, from 32 fused packed
            affine3 x W: from 1 gemv, from 2 fused packed
            int8 x W^T: from 1 gemv, from 16 fused packed
            int8 x W: from 1 gemv, from 4 fused packed
            int8 in 8 bits: from 1 rows of bytes, from 4 lanes of bytes
        "#]],
    );
    check(
        &Machine::new(Isa::Neon, ByteSums::Pairs, 1 << 20),
        &expect![[r#"
            nf4 x W^T: from 1 gemv, from 16 fused packed
            nf4 x W: from 1 gemv, from 4 fused packed
            nf4 in 8 bits: from 1 lanes of bytes
            affine4 x W^T: from 1 gemv, from 16 fused packed
            affine4 x W: from 1 gemv, from 4 fused packed
            affine4 in 8 bits: from 1 lanes of bytes
            affine3 x W^T: from 1 gemv, from 32 fused packed
            affine3 x W: from 1 gemv, from 2 fused packed
            int8 x W^T: from 1 gemv, from 16 fused packed
            int8 x W: from 1 gemv, from 4 fused packed
            int8 in 8 bits: from 1 lanes of bytes
        "#]],
    );
    check(
        &Machine::new(Isa::Scalar, ByteSums::Pairs, 256 << 10),
        &expect![[r#"
            nf4 x W^T: from 1 gemv, from 16 fused packed
            nf4 x W: from 1 fused packed
            nf4 in 8 bits: from 1 integers
            affine4 x W^T: from 1 gemv, from 16 fused packed
            affine4 x W: from 1 fused packed
            affine4 in 8 bits: from 1 integers
            affine3 x W^T: from 1 gemv, from 16 fused packed
            affine3 x W: from 1 fused packed
            int8 x W^T: from 1 fused packed
            int8 x W: from 1 fused packed
            int8 in 8 bits: from 1 integers
        "#]],
    );
}

#[cfg(target_arch = "aarch64")]
#[test]
fn arm_machines_choose_by_what_they_have_for_bytes() {
    check(
        &Machine::new(Isa::Neon, ByteSums::Fours, 1 << 20),
        &expect![[r#"
            nf4 x W^T: from 1 gemv, from 16 fused packed
            nf4 x W: from 1 gemv, from 4 fused packed
            nf4 in 8 bits: from 1 lanes of bytes
            affine4 x W^T: from 1 gemv, from 16 fused packed
            affine4 x W: from 1 gemv, from 4 fused packed
            affine4 in 8 bits: from 1 lanes of bytes
            affine3 x W^T: from 1 gemv, from 32 fused packed
            affine3 x W: from 1 gemv, from 2 fused packed
            int8 x W^T: from 1 gemv, from 16 fused packed
            int8 x W: from 1 gemv, from 4 fused packed
            int8 in 8 bits: from 1 lanes of bytes
        "#]],
    );
    check(
        &Machine::new(Isa::Neon, ByteSums::Squares, 1 << 20),
        &expect![[r#"
            nf4 x W^T: from 1 gemv, from 16 fused packed
            nf4 x W: from 1 gemv, from 4 fused packed
            nf4 in 8 bits: from 1 squares of bytes
            affine4 x W^T: from 1 gemv, from 16 fused packed
            affine4 x W: from 1 gemv, from 4 fused packed
            affine4 in 8 bits: from 1 squares of bytes
            affine3 x W^T: from 1 gemv, from 32 fused packed
            affine3 x W: from 1 gemv, from 2 fused packed
            int8 x W^T: from 1 gemv, from 16 fused packed
            int8 x W: from 1 gemv, from 4 fused packed
            int8 in 8 bits: from 1 squares of bytes
        "#]],
    );
}

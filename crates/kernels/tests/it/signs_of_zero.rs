//! The sign of zero in programs.

use half::f16;
use tacit_kernels::program::{Columns, Data, DataMut, Kind, Map, Op, Precision, Program, Source, Step};

fn tanh(kind: Kind, precision: Precision, x: Data<'_>) -> f32 {
    let source = Source { kind, map: Map { columns: Columns::All, divisor: 1, modulus: 1 } };
    let step = Step { op: Op::Tanh, operands: [0; 3], precision };
    let program = Program::new([1, 1], vec![source], &[], &[step], &[(1, Kind::F32)]).expect("a program");
    let mut y = [7.0];
    program.run(&[x], vec![DataMut::F32(&mut y)]).expect("it fits");
    y[0]
}

#[test]
fn the_sign_of_zero_stays() {
    // As MLX (`std::tanh`), and as this crate itself in half precision.
    assert_eq!(tanh(Kind::F16, Precision::F16, Data::F16(&[f16::NEG_ZERO])).to_bits(), (-0.0_f32).to_bits());
    assert_eq!(tanh(Kind::F32, Precision::Single, Data::F32(&[-0.0])).to_bits(), (-0.0_f32).to_bits());
}

//! Bytes in and out, in the dtypes that are described.

use expect_test::expect;
use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, Dtype};
use tacit::{Aval, Error, Policy};
use tacit_executable::{Executable, Mode};

use crate::types::{Left, aval, error, message, without_handlers};

fn bf16(shape: &[i32]) -> Aval {
    Aval::new(shape, Dtype::Bfloat16)
}

/// 1, 2, 3 and 4 as bf16.
const COUNT: [u8; 8] = [0x80, 0x3f, 0x00, 0x40, 0x40, 0x40, 0x80, 0x40];

/// `state + x` in bf16, fed to `state`; its transpose, and whether it is above 2.
fn summed(mode: Mode) -> Executable<'static> {
    Executable::builder("summed")
        .input("x", bf16(&[2, 2]))
        .resident("state", bf16(&[2, 2]))
        .output("state")
        .output("transposed")
        .output("above")
        .feed("state", "state")
        .mode(mode)
        .build(|given| {
            let state = given.get("state")?.add(given.get("x")?)?;
            let above = state.gt(Array::from_f32(2.0))?;
            Ok(vec![state.clone(), state.t(), above])
        })
        .expect("builds")
}

const MODES: [Mode; 3] = [Mode::Eager, Mode::Lazy, Mode::Compiled];

#[test]
fn bytes_go_in_and_come_out_in_their_own_dtypes() {
    for mode in MODES {
        let mut summed = summed(mode);
        summed.set_input_bytes("state", &[0; 8]).expect("fits");
        let x = summed.array_from_bytes("x", &COUNT).expect("fits");
        assert_eq!(Aval::from(&x), bf16(&[2, 2]));
        let outputs = summed.run(&[("x", &x)]).expect("runs");
        // The transpose of 1 2 / 3 4 is 1 3 / 2 4, row by row.
        assert_eq!(outputs.bytes("transposed").expect("is read"), [0x80, 0x3f, 0x40, 0x40, 0x00, 0x40, 0x80, 0x40]);
        assert_eq!(outputs.bytes("above").expect("is read"), [0, 0, 1, 1]);
        assert_eq!(summed.resident_bytes("state").expect("is read"), COUNT, "{mode:?}");
        assert!(outputs.bytes("state").is_err(), "it is fed");
    }
}

#[test]
fn a_positional_run_writes_into_the_hosts_own_memory() {
    for mode in MODES {
        let mut summed = summed(mode);
        summed.set_input_bytes("state", &[0; 8]).expect("fits");
        let x = summed.array_from_bytes("x", &COUNT).expect("fits");
        let (mut transposed, mut above) = ([0u8; 8], [7u8; 4]);
        for _ in 0..2 {
            summed.run_into(&[&x], &mut [&mut transposed, &mut above]).expect("runs");
        }
        // 2 6 / 4 8.
        assert_eq!(transposed, [0x00, 0x40, 0xc0, 0x40, 0x80, 0x40, 0x00, 0x41], "{mode:?}");
        assert_eq!(above, [0, 1, 1, 1]);
    }
}

#[test]
fn memory_that_does_not_fit_is_left_and_nothing_is_fed() {
    for mode in MODES {
        let mut summed = summed(mode);
        summed.set_input_bytes("state", &COUNT).expect("fits");
        let x = summed.array_from_bytes("x", &COUNT).expect("fits");
        let (mut transposed, mut above) = ([9u8; 8], [9u8; 3]);
        let short = error(summed.run_into(&[&x], &mut [&mut transposed, &mut above]));
        let missing = error(summed.run_into(&[&x], &mut [&mut transposed]));
        if mode == Mode::Compiled {
            expect![[r#"
                output above is bool[2,2], which has 4 bytes, and there is memory for 3
                help: `outputs` tells the aval of each output"#]]
            .assert_eq(&message(&short));
            expect![[r#"
                the run returns 2 arrays and there is memory for 1
                help: give memory for each of these, in order: transposed, above"#]]
            .assert_eq(&message(&missing));
        }
        assert_eq!((transposed, above), ([9; 8], [9; 3]));
        assert_eq!(summed.resident_bytes("state").expect("is read"), COUNT, "{mode:?}");
    }
}

#[test]
fn an_implicit_output_is_written_as_the_array_it_stands_for_if_the_policy_allows() {
    let _scopes = without_handlers();
    let mut same = Executable::builder("same")
        .parameter("w", aval(&[2]))
        .output("w")
        .mode(Mode::Lazy)
        .build(|given| Ok(vec![given.get("w")?.clone()]))
        .expect("builds");
    same.set_parameter("w", Left::of(&Array::from_slice(&[1f32, 2.0], &[2]))).expect("fits");
    let mut memory = [0u8; 8];
    {
        let _deny = Policy::Deny.scope();
        assert!(matches!(same.run_into(&[], &mut [&mut memory]), Err(Error::MaterializationDenied { .. })));
    }
    same.run_into(&[], &mut [&mut memory]).expect("runs");
    assert_eq!(memory, [1f32, 2.0].map(f32::to_ne_bytes).concat()[..]);
}

#[test]
fn bytes_of_nothing_described() {
    let summed = summed(Mode::Lazy);
    expect![[r#"
        summed describes no y
        help: name one of state, x"#]]
    .assert_eq(&message(&error(summed.array_from_bytes("y", &COUNT))));
    expect![[r#"
        input x is bf16[2,2], which has 8 bytes, and 7 are given
        help: give the elements in their own dtype, without a header"#]]
    .assert_eq(&message(&error(summed.array_from_bytes("x", &COUNT[..7]))));
}

#[test]
fn more_bytes_than_an_axis_has_make_an_array() {
    let table = Aval::new(&[1 << 16, 1 << 13], Dtype::Float32);
    let executable = Executable::builder("large")
        .parameter("table", table.clone())
        .output("table")
        .mode(Mode::Lazy)
        .build(|given| Ok(vec![given.get("table")?.clone()]))
        .expect("builds");
    let mut bytes = vec![0; 1 << 31];
    bytes[(1 << 31) - 4..].copy_from_slice(&1f32.to_ne_bytes());
    let array = executable.array_from_bytes("table", &bytes).expect("fits");
    assert_eq!(Aval::from(&array), table);
    assert_eq!(array.index((-1, -1)).item_exact::<f32>().to_bits(), 1f32.to_bits());
}

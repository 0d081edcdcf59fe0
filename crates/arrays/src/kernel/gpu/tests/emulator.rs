//! The CPU that plays a GPU: what would be wrong on a GPU fails on it.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;

use crate::kernel::gpu::checks::{bytes, numbers};
use crate::kernel::gpu::emulator::{Emulator, Job, Program};
use crate::kernel::gpu::source::{Parts, Target};

/// Each thread gives its number to the one at the other end.
fn exchange(barrier: &str) -> Parts {
    Parts {
        label: "exchange".to_owned(),
        common: Vec::new(),
        description: String::new(),
        body: format!(
            "  TACIT_GROUP_ARRAY(float, numbers, 64);\n  numbers[at.id] = x[at.id];\n  {barrier}\n  out[at.id] = numbers[63 - \
             at.id];\n"
        ),
        inputs: vec!["x".to_owned()],
        outputs: vec!["out".to_owned()],
        sizes: Vec::new(),
        groups: [1, 1, 1],
        threads: 64,
        memory: 0,
        target: Target::Host,
    }
}

/// What the CPU that plays a GPU makes of a text, in four orders of its threads.
fn in_orders(parts: Parts) -> Option<Vec<Result<bool, String>>> {
    in_orders_of(parts, Program::compile)
}

fn in_orders_of(parts: Parts, compile: fn(&Program) -> Option<Emulator>) -> Option<Vec<Result<bool, String>>> {
    let mut program = Program::default();
    let x = Array::from_slice(&(0..64_u8).map(f32::from).collect::<Vec<_>>(), &[64]);
    let launch = program.add(parts, &[Aval::from(&x)], &[Dtype::Float32]);
    let emulator = compile(&program)?;
    let run = |order| {
        let job = Job {
            launch: launch.clone(),
            order,
            at_end: false,
            flushes: false,
            offsets: Vec::new(),
            inputs: vec![bytes(&x)],
            lengths: vec![256],
        };
        let found = numbers(&emulator.run(&[job])?[0][0], Dtype::Float32);
        Ok(found
            .iter()
            .rev()
            .zip(bytes(&x).as_chunks().0)
            .all(|(a, &b)| a.to_bits() == f32::from_le_bytes(b).to_bits()))
    };
    Some((0..4).map(run).collect())
}

#[test]
fn a_barrier_that_is_missing_shows() {
    let Some(whole) = in_orders(exchange("TACIT_BARRIER();")) else { return };
    assert_eq!(whole, [const { Ok(true) }; 4]);
    assert_eq!(in_orders(exchange("")).expect("compiles"), [const { Ok(false) }; 4]);
    for one_that_waits in ["if (at.id != 5) TACIT_BARRIER();", "if (at.id == 5) tacit::shuffle_xor(1.0f, 1);"] {
        for result in in_orders(exchange(one_that_waits)).expect("compiles") {
            let error = result.expect_err("some wait for others");
            assert!(error.contains("some threads wait at a barrier that others do not reach"), "{error}");
        }
    }
}

/// The threads that show each other numbers are those of one warp.
fn within_warps(between: &str) -> Parts {
    let mut parts = exchange(between);
    parts.body = parts.body.replace("numbers[63 - at.id]", "numbers[at.id / 32 * 32 + 31 - at.id % 32]");
    parts
}

#[test]
fn thread_sanitizer_sees_a_barrier_that_is_missing_in_every_order() {
    let watched = |parts| in_orders_of(parts, Program::compile_watched);
    let Some(whole) = watched(exchange("TACIT_BARRIER();")) else { return };
    assert_eq!(whole, [const { Ok(true) }; 4]);
    // Of warps the numbers are others than the test expects.
    assert_eq!(watched(within_warps("TACIT_WARP_BARRIER();")).expect("compiles"), [const { Ok(false) }; 4]);
    // What lanes show each other orders nothing else, though they wait for it.
    for parts in [exchange(""), exchange("TACIT_WARP_BARRIER();"), within_warps("tacit::shuffle_xor(1.0f, 1);")] {
        let body = parts.body.clone();
        for result in watched(parts).expect("compiles") {
            let error = result.expect_err(&body);
            assert!(error.contains("ThreadSanitizer: data race"), "{body}: {error}");
        }
    }
}

#[test]
fn what_is_beyond_an_array_cannot_be_read() {
    let mut parts = exchange("TACIT_BARRIER();");
    parts.body = parts.body.replace("x[at.id]", "x[at.id + 1]");
    let mut program = Program::default();
    let x = Array::from_slice(&[1.0_f32; 64], &[64]);
    let launch = program.add(parts, &[Aval::from(&x)], &[Dtype::Float32]);
    let job = Job {
        launch,
        order: 0,
        at_end: true,
        flushes: false,
        offsets: Vec::new(),
        inputs: vec![bytes(&x)],
        lengths: vec![256],
    };
    let Some(emulator) = program.compile() else { return };
    assert!(emulator.run(&[job]).is_err());
}

#[test]
fn a_grid_has_no_more_groups_than_cuda_starts() {
    let many = Parts { groups: [1, 65536, 1], ..exchange("TACIT_BARRIER();") };
    for result in in_orders(many).into_iter().flatten() {
        let error = result.expect_err("is too long");
        assert!(error.contains("more groups than CUDA has along an axis but the first"), "{error}");
    }
}

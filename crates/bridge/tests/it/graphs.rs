//! Questions about recorded graphs.

use std::slice::from_ref;

use mlx_rs::{Array, ops};
use tacit_bridge::{BridgeError, Scope, Tape, array_id, broadcast_source, check_depth, constants, frontier, is_traced};

use crate::arrays::{matrix, names, numbers, placeholders, vector};
use crate::growth::assert_linear;

#[test]
fn what_depends_on_a_placeholder_is_traced() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let real = vector(&[1.0, 2.0]);
    assert!(is_traced(&x) && is_traced(&real.add(&x).expect("builds").exp().expect("builds")));
    assert!(!is_traced(&real) && !is_traced(&real.exp().expect("builds")));
    let evaluated = real.exp().expect("builds");
    evaluated.eval().expect("evaluates");
    assert!(!is_traced(&evaluated) && !is_traced(&ops::zeros::<f32>(&[0]).expect("builds")));
}

#[test]
fn a_long_chain_is_no_matter() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[1]]);
    let one = vector(&[1.0]);
    let far = (0..100_000).try_fold(x, |sum, _| sum.add(&one)).expect("builds");
    assert!(is_traced(&far));
    assert!(constants(&[far], &[]).expect("memory").is_empty());
}

#[test]
fn constants_are_the_leaves_with_several_elements_that_are_no_input() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let (weight, bias, input) = (matrix(2, 2), vector(&[1.0, 2.0]), vector(&[3.0, 4.0]));
    let product = weight.exp().expect("builds").matmul(&x).expect("builds");
    let sum = product.add(&bias).expect("builds").add(&input).expect("builds");
    let out = sum.multiply(&bias).expect("builds").multiply(Array::from_f32(2.0)).expect("builds");
    let mut found: Vec<_> = constants(&[out, product], &[x, input]).expect("memory").iter().map(array_id).collect();
    let mut expected = [array_id(&weight), array_id(&bias)];
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn the_frontier_is_what_goes_into_the_recorded_nodes_and_is_no_input() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let (held, bias) = (matrix(2, 2).exp().expect("builds"), vector(&[1.0, 2.0]));
    let out = held.matmul(&x).expect("builds").add(&bias).expect("builds").multiply(&bias).expect("builds");
    let alone = bias.negative().expect("builds");
    let mut found: Vec<_> =
        frontier(&[out, alone.clone(), x.clone()], &[x]).expect("memory").iter().map(array_id).collect();
    let mut expected = [array_id(&held), array_id(&bias), array_id(&alone)];
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn the_source_of_a_broadcast_is_what_the_caller_wrote() {
    let scalar = Array::from_f32(2.0);
    let twice = ops::broadcast_to(ops::broadcast_to(&scalar, &[3]).expect("builds"), &[2, 3]).expect("builds");
    assert_eq!(array_id(&broadcast_source(&twice).expect("memory")), array_id(&scalar));
    // No broadcast made these.
    for array in [scalar.exp().expect("builds"), ops::zeros::<f32>(&[2, 3]).expect("builds").abs().expect("builds")] {
        assert_eq!(array_id(&broadcast_source(&array).expect("memory")), array_id(&array));
    }
}

#[test]
fn asking_after_each_op_whether_it_is_traced_takes_time_by_the_ops() {
    for traced in [true, false] {
        assert_linear(1000, |count| {
            let scope = Scope::new().expect("memory");
            let [x] = placeholders(&scope, [&[1]]);
            let mut sum = if traced { x } else { vector(&[0.0]) };
            let one = vector(&[1.0]);
            for _ in 0..count {
                sum = sum.add(&one).expect("builds");
                assert_eq!(is_traced(&sum), traced);
            }
        });
    }
}

#[test]
fn what_is_rewired_is_asked_for_anew() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    let y = x.negative().expect("builds");
    assert!(is_traced(&y));
    let mut tape = Tape::walk(from_ref(&y), &[x], &[]).expect("memory");
    let value = tape.keep(vector(&[1.0, 2.0]));
    tape.plan(0, 0, value);
    tape.rewire().expect("rewires");
    assert!(!is_traced(&y));
}

#[test]
fn the_history_of_what_is_captured_is_walked_once() {
    assert_linear(2000, |count| {
        let mut state = vector(&[0.0]);
        for _ in 0..count {
            let scope = Scope::new().expect("memory");
            let [x] = placeholders(&scope, [&[1]]);
            let product = x.negative().expect("builds");
            let next = state.add(&product).expect("builds");
            let mut tape = Tape::walk_in(&scope, from_ref(&next), &[x], &[]).expect("memory");
            assert_eq!(names(&tape), ["Negative", "Add"]);
            let value = tape.keep(vector(&[-1.0]));
            tape.plan(0, 0, value);
            tape.rewire().expect("rewires");
            state = next;
        }
        assert_eq!(numbers(&state), [count as f32]);
    });
}

#[test]
fn a_chain_that_is_too_long_for_the_stack_is_refused() {
    let deep = |count: usize| (0..count).try_fold(vector(&[1.0]), |x, _| x.exp()).expect("builds");
    assert!(check_depth(&[deep(999)], &[]).is_ok());
    let on_stack = |bytes: usize, ops: usize| {
        let thread = std::thread::Builder::new().stack_size(bytes);
        thread.spawn(move || check_depth(&[deep(ops)], &[])).expect("a thread").join().expect("it does not panic")
    };
    assert!(on_stack(64 << 20, 10_000).is_ok());
    let Err(BridgeError::Deep { depth, room }) = on_stack(1 << 20, 100_000) else { panic!("it is refused") };
    assert_eq!(depth, 100_001);
    assert!((500..8000).contains(&room), "{room}");
    // What stands behind the inputs MLX does not walk.
    let behind = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        let input = deep(10_000);
        let output = input.exp().expect("builds");
        (check_depth(from_ref(&output), &[]).is_err(), check_depth(&[output], &[input]).is_ok())
    });
    assert_eq!(behind.expect("a thread").join().expect("it does not panic"), (true, true));
}

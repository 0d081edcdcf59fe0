//! Plans that write into the memory of what they are given, where nobody reads that any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Device, Stream, memory, ops, with_stream};
use tacit_bridge::{Aval, PlanBuilder};

use crate::arrays::{numbers, vector};
use crate::failed_kernels::{Encode, assert_poisoned, bad, encode_by};
use crate::planned::Next;
use crate::turns;

/// `x + 1` by a plan, which may write it into the memory of `x`.
fn updated(x: &Array) -> Array {
    let mut plan = PlanBuilder::default();
    let input = plan.input(Aval::from(x));
    let output = plan.update(Arc::new(Next::default()), input, &[]);
    plan.finish(&[output]).expect("a plan").apply(std::slice::from_ref(x)).expect("a node").swap_remove(0)
}

/// What keeps a stream from going on until it is dropped.
#[derive(Default)]
struct Gate(Arc<AtomicBool>);

impl Gate {
    /// The same numbers, begun, which are there once the gate is open.
    fn behind(&self, x: &Array) -> Array {
        let [numbers, _] = encode_by(Encode { held: Some(Arc::clone(&self.0)), ..Encode::default() }, x);
        async_eval([&numbers]).expect("begins");
        numbers
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Elements of an array that is large beside those of other tests, and its bytes.
const COUNT: i32 = 1 << 18;
const BYTES: usize = 4 << 18;

/// Ones, as many.
fn ones() -> Array {
    ops::ones::<f32>(&[COUNT]).expect("builds")
}

/// Begins [`updated`] of what the caller gives away, and says whether it took new memory.
fn begun(x: Array) -> (Array, bool) {
    let y = updated(&x);
    drop(x);
    let before = memory::active_memory().expect("memory");
    async_eval([&y]).expect("begins");
    let more = memory::active_memory().expect("memory").saturating_sub(before);
    (y, more >= BYTES / 2)
}

/// Different numbers that follow each other.
fn distinct(x: &Array) -> Vec<f32> {
    let mut all = numbers(x);
    all.dedup();
    all
}

#[test]
fn a_plan_writes_into_an_input_that_nobody_holds_and_into_no_other() {
    let _turn = turns::of_memory();
    let place = |x: &Array| x.as_slice::<f32>().as_ptr();
    let x = vector(&[1.0, 2.0]);
    let y = updated(&x);
    assert_eq!((numbers(&y), numbers(&x)), (vec![2.0, 3.0], vec![1.0, 2.0]));
    let given = place(&y);
    let z = updated(&y);
    drop(y);
    assert_eq!((numbers(&z), place(&z)), (vec![3.0, 4.0], given));
    // A small part of a large buffer would keep all of that.
    let large = ops::ones::<f32>(&[1 << 20]).expect("ones");
    large.eval().expect("an eval");
    let part = large.try_index(..2).expect("a slice");
    let given = place(&part);
    drop(large);
    let z = updated(&part);
    drop(part);
    assert_eq!(numbers(&z), [2.0, 2.0]);
    assert_ne!(place(&z), given);
}

/// What somebody holds is an array, a part of one, or a node that MLX has begun or not.
#[test]
fn plans_that_are_begun_behind_each_other_take_memory_for_what_somebody_holds_alone() {
    let _turn = turns::of_memory();
    let gate = Gate::default();
    let first = gate.behind(&ones());
    let (second, of_first) = begun(first.clone());
    let (third, of_second) = begun(second);
    let (fourth, of_third) = begun(third);
    let (fifth, of_fourth) = begun(fourth.clone());
    let part = fifth.try_index(..2).expect("a slice");
    async_eval([&part]).expect("begins");
    let (sixth, of_fifth) = begun(fifth);
    let sum = sixth.add(&sixth).expect("builds");
    async_eval([&sum]).expect("begins");
    let (seventh, of_sixth) = begun(sixth);
    let negative = seventh.negative().expect("builds");
    let (eighth, of_seventh) = begun(seventh);
    let (ninth, of_eighth) = begun(eighth);
    drop(gate);
    let took = [of_first, of_second, of_third, of_fourth, of_fifth, of_sixth, of_seventh, of_eighth];
    assert_eq!(took, [true, false, false, true, true, true, true, false]);
    let found = [&first, &fourth, &part, &sum, &negative, &ninth].map(distinct);
    assert_eq!(found, [[1.0], [4.0], [5.0], [12.0], [-7.0], [9.0]]);
}

#[test]
fn plans_of_one_stream_do_not_write_where_another_stream_reads() {
    let _turn = turns::of_memory();
    let other = Stream::new_with_device(&Device::cpu());
    let (gate, of_other) = (Gate::default(), Gate::default());
    let late = with_stream(&other, || of_other.behind(&ones()));
    let first = updated(&gate.behind(&ones()));
    async_eval([&first]).expect("begins");
    let sum = with_stream(&other, || first.add(&late)).expect("builds");
    async_eval([&sum]).expect("begins");
    let (second, of_first) = begun(first);
    // A plan of the other stream, which is not behind those of this one.
    let (third, of_second) = with_stream(&other, || begun(second));
    drop(gate);
    // Behind the first two, which are there then; the other stream has read nothing yet.
    assert_eq!(numbers(&vector(&[3.0]).square().expect("builds")), [9.0]);
    let (fourth, _) = begun(third.clone());
    drop(of_other);
    assert_eq!([of_first, of_second], [true, true]);
    assert_eq!([&sum, &third, &fourth].map(distinct), [[3.0], [4.0], [5.0]]);
}

#[test]
fn what_a_failure_left_poisons_the_plans_behind_it_and_nothing_else() {
    let gate = Gate::default();
    let mut state = gate.behind(&bad());
    let mut right = vector(&[1.0, 2.0]);
    for _ in 0..3 {
        for state in [&mut state, &mut right] {
            let next = updated(state);
            *state = next;
            async_eval([&*state]).expect("begins");
        }
    }
    drop(gate);
    assert_poisoned(&state);
    assert_eq!(numbers(&right), [4.0, 5.0]);
    assert_eq!(numbers(&updated(&right)), [5.0, 6.0]);
}

//! What was computed from the results of a failed kernel is an error wherever it is read.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use mlx_rs::error::Exception;
use mlx_rs::transforms::{async_eval, eval};
use mlx_rs::{Array, Device, Dtype, Stream, ops, with_stream};
use tacit_bridge::kernel::{Input, Kernel, KernelError, Output, apply, check_intact, evals_noted};
use tacit_bridge::{Aval, BoxError, recover};

use crate::arrays::{numbers, vector};
use crate::turns;

/// Numbers to themselves and to bytes; it refuses NaN.
#[derive(Default)]
pub(crate) struct Encode {
    /// It fails only after this is set.
    pub(crate) held: Option<Arc<AtomicBool>>,
    /// Where it wrote its numbers.
    pub(crate) place: Arc<AtomicUsize>,
}

impl Kernel for Encode {
    fn name(&self) -> &'static str {
        "encode"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![inputs[0].clone(), Aval { dtype: Dtype::Uint8, ..inputs[0].clone() }])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        while self.held.as_ref().is_some_and(|held| !held.load(Ordering::Acquire)) {
            thread::sleep(Duration::from_millis(1));
        }
        let x = inputs[0].elements::<f32>()?;
        if let Some(index) = x.iter().position(|x| x.is_nan()) {
            return Err(format!("element {index} is NaN").into());
        }
        let [numbers, bytes] = outputs else { return Err("two outputs".into()) };
        numbers.elements::<f32>()?.copy_from_slice(x);
        self.place.store(numbers.elements::<f32>()?.as_ptr().addr(), Ordering::Release);
        bytes.elements::<u8>()?.iter_mut().zip(x).for_each(|(byte, &x)| *byte = x as u8);
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(vec![inputs[0].clone(), inputs[0].as_dtype(Dtype::Uint8)?])
    }
}

pub(crate) fn encode_by(kernel: Encode, x: &Array) -> [Array; 2] {
    apply(Arc::new(kernel), std::slice::from_ref(x)).expect("fits").try_into().expect("two results")
}

fn encode(x: &Array) -> [Array; 2] {
    encode_by(Encode::default(), x)
}

pub(crate) fn bad() -> Array {
    vector(&[1.0, f32::NAN])
}

pub(crate) const FAILED: &str = "kernel encode failed: element 1 is NaN";

pub(crate) fn failure(error: &Exception) -> String {
    let error = recover(error.what()).unwrap_or_else(|| panic!("{error} is not typed"));
    error.downcast_ref::<KernelError>().unwrap_or_else(|| panic!("{error} is another error")).to_string()
}

/// Every way to read the array fails, and fails again.
pub(crate) fn assert_poisoned(array: &Array) {
    for _ in 0..2 {
        let later = format!(
            "{FAILED}; this array comes of what it left\n\
             help: see to the operands of the kernel, and build the array again"
        );
        assert_eq!(failure(&array.eval().expect_err("it is poisoned")), later);
        assert_eq!(failure(&eval([array]).expect_err("it is poisoned")), later);
        assert_eq!(failure(&async_eval([array]).expect_err("it is poisoned")), later);
        assert_eq!(check_intact(array).expect_err("it is poisoned").to_string(), later);
        assert!(array.try_as_slice::<f32>().is_err() && array.try_as_slice::<u8>().is_err());
        let first = array.flatten(None, None).and_then(|flat| flat.take_axis(Array::from_int(0), 0)).expect("builds");
        assert!(first.try_item_cast::<f32>().is_err());
        assert!(ops::zeros_like(array).expect("builds").eval().is_ok(), "only its shape is asked for");
        assert!(check_intact(&array.reshape(&[-1]).expect("builds")).is_err());
    }
}

#[test]
fn after_a_failed_eval_every_read_is_an_error_until_it_is_built_again() {
    let [x, bytes] = encode(&bad());
    let more = bytes.add(Array::from_slice(&[1u8], &[1])).expect("builds");
    let other = vector(&[1.0]).add(Array::from_f32(1.0)).expect("builds");
    assert_eq!(failure(&eval([&other, &more]).expect_err("it fails")), FAILED);
    [&x, &bytes, &more].into_iter().for_each(assert_poisoned);
    assert_eq!(numbers(&other), [2.0]);
    let again = encode(&vector(&[1.0, 2.0]))[1].add(Array::from_slice(&[1u8], &[1])).expect("builds");
    assert_eq!(again.as_slice::<u8>(), [2, 3]);
    assert_poisoned(&more);
}

#[test]
fn arrays_of_the_same_eval_that_do_not_come_of_the_failure_are_right() {
    let [good, _] = encode(&vector(&[1.0, 2.0]));
    let ([poisoned, _], doubled) = (encode(&bad()), good.add(&good).expect("builds"));
    let both = ops::concatenate(&[&doubled, &poisoned], 0).expect("builds");
    let [late, _] = encode(&doubled);
    assert_eq!(failure(&eval([&both, &late]).expect_err("it fails")), FAILED);
    [&both, &poisoned].into_iter().for_each(assert_poisoned);
    assert_eq!([&good, &doubled, &late].map(numbers), [[1.0, 2.0], [2.0, 4.0], [2.0, 4.0]]);
}

#[test]
fn what_is_evaluated_in_the_background_fails_where_it_is_read_and_nowhere_else() {
    let held = Arc::new(AtomicBool::new(false));
    let [x, bytes] = encode_by(Encode { held: Some(Arc::clone(&held)), ..Encode::default() }, &bad());
    let next = bytes.add(&bytes).expect("builds");
    async_eval([&next]).expect("it has only begun");
    let [_, after] = encode(&next.as_dtype(Dtype::Float32).expect("builds"));
    async_eval([&after]).expect("it has only begun");
    let other = vector(&[3.0]).square().expect("builds");
    async_eval([&other]).expect("it has only begun");
    held.store(true, Ordering::Release);
    assert_eq!(numbers(&other), [9.0]);
    [&after, &x, &next, &bytes].into_iter().for_each(assert_poisoned);
    assert_eq!(numbers(&vector(&[3.0]).square().expect("builds")), [9.0]);
}

#[test]
fn a_value_that_is_carried_through_many_evals_fails_from_the_failure_on() {
    let mut state = vector(&[0.0, 1.0]);
    for step in 0..20 {
        let [x, _] = encode(&state);
        let shift = if step == 10 { f32::NAN } else { 1.0 };
        state = x.add(vector(&[1.0, shift])).expect("builds");
        let begun = async_eval([&state]);
        assert!(begun.is_ok() || step > 10, "{begun:?}");
    }
    assert_poisoned(&state);
}

#[test]
fn another_thread_meets_the_failure_too() {
    let held = Arc::new(AtomicBool::new(false));
    let [x, _] = encode_by(Encode { held: Some(Arc::clone(&held)), ..Encode::default() }, &bad());
    async_eval([&x]).expect("it has only begun");
    let (read, used) = (x.clone(), x.clone());
    let reader = thread::spawn(move || read.eval().map_err(|error| error.what().to_owned()));
    let user = thread::spawn(move || {
        let begun = used.add(Array::from_f32(1.0)).expect("builds");
        let first = begun.eval().map_err(|error| error.what().to_owned());
        (first, begun.eval().map_err(|error| error.what().to_owned()))
    });
    thread::sleep(Duration::from_millis(20));
    held.store(true, Ordering::Release);
    let (read, (first, second)) = (reader.join().expect("ends"), user.join().expect("ends"));
    for outcome in [read, first, second] {
        assert!(outcome.expect_err("it fails").starts_with(FAILED));
    }
    assert_poisoned(&x);
}

#[test]
fn a_failure_on_one_stream_is_met_on_another_and_stays_there() {
    let stream = Stream::new_with_device(&Device::cpu());
    let [x, _] = with_stream(&stream, || encode(&bad()));
    let more = x.add(Array::from_f32(1.0)).expect("builds");
    assert!(failure(&more.eval().expect_err("it fails")).starts_with(FAILED));
    [&x, &more].into_iter().for_each(assert_poisoned);
    let fine = with_stream(&stream, || vector(&[2.0]).square()).expect("builds");
    assert_eq!(numbers(&fine), [4.0]);
}

#[test]
fn hundreds_of_failures_on_several_threads_hold_up_nobody() {
    let _turn = turns::of_errors();
    let start = Arc::new(Barrier::new(3));
    let threads = [0, 1, 2].map(|_| {
        let start = Arc::clone(&start);
        thread::spawn(move || {
            start.wait();
            for round in 0..100 {
                let [_, bytes] = encode(&bad());
                let many = (0..8).try_fold(bytes, |sum, _| sum.add(&sum)).expect("builds");
                if round % 2 == 0 {
                    many.eval().expect_err("it fails");
                } else {
                    // It may be met at once.
                    let _ = async_eval([&many]);
                }
                let [good, _] = encode(&vector(&[round as f32]));
                assert_eq!(numbers(&good), [round as f32]);
                many.eval().expect_err("it stays failed");
            }
        })
    });
    for thread in threads {
        thread.join().expect("ends");
    }
}

#[test]
fn the_results_of_a_kernel_still_give_their_memory_to_what_comes_next() {
    let place = Arc::new(AtomicUsize::new(0));
    let long = vector(&vec![1.0; 1 << 14]);
    let [x, bytes] = encode_by(Encode { place: Arc::clone(&place), ..Encode::default() }, &long);
    drop(bytes);
    let next = x.add(Array::from_f32(1.0)).expect("builds");
    drop(x);
    next.eval().expect("evaluates");
    assert_eq!(next.as_slice::<f32>().as_ptr().addr(), place.load(Ordering::Acquire));
}

#[test]
fn a_pipeline_that_is_never_drained_notes_no_more_than_what_is_under_way() {
    let mut state = vector(&[1.0, 2.0]);
    let mut most = 0;
    for step in 0..500 {
        // The next step is begun before the one before it is waited for.
        let next = encode(&state)[0].clone();
        async_eval([&next]).expect("it begins");
        state.eval().expect("evaluates");
        state = next;
        if step > 100 {
            most = most.max(evals_noted());
        }
    }
    // Other tests have evals under way as well.
    assert!(most < 100, "{most} evals are noted");
}

/// As [`Encode`]; its drop evaluates, and then says so.
struct Departing(Sender<()>);

impl Kernel for Departing {
    fn name(&self) -> &'static str {
        "encode"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Encode::default().output_avals(inputs)
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        Encode::default().eval_cpu(inputs, outputs)
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Encode::default().decompose(inputs)
    }
}

impl Drop for Departing {
    fn drop(&mut self) {
        if vector(&[1.0]).exp().is_ok_and(|x| x.eval().is_ok()) {
            // Who waits may have given up.
            let _ = self.0.send(());
        }
    }
}

#[test]
fn a_kernel_that_goes_with_its_failure_may_evaluate() {
    let (sender, dropped) = channel();
    // On a thread of its own, so that a lock that is held is a failed test and no test without end.
    thread::spawn(move || {
        let results = apply(Arc::new(Departing(sender)), &[bad()]).expect("fits");
        assert_eq!(failure(&results[0].eval().expect_err("it fails")), FAILED);
        drop(results);
        // The next eval finds that nobody has what was poisoned.
        vector(&[1.0]).exp().expect("is built").eval().expect("evaluates");
    });
    dropped.recv_timeout(Duration::from_mins(1)).expect("it is dropped, and its drop evaluates");
}

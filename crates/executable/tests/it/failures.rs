//! What an executable holds after a kernel failed in a run.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use expect_test::expect;
use mlx_rs::Array;
use tacit::kernel::{Input, Kernel, Output, apply};
use tacit::{Aval, Error};
use tacit_bridge::BoxError;
use tacit_executable::{Executable, Mode};

use crate::types::{aval, dense, error, vector};

/// Numbers to themselves; it refuses NaN.
struct Finite;

impl Kernel for Finite {
    fn name(&self) -> &'static str {
        "finite"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let x = inputs[0].elements::<f32>()?;
        if x.iter().any(|x| x.is_nan()) {
            return Err("there is a NaN".into());
        }
        outputs[0].elements::<f32>()?.copy_from_slice(x);
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(inputs.to_vec())
    }
}

/// `sum + x`, returned and fed to `sum`.
fn running(mode: Mode) -> Executable<'static> {
    let mut running = Executable::builder("running")
        .input("x", aval(&[2]))
        .resident("sum", aval(&[2]))
        .output("sum")
        .output("y")
        .feed("sum", "sum")
        .mode(mode)
        .build(|given| {
            let sum = apply(Finite, &[given.get("x")?.clone()])?[0].add(given.get("sum")?)?;
            Ok(vec![sum.clone(), sum.add(&sum)?])
        })
        .expect("builds");
    running.set_input("sum", vector(&[1.0, 2.0])).expect("fits");
    running
}

#[test]
fn an_eager_run_names_the_node_that_failed_and_leaves_its_residents() {
    let mut running = running(Mode::Eager);
    let failed = error(running.run(&[("x", &vector(&[f32::NAN, 0.0]))]));
    assert!(matches!(&failed, Error::Node { error, .. } if matches!(**error, Error::Kernel { .. })), "{failed}");
    expect![[r#"
        kernel finite failed: there is a NaN
        in: node 1 of 3 of running, finite f32[2]"#]]
    .assert_eq(&failed.to_string());
    assert_eq!(dense(running.resident("sum").expect("is set")), [1.0, 2.0]);
    assert_eq!(
        dense(running.run(&[("x", &vector(&[1.0, 1.0]))]).expect("runs").get("y").expect("is returned")),
        [4.0, 6.0]
    );
}

#[test]
fn an_eager_run_names_a_node_behind_a_value_that_the_function_looked_at() {
    let mut looked = Executable::builder("looked")
        .input("x", aval(&[2]))
        .output("y")
        .mode(Mode::Eager)
        .build(|given| {
            let doubled = given.get("x")?.add(given.get("x")?)?;
            doubled.eval()?;
            Ok(vec![apply(Finite, &[doubled.sqrt()?])?[0].square()?])
        })
        .expect("builds");
    expect![[r#"
        kernel finite failed: there is a NaN
        in: node 2 of 3 of looked, finite f32[2]"#]]
    .assert_eq(&error(looked.run(&[("x", &vector(&[-1.0, 0.0]))])).to_string());
}

#[test]
fn a_committed_eager_run_names_the_node_when_it_is_waited_for() {
    let mut running = running(Mode::Eager);
    let begun = running.commit(&[("x", &vector(&[f32::NAN, 0.0]))]);
    let failed = error(begun.and_then(|()| running.wait()));
    expect![[r#"
        kernel finite failed: there is a NaN; this array comes of what it left
        help: see to the operands of the kernel, and build the array again
        in: node 1 of 3 of running, finite f32[2]"#]]
    .assert_eq(&failed.to_string());
}

/// Numbers to themselves, once the sender says so.
struct Waiting(Mutex<Receiver<()>>);

impl Kernel for Waiting {
    fn name(&self) -> &'static str {
        "waiting"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        self.0.lock().map_err(|_| "poisoned")?.recv_timeout(Duration::from_mins(1))?;
        outputs[0].elements::<f32>()?.copy_from_slice(inputs[0].elements::<f32>()?);
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(inputs.to_vec())
    }
}

#[test]
fn commit_returns_before_the_run_ends_in_every_mode() {
    for mode in [Mode::Eager, Mode::Lazy, Mode::Compiled] {
        let (sender, receiver) = channel();
        let receiver = Cell::new(Some(receiver));
        let mut held = Executable::builder("held")
            .input("x", aval(&[2]))
            .output("y")
            .mode(mode)
            .build(move |given| {
                let waiting = Waiting(Mutex::new(receiver.take().expect("is traced once")));
                Ok(vec![apply(waiting, &[given.get("x")?.square()?])?[0].square()?])
            })
            .expect("builds");
        held.commit(&[("x", &vector(&[1.0, 2.0]))]).expect("begins");
        // A run that was waited for would have waited for this.
        sender.send(()).expect("the kernel is there");
        assert_eq!(dense(held.wait().expect("ends").get("y").expect("is returned")), [1.0, 16.0], "{mode:?}");
    }
}

#[test]
fn what_a_failed_run_fed_is_an_error_until_it_is_set_again() {
    for mode in [Mode::Lazy, Mode::Compiled] {
        let mut running = running(mode);
        let (good, bad) = (vector(&[1.0, 1.0]), vector(&[f32::NAN, 0.0]));
        let outputs = running.run(&[("x", &bad)]).expect("only builds");
        let y = outputs.get("y").expect("is returned").dense().expect("dense");
        assert!(y.eval().is_err());
        for _ in 0..2 {
            expect![[r#"
                resident input sum of running comes of a run that failed: kernel finite failed: there is a NaN
                help: set it again with `set_input`"#]]
            .assert_eq(&error(running.run(&[("x", &good)])).to_string());
            assert!(running.commit(&[("x", &good)]).is_err());
        }
        running.set_input("sum", vector(&[1.0, 2.0])).expect("fits");
        assert_eq!(
            dense(running.run(&[("x", &good)]).expect("runs").get("y").expect("is returned")),
            [4.0, 6.0],
            "{mode:?}"
        );
    }
}

#[test]
fn a_committed_or_pipelined_run_that_fails_says_so_in_its_place() {
    for mode in [Mode::Lazy, Mode::Compiled] {
        let mut running = running(mode);
        let (good, bad) = (vector(&[1.0, 1.0]), vector(&[f32::NAN, 0.0]));
        let begun = running.commit(&[("x", &bad)]);
        assert!(begun.is_err() || running.wait().is_err());
        assert!(running.run(&[("x", &good)]).is_err());
        running.set_input("sum", vector(&[1.0, 2.0])).expect("fits");
        let inputs = [good.clone(), bad, good].map(|x| [x]);
        let runs: Vec<bool> = running.run_pipelined(&inputs).map(|run| run.is_ok()).collect();
        assert_eq!(runs, [true, false, false], "{mode:?}");
        let kept = error(running.run(&[("x", &vector(&[0.0, 0.0]))])).to_string();
        assert!(kept.contains("comes of a run that failed"), "{kept}");
    }
}

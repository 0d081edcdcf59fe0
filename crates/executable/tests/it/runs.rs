//! Executables: what is held from run to run, what a run costs, what an error leaves.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use mlx_rs::{Array, Dtype, memory, ops};
use tacit::primitives::{Matmul, Transpose};
use tacit::{Aval, Policy, Registry, Result, Value, handler};
use tacit_bridge::Primitive;
use tacit_executable::{Builder, Executable, Mode};

use crate::types::{Left, aval, dense, matrix, vector, with_handlers};

/// MLX counts the memory of the process, so the tests that read the count take turns.
static COUNTED: Mutex<()> = Mutex::new(());

const MODES: [Mode; 3] = [Mode::Eager, Mode::Lazy, Mode::Compiled];

/// `x weight^T + sum`, which is returned and fed to `sum`.
fn layer(mode: Mode) -> Builder {
    Executable::builder("layer")
        .parameter("weight", aval(&[2, 3]))
        .input("x", aval(&[1, 3]))
        .resident("sum", aval(&[1, 2]))
        .output("y")
        .output("sum")
        .feed("sum", "sum")
        .mode(mode)
}

fn built(mode: Mode) -> Executable<'static> {
    let mut layer = layer(mode)
        .build(|given| {
            let y = given.get("x")?.matmul(given.get("weight")?.t())?;
            let sum = given.get("sum")?.add(&y)?;
            Ok(vec![sum.multiply(Array::from_f32(2.0))?, sum])
        })
        .expect("builds");
    layer.set_parameter("weight", matrix(2, 3)).expect("fits");
    layer.set_input("sum", ops::zeros::<f32>(&[1, 2]).expect("builds")).expect("fits");
    layer
}

#[test]
fn every_mode_feeds_and_returns_the_same() {
    for mode in MODES {
        let mut layer = built(mode);
        assert_eq!(layer.mode(), mode);
        let x = matrix(1, 3);
        // `1 2 3` times its rows is `14 32`.
        for run in 1..4 {
            let outputs = layer.run(&[("x", &x)]).expect("runs");
            let factor = 2.0 * run as f32;
            assert_eq!(dense(outputs.get("y").expect("is returned")), [14.0 * factor, 32.0 * factor], "{mode:?}");
            assert!(outputs.get("sum").is_err());
            assert_eq!(outputs.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["y"]);
        }
        assert_eq!(dense(layer.resident("sum").expect("is set")), [42.0, 96.0]);
        layer.set_input("sum", matrix(1, 2)).expect("fits");
        assert_eq!(
            dense(layer.run(&[("x", &x)]).expect("runs").get("y").expect("is returned")),
            [30.0, 68.0],
            "{mode:?}"
        );
    }
}

#[test]
fn a_parameter_is_an_argument_of_the_graph() {
    let mut layer = built(Mode::Compiled);
    let x = matrix(1, 3);
    layer.run(&[("x", &x)]).expect("runs");
    layer.set_parameter("weight", ops::ones::<f32>(&[2, 3]).expect("builds")).expect("fits");
    assert_eq!(dense(layer.run(&[("x", &x)]).expect("runs").get("y").expect("is returned")), [40.0, 76.0]);
    assert_eq!((layer.stats().calls, layer.stats().traces), (2, 1));
}

#[handler]
pub(crate) fn turn(_: &Transpose, w: &Left) -> Result<Value> {
    Ok(Left::of(&w.array.t()))
}

#[handler]
pub(crate) fn multiply(_: &Matmul, x: &Array, w: &Left) -> Result<Value> {
    Ok(x.matmul(&w.array)?.into())
}

#[test]
fn a_parameter_may_be_implicit() {
    let _registry = with_handlers(Registry::new().with::<turn>().with::<multiply>());
    let _deny = Policy::Deny.scope();
    for mode in MODES {
        let mut layer = built(mode);
        layer.set_parameter("weight", Left::of(&matrix(2, 3))).expect("fits");
        assert_eq!(
            dense(layer.run(&[("x", &matrix(1, 3))]).expect("runs").get("y").expect("is returned")),
            [28.0, 64.0],
            "{mode:?}"
        );
    }
}

#[test]
fn a_warm_executable_traces_no_more_and_was_fed_nothing() {
    let mut layer = built(Mode::Compiled);
    layer.warm_up().expect("runs");
    assert_eq!(dense(layer.resident("sum").expect("is set")), [0.0, 0.0]);
    layer.run(&[("x", &matrix(1, 3))]).expect("runs");
    assert_eq!((layer.stats().calls, layer.stats().traces), (2, 1));
}

#[test]
fn positional_runs_use_the_memory_of_the_last_outputs() {
    let mut layer = built(Mode::Compiled);
    let (x, mut outputs) = (matrix(1, 3), Vec::with_capacity(1));
    let memory = outputs.as_ptr();
    for run in 1..4 {
        layer.run_positional(&[&x], &mut outputs).expect("runs");
        assert_eq!(dense(&outputs[0]), [28.0 * run as f32, 64.0 * run as f32]);
        assert_eq!((outputs.len(), outputs.as_ptr()), (1, memory));
    }
}

#[test]
fn an_error_leaves_everything_as_it_was() {
    for mode in MODES {
        let mut layer = built(mode);
        let (x, long) = (matrix(1, 3), matrix(1, 4));
        layer.run(&[("x", &x)]).expect("runs");
        assert!(layer.set_parameter("weight", long.clone()).is_err());
        assert!(layer.set_input("sum", long.clone()).is_err());
        assert!(layer.run(&[("x", &long)]).is_err());
        assert!(layer.commit(&[("x", &long)]).is_err());
        let mut outputs = vec![Value::from(vector(&[5.0]))];
        assert!(layer.run_positional(&[&long], &mut outputs).is_err());
        assert_eq!(dense(&outputs[0]), [5.0]);
        assert_eq!(
            dense(layer.run(&[("x", &x)]).expect("runs").get("y").expect("is returned")),
            [56.0, 128.0],
            "{mode:?}"
        );
    }
}

#[test]
fn a_failing_function_feeds_nothing() {
    for mode in MODES {
        let fails = Cell::new(true);
        let mut counter = Executable::builder("counter")
            .resident("count", aval(&[1]))
            .output("count")
            .feed("count", "count")
            .mode(mode)
            .build(|given| {
                let next = given.get("count")?.add(Array::from_f32(1.0))?;
                if fails.get() {
                    next.reshape(&[7])?;
                }
                Ok(vec![next])
            })
            .expect("builds");
        counter.set_input("count", vector(&[0.0])).expect("fits");
        assert!(counter.run(&[]).is_err());
        fails.set(false);
        counter.run(&[]).expect("runs");
        assert_eq!(dense(counter.resident("count").expect("is set")), [1.0], "{mode:?}");
    }
}

#[test]
fn bytes_become_a_parameter_of_their_own_dtype() {
    let _turn = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let wide = Aval::new(&[4096, 4096], Dtype::Bfloat16);
    let mut copy = Executable::builder("copy")
        .parameter("w", wide.clone())
        .parameter("one", Aval::new(&[], Dtype::Int64))
        .parameter("none", Aval::new(&[0, 3], Dtype::Float16))
        .output("w")
        .output("one")
        .output("none")
        .build(|given| Ok(vec![given.get("w")?.clone(), given.get("one")?.clone(), given.get("none")?.clone()]))
        .expect("builds");
    // 1.5 is 0x3fc0.
    let bytes = [0xc0, 0x3f].repeat(wide.size());
    let before = memory::active_memory().expect("is counted");
    memory::reset_peak_memory().expect("is counted");
    copy.set_parameter_bytes("w", &bytes).expect("fits");
    let peak = memory::peak_memory().expect("is counted").saturating_sub(before);
    assert!((1 << 25..3 << 24).contains(&peak), "{peak}");
    copy.set_parameter_bytes("one", &7i64.to_ne_bytes()).expect("fits");
    copy.set_parameter_bytes("none", &[]).expect("fits");
    let outputs = copy.run(&[]).expect("runs");
    let w = outputs.get("w").expect("is returned").as_dense().expect("dense").clone();
    assert_eq!(Aval::from(&w), wide);
    let same = w.eq(Array::from_f32(1.5)).and_then(|same| same.all(None)).expect("builds");
    assert!(same.item_exact::<bool>());
    assert_eq!(outputs.get("one").expect("is returned").dense().expect("dense").item_exact::<i64>(), 7);
    assert_eq!(outputs.get("none").expect("is returned").to_string(), "f16[0,3]");
}

#[test]
fn a_committed_run_is_waited_for() {
    for mode in MODES {
        let mut layer = built(mode);
        let x = matrix(1, 3);
        layer.commit(&[("x", &x)]).expect("begins");
        assert!(layer.commit(&[("x", &x)]).is_err());
        let outputs = layer.wait().expect("ends");
        assert!(
            Primitive::making(outputs.get("y").expect("is returned").as_dense().expect("dense"))
                .expect("memory")
                .is_none()
        );
        assert_eq!(dense(outputs.get("y").expect("is returned")), [28.0, 64.0]);
        assert!(layer.wait().is_err());
        layer.commit(&[("x", &x)]).expect("begins again");
        assert_eq!(dense(layer.wait().expect("ends").get("y").expect("is returned")), [56.0, 128.0]);
    }
}

#[test]
fn pipelined_runs_are_those_one_after_the_other() {
    for mode in MODES {
        let mut layer = built(mode);
        let inputs = [matrix(1, 3), matrix(1, 4), matrix(1, 3)].map(|x| [x]);
        let outputs: Vec<_> = layer.run_pipelined(&inputs).collect();
        assert_eq!(outputs.len(), 3);
        assert_eq!(dense(outputs[0].as_ref().expect("runs").get("y").expect("is returned")), [28.0, 64.0]);
        assert!(outputs[1].is_err());
        assert_eq!(dense(outputs[2].as_ref().expect("runs").get("y").expect("is returned")), [56.0, 128.0]);
    }
}

#[test]
fn a_fed_cache_is_written_in_its_own_memory() {
    let _turn = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let large = aval(&[1 << 23]);
    let mut cache = Executable::builder("cache")
        .input("x", aval(&[1]))
        .resident("cache", large.clone())
        .output("cache")
        .output("first")
        .feed("cache", "cache")
        .mode(Mode::Compiled)
        .build(|given| {
            let cache = given.get("cache")?.add(given.get("x")?)?;
            Ok(vec![cache.clone(), cache.max(None)?])
        })
        .expect("builds");
    let zeros = ops::zeros::<f32>(&large.shape).expect("builds");
    zeros.eval().expect("evaluates");
    cache.set_input("cache", zeros).expect("fits");
    let step = |cache: &mut Executable<'_>| {
        cache.commit(&[("x", &vector(&[1.0]))]).expect("begins");
        cache.wait().expect("ends")
    };
    step(&mut cache);
    memory::reset_peak_memory().expect("is counted");
    let before = memory::active_memory().expect("is counted");
    let outputs = (0..8).map(|_| step(&mut cache)).last().expect("eight");
    let grown = memory::peak_memory().expect("is counted").saturating_sub(before);
    assert_eq!(dense(outputs.get("first").expect("is returned")), [9.0]);
    assert!(grown < large.nbytes() / 2, "{grown}");
}

/// As a moving mean of many features.
#[test]
fn a_fed_resident_of_a_plan_is_written_in_its_own_memory() {
    let _turn = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let large = aval(&[1 << 11, 1 << 11]);
    let mut moving = Executable::builder("moving")
        .input("x", large.clone())
        .resident("mean", large.clone())
        .output("mean")
        .output("most")
        .feed("mean", "mean")
        .mode(Mode::Compiled)
        .build(|given| {
            // The caller holds the first operand.
            let mean = given.get("x")?.add(given.get("mean")?)?.multiply(Array::from_f32(0.5))?;
            Ok(vec![mean.clone(), mean.max_axes(&[0], false)?.max(None)?])
        })
        .expect("builds");
    let [ones, zeros] = [ops::ones::<f32>, ops::zeros::<f32>].map(|make| make(&large.shape).expect("builds"));
    mlx_rs::transforms::eval([&ones, &zeros]).expect("evaluates");
    moving.set_input("mean", zeros).expect("fits");
    let step = |moving: &mut Executable<'_>| {
        moving.commit(&[("x", &ones)]).expect("begins");
        moving.wait().expect("ends")
    };
    step(&mut moving);
    memory::reset_peak_memory().expect("is counted");
    let before = memory::active_memory().expect("is counted");
    let outputs = (0..8).map(|_| step(&mut moving)).last().expect("eight");
    let grown = memory::peak_memory().expect("is counted").saturating_sub(before);
    assert_eq!(dense(outputs.get("most").expect("is returned")), [1.0 - 1.0 / 512.0]);
    assert!(moving.stats().nodes.contains_key("Plan"), "{:?}", moving.stats().nodes);
    assert!(grown < large.nbytes() / 2, "{grown}");
}

#[test]
fn what_is_fed_and_never_looked_at_is_evaluated_all_the_same() {
    let mut counter = Executable::builder("counter")
        .resident("count", aval(&[1]))
        .output("count")
        .feed("count", "count")
        .mode(Mode::Compiled)
        .build(|given| Ok(vec![given.get("count")?.add(Array::from_f32(1.0))?]))
        .expect("builds");
    counter.set_input("count", vector(&[0.0])).expect("fits");
    let mut before = None;
    for _ in 0..4 {
        counter.run(&[]).expect("runs");
        let now = counter.resident("count").expect("is set").dense().expect("dense");
        if let Some(before) = before.replace(now) {
            assert!(Primitive::making(&before).expect("memory").is_none());
        }
    }
}

//! Ten thousand compiled steps, some of which fail, take no more memory and threads than a thousand. In a process of its own, which
//! is counted whole.

use std::fs;

use mlx_rs::{Array, memory, ops, random, transforms};
use tacit_core::compile::{CompileOptions, compile_with, compile_with_state};
use tacit_core::extra_ops::{checked_indices, dynamic_slice_update};
use tacit_core::{Error, Result};
use tacit_fusion as _;

/// A parameter with its moment, a cache, and the place in that where the next token goes.
type State = (Array, Array, Array, Array);

const TOKENS: i32 = 16;

#[allow(clippy::needless_pass_by_value, reason = "a compiled function owns its arguments")]
fn step((w, moment, cache, place): &mut State, x: Array) -> Result<Array> {
    let loss = |w: &Array| x.matmul(w)?.square()?.mean(None);
    let gradient = transforms::grad(loss)(&*w)?;
    *moment = moment.multiply(Array::from_f32(0.9))?.add(gradient.multiply(Array::from_f32(0.1))?)?;
    *w = w.subtract(moment.multiply(Array::from_f32(0.01))?)?;
    let token = x.matmul(&*w)?.sum_axes(&[0], true)?.exp()?;
    *cache = dynamic_slice_update(&*cache, &token, &place.reshape(&[1])?, &[0])?;
    *place = place.add(Array::from_int(1))?.remainder(Array::from_int(TOKENS))?;
    Ok(cache.abs()?.max(None)?)
}

fn normal(shape: &[i32], seed: u64) -> Result<Array> {
    let numbers = random::normal::<f32>(shape, None, None, &random::key(seed)?)?.multiply(Array::from_f32(0.1))?;
    numbers.eval()?;
    Ok(numbers)
}

/// The bytes of arrays, the kilobytes of the process and its threads, where the system tells.
fn taken() -> Result<(usize, usize, usize)> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Ok((memory::active_memory()?, number("VmRSS:"), number("Threads:")))
}

#[test]
fn ten_thousand_steps_leave_memory_as_a_thousand_do() -> Result<()> {
    let mut compiled = compile_with_state(CompileOptions::default(), step);
    let mut checked = compile_with(CompileOptions::default(), |(x, at): (Array, Array)| {
        Ok::<_, Error>(x.exp()?.take_axis(checked_indices(&at, 4)?, 0)?.add(Array::from_f32(1.0))?)
    });
    let zeros = ops::zeros::<f32>(&[TOKENS, 32])?;
    zeros.eval()?;
    let mut state = (normal(&[24, 32], 0)?, normal(&[24, 32], 1)?, zeros, Array::from_int(0));
    let (x, table) = (normal(&[8, 24], 2)?, normal(&[4, 3], 3)?);
    let mut early = None;
    for call in 1..=10_000 {
        // In some calls somebody holds the state, which is then copied.
        let held = (call % 3 == 0).then(|| state.clone());
        let result = compiled.call(&mut state, &x)?.dense()?;
        transforms::eval([&result, &state.0, &state.1, &state.2, &state.3])?;
        drop((held, result));
        if call % 20 == 0 {
            let wrong = checked.call((&table, &Array::from_slice(&[7, 0], &[2])))?.dense()?;
            assert!(wrong.eval().is_err(), "7 is not there");
        }
        if call == 1_000 {
            early = Some(taken()?);
        }
    }
    let (early, late) = (early.expect("a thousand calls"), taken()?);
    assert_eq!(compiled.stats().traces, 1);
    assert!(compiled.stats().nodes.contains_key("Plan"), "{:?}", compiled.stats().nodes);
    assert_eq!((late.0, late.2), (early.0, early.2), "bytes of arrays, and threads");
    // Less than half a kilobyte for each step.
    assert!(late.1 <= early.1 + 4096, "{} and {} kB", early.1, late.1);
    Ok(())
}

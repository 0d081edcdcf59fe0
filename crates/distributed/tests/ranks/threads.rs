//! Groups that several threads of a rank use.

use std::thread;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Result;
use tacit_distributed::Group;

use crate::case::Case;
use crate::collectives::{assert_equal, numbers};

pub(crate) const CASES: &[Case] = &[
    Case::new("messages_at_once", messages_at_once).sizes(&[2]),
    Case::new("sums_in_turn", sums_in_turn),
    Case::new("not_made_there", not_made_there),
    Case::new("operands_not_made_here", operands_not_made_here),
];

const SHAPE: [i32; 2] = [6, 4];

/// Messages of several threads run one at a time, in whichever order: each arrives whole, and only once.
fn messages_at_once(group: &Group) -> Result<()> {
    const THREADS: u16 = 4;
    const EACH: u16 = 50;
    let other = 1 - group.rank();
    let sends = |thread: u16| -> Result<f32> {
        for message in 0..EACH {
            let x = ops::full::<f32>(&[SHAPE[1], SHAPE[0]], Array::from_f32(f32::from(thread * EACH + message)))?;
            // Not in the order of its rows, so that it is copied beside the collective.
            group.send(&x.transpose_axes(&[1, 0])?, other)?.eval()?;
        }
        Ok(0.0)
    };
    let receives = |_: u16| -> Result<f32> {
        let mut total = 0.0;
        for _ in 0..EACH {
            let x = group.recv(&SHAPE, Dtype::Float32, other)?;
            let first = x.max(None)?.item_exact::<f32>();
            assert_equal(&x, &ops::full::<f32>(&SHAPE, Array::from_f32(first))?, "a message")?;
            total += first;
        }
        Ok(total)
    };
    let totals = thread::scope(|scope| {
        let (sends, receives) = (&sends, &receives);
        let begin = |number| scope.spawn(move || if group.rank() == 0 { sends(number) } else { receives(number) });
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<f32>>>()
    })?;
    let expected: f32 = if group.rank() == 0 { 0.0 } else { (0..THREADS * EACH).map(f32::from).sum() };
    assert_eq!(totals.iter().sum::<f32>().to_bits(), expected.to_bits());
    Ok(())
}

/// Threads that take turns sum as one does.
fn sums_in_turn(group: &Group) -> Result<()> {
    let size = group.size() as f32;
    for round in 0..3 {
        let sums = || -> Result<()> {
            let x = numbers(round, &SHAPE, Dtype::Float32)?;
            assert_equal(&group.all_max(&x)?, &x, "a maximum")?;
            let ones = ops::ones::<f32>(&SHAPE)?;
            assert_equal(&group.all_sum(&ones)?, &ones.multiply(Array::from_f32(size))?, "a sum")
        };
        thread::scope(|scope| scope.spawn(sums).join().expect("no panic"))?;
    }
    Ok(())
}

/// As any lazy array: another thread cannot evaluate it, and its own still can.
fn not_made_there(group: &Group) -> Result<()> {
    let sum = group.all_sum(&Array::from_slice(&[1.0_f32; 24], &SHAPE))?;
    let elsewhere = thread::spawn(move || {
        let refused = sum.eval().map_err(|error| error.what().to_owned());
        (refused, sum)
    });
    let (refused, sum) = elsewhere.join().expect("no panic");
    let refused = refused.expect_err("another thread made it");
    assert!(refused.contains("There is no Stream("), "{refused}");
    assert_equal(&sum, &ops::full::<f32>(&SHAPE, Array::from_f32(group.size() as f32))?, "a sum")
}

/// What fails on every rank before its collective begins leaves none behind the others.
fn operands_not_made_here(group: &Group) -> Result<()> {
    for round in 0..3 {
        let elsewhere = thread::spawn(|| ops::ones::<f32>(&SHAPE).and_then(|ones| ones.negative()));
        let lazy = elsewhere.join().expect("no panic")?;
        assert!(group.all_sum(&lazy)?.eval().is_err(), "another thread made its operand");
        let numbers = numbers(round, &SHAPE, Dtype::Float32)?;
        let sum = group.all_sum(&numbers)?;
        assert_equal(&sum, &numbers.multiply(Array::from_f32(group.size() as f32))?, "a sum")?;
    }
    Ok(())
}

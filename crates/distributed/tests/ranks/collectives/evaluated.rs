//! Collectives that are evaluated together, in another order on each rank.

use mlx_rs::{Array, ops, transforms};
use tacit_core::{Result, compile};
use tacit_distributed::Group;

/// MLX evaluates what does not depend on each other from where it is told to begin; the ranks meet all the same.
pub(super) fn begun_from_either_end(group: &Group) -> Result<()> {
    for round in 0..20u8 {
        let x = ops::full::<f32>(&[4], Array::from_f32(group.rank() as f32 + f32::from(round)))?;
        let mut made = vec![group.all_sum(&x)?, group.all_max(&x)?, group.all_gather(&x, 0)?, group.all_min(&x)?];
        if group.rank() % 2 == 1 {
            made.reverse();
        }
        transforms::eval(&made)?;
        if group.rank() % 2 == 1 {
            made.reverse();
        }
        let (last, round) = (group.size() as f32 - 1.0, f32::from(round));
        let sum: f32 = (0..group.size()).map(|rank| rank as f32 + round).sum();
        assert_eq!(made[0].as_slice::<f32>(), [sum; 4]);
        assert_eq!(made[1].as_slice::<f32>(), [last + round; 4]);
        assert_eq!(made[2].as_slice::<f32>().last(), Some(&(last + round)));
        assert_eq!(made[3].as_slice::<f32>(), [round; 4]);
    }
    Ok(())
}

pub(super) fn calls_that_nothing_compiles(group: &Group) -> Result<()> {
    assert!(!tacit_bridge::compiler_available());
    calls_of_one_trace(group)
}

/// Calls that share a trace are evaluated together, from either end, and each has its own sum: those of a function that Tacit
/// compiles, of one that mlx-rs compiles, of one with a captured sum, and of a primitive that is applied twice.
pub(super) fn calls_of_one_trace(group: &Group) -> Result<()> {
    const CALLS: usize = 6;
    let number = |rank: usize, call: usize, round: usize| (1000 * round + 10 * call + rank + 1) as f32;
    let captured = ops::full::<f32>(&[4], Array::from_f32(group.rank() as f32))?;
    let mut one = compile(|x: Array| group.all_sum(&x));
    let mut two = compile(|x: Array| group.all_sum(&x)?.add(group.all_sum(&x.add(Array::from_int(1))?)?));
    let own = group.clone();
    let plain = move |x: &Array| own.all_sum(x).map_err(|error| mlx_rs::error::Exception::custom(error.to_string()));
    let mut theirs = mlx_rs::transforms::compile::compile(plain, false);
    let size = group.size() as f32;
    for round in 0..4 {
        let pending = group.all_sum(&captured.add(Array::from_f32(round as f32))?)?;
        let mut holding = compile(|x: Array| x.add(&pending));
        let primitive = tacit_bridge::Primitive::making(&group.all_sum(&captured)?)?.expect("is a collective");
        let mut made = Vec::new();
        for call in 0..CALLS {
            let x = ops::full::<f32>(&[4], Array::from_f32(number(group.rank(), call, round)))?;
            let sum: f32 = (0..group.size()).map(|rank| number(rank, call, round)).sum();
            made.push((one.call(&x)?.dense()?, sum));
            made.push((two.call(&x)?.dense()?, 2.0 * sum + size));
            made.push((theirs(&x)?, sum));
            let held = (0..group.size()).map(|rank| (rank + round) as f32).sum::<f32>();
            made.push((holding.call(&x)?.dense()?, number(group.rank(), call, round) + held));
            made.push((primitive.emit(&[x])?.swap_remove(0), sum));
        }
        if group.rank() % 2 == 1 {
            made.reverse();
        }
        transforms::eval(made.iter().map(|(made, _)| made))?;
        for (at, (made, expected)) in made.iter().enumerate() {
            assert_eq!(made.as_slice::<f32>(), [*expected; 4], "round {round}, result {at} of rank {}", group.rank());
        }
    }
    Ok(())
}

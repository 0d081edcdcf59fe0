//! What ranks are refused, by whole messages.

use mlx_rs::{Array, ops};
use tacit_arrays::Nf4Array;
use tacit_core::{Policy, Result, Value, implicit};
use tacit_distributed::{Backend, Group, Sharded};

use crate::case::Case;
use crate::checkpoints::normal;

pub(crate) const CASES: &[Case] =
    &[Case::new("by_words", refused_by_words), Case::new("codes_that_are_not_cut", codes_that_are_not_cut)];

fn refused_by_words(group: &Group) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let own = group.send(&Array::from_f32(1.0), rank).expect_err("it is this one").to_string();
    let help = "help: send to and receive from the ranks below `Group::size`, but this one";
    assert_eq!(own, format!("rank {rank} is no other rank of a group of {size}\n{help}"));
    let long = ops::broadcast_to(Array::from_f32(1.0), &[i32::MAX])?;
    let message = format!("the parts of {size} ranks, each f32[2147483647], are longer than an axis of MLX");
    let message = message + "\nhelp: give parts that have at most 2147483647 elements along it together";
    assert_eq!(group.all_gather(&long, 0).expect_err("no axis is so long").to_string(), message);
    assert_eq!(group.gather_parts(&long).expect_err("no axis is so long").to_string(), message);
    if group.backend() == Backend::Mpi {
        let (many, next) = (ops::broadcast_to(Array::from_f32(1.0), &[1 << 16, 1 << 15])?, (rank + 1) % size);
        for result in [group.all_sum(&many), group.send(&many, next), group.recv(many.shape(), many.dtype(), next)] {
            let error = result.expect_err("are more than it counts").to_string();
            assert!(error.contains("MPI takes at most 2147483647 elements at once, not 2147483648"), "{error}");
        }
    }
    Ok(())
}

/// Codes that every rank has, beside parts that end within a block.
fn codes_that_are_not_cut(group: &Group) -> Result<()> {
    let codes = Value::from(Nf4Array::quantize(&normal(1, &[4, 96])?, 32)?);
    let split = Sharded::split(normal(2, &[4, 96])?, 1, group)?;
    let _deny = Policy::Deny.scope();
    let sum = implicit((split, codes), |(split, codes)| split.add(codes));
    let error = sum.expect_err("the codes would be built").to_string();
    assert!(error.contains("Nf4(f32[4,96]) is whole on every rank: "), "{error}");
    Ok(())
}

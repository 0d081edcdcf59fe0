//! What a process alone refuses, and by which words.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Lora;
use tacit_core::{Result, Value};

use crate::{Backend, FullySharded, Group, GroupOptions, Sharded};

fn zeros(shape: &[i32]) -> Array {
    ops::zeros::<f32>(shape).expect("zeros")
}

fn said<T>(result: Result<T>) -> String {
    result.err().expect("is refused").to_string()
}

#[test]
fn a_group_of_one_says_what_it_does_not_do() {
    let group = Group::alone();
    let found = [
        said(group.send(&zeros(&[8]), 0)),
        said(group.recv(&[8], Dtype::Float32, 1)),
        said(group.all_gather(&zeros(&[]), 0)),
        said(group.all_gather(&zeros(&[8]), 1)),
        said(group.gather_parts(&zeros(&[]))),
        said(group.sum_scatter(&zeros(&[]))),
        said(group.mean(&Array::from_int(3))),
        said(group.weighted_mean(&(zeros(&[2]), Array::from_int(3)), &Array::from_int(1))),
    ];
    expect![[r#"
        rank 0 is no other rank of a group of 1
        help: send to and receive from the ranks below `Group::size`, but this one
        rank 1 is no other rank of a group of 1
        help: send to and receive from the ranks below `Group::size`, but this one
        f32[] has no axis 0 along which parts are joined
        help: give an axis of the array; a scalar has none
        f32[8] has no axis 1 along which parts are joined
        help: give an axis of the array; a scalar has none
        f32[] has no axis 0 along which parts are joined
        help: give an axis of the array; a scalar has none
        f32[] has no axis 0 along which parts are joined
        help: give an axis of the array; a scalar has none
        i32[] has no mean of its dtype
        help: give float arrays, or take `Group::sum`
        i32[] has no mean of its dtype
        help: give float arrays, or take `Group::sum`"#]]
    .assert_eq(&found.join("\n"));
}

/// No variable of this process speaks of one.
#[test]
fn a_ring_of_which_nothing_is_said_is_not_joined() {
    let options = GroupOptions { backend: Some(Backend::Ring), ..GroupOptions::default() };
    expect![[r#"
        the ring group cannot be joined: [ring] You need to provide via environment variables both a rank (MLX_RANK) and a hostfile (MLX_HOSTFILE) but provided MLX_RANK="" and MLX_HOSTFILE=""
        help: start all ranks, each with its own number, by `tacit launch`, or by `mpirun` for MPI"#]].assert_eq(&said(Group::with(&options)));
}

#[test]
fn a_file_s_group_that_this_process_is_not_of_is_refused() {
    let read = |text: &str| serde_json::from_str::<Group>(text).expect_err("is another").to_string();
    let found = [r#"{"rank": 1, "size": 4}"#, r#"{"rank": 1, "size": 2, "ranks": [2, 3]}"#].map(read);
    expect![[r#"
        this process is not rank 1 of a group of 4: join that group first
        this process is not rank 1 of a group of ranks 2 and 3: split that off first"#]]
    .assert_eq(&found.join("\n"));
}

#[test]
fn what_is_not_split_says_why() -> Result<()> {
    let group = Group::alone();
    let columns = Value::from(Sharded::split(zeros(&[4, 4]), 1, &group)?);
    let adapted = Lora::new(columns.clone(), zeros(&[4, 4]), zeros(&[4, 4]), 1.0)?;
    // Of more elements than an axis counts, and of no memory.
    let large = ops::broadcast_to(Array::from_f32(1.0), &[1 << 16, 1 << 16])?;
    let found = [
        said(FullySharded::new(columns, &group)),
        said(Sharded::split(adapted, 0, &group)),
        said(FullySharded::new(large, &group)),
        said(Sharded::split(zeros(&[4]), 1, &group)),
        said(Sharded::from_part(zeros(&[]), 0, &group)),
    ];
    expect![[r#"
        Sharded(f32[4,4]) is split over the ranks already
        help: split the whole value, once
        Lora(f32[4,4]) has Sharded(f32[4,4]) inside, which is split over the ranks already
        help: split the whole value, once
        f32[65536,65536] has more elements than an axis of MLX, 2147483647
        help: make it of several arrays, such as a `Concat` or a `Stacked` of them
        f32[4] has no axis 1 to split
        help: give an axis of the array
        f32[] has no axis 0 to split
        help: give an axis of the array"#]]
    .assert_eq(&found.join("\n"));
    Ok(())
}

//! What branches and loops refuse, in words. `UPDATE_EXPECT=1` rewrites them.

use expect_test::{Expect, expect};
use mlx_rs::Array;
use tacit::control::{cond, fori_loop, scan, while_loop};
use tacit::{Error, Result, Value, compile, implicit};

use crate::types::{Left, Outer, error, matrix, said_of, vector, without_handlers};

fn said<T>(outcome: Result<T>, expected: &Expect) {
    expected.assert_eq(&error(outcome).to_string());
}

fn same(x: Array) -> Result<Array> {
    Ok(x)
}

#[test]
fn a_predicate_is_one_bool() {
    let chosen = |predicate: Array| cond(&predicate, matrix(1, 1), same, same);
    let messages = [
        said_of(chosen(vector(&[1.0]))),
        said_of(chosen(Array::from_slice(&[true, false], &[2]))),
        said_of(while_loop(matrix(1, 1), |x: Array| x.sum(None), same)),
    ];
    expect![[r#"
        the predicate is f32[1] and must be one bool
        help: compare, as in `x.lt(y)`, and bring several bools to one by `any` or `all`
        the predicate is bool[2] and must be one bool
        help: compare, as in `x.lt(y)`, and bring several bools to one by `any` or `all`
        the condition is f32[] and must be one bool
        help: compare, as in `x.lt(y)`, and bring several bools to one by `any` or `all`
    "#]]
    .assert_eq(&messages.concat());
}

#[test]
fn a_traced_condition_ends_no_loop() {
    let looped =
        |x: Array| while_loop(x, |x: Array| x.sum(None)?.lt(Array::from_f32(9.0)), |x: Array| x.square())?.dense();
    said(
        compile(looped).call(matrix(1, 2)),
        &expect![[r#"
        the condition of the loop is traced: how many steps it takes is not known before it runs
        help: use `fori_loop` with a fixed count, or run the loop outside `compile`, `implicit` and `vmap`"#]],
    );
    let _scopes = without_handlers();
    let refused = implicit(Left::of(&matrix(1, 2)), looped);
    assert!(error(refused).to_string().starts_with("the condition of the loop is traced"));
}

/// `cond` of a predicate that is traced, which gives one of two trees.
fn either<O: tacit::Tree>(a: impl FnOnce(Array) -> O + Copy, b: impl FnOnce(Array) -> O + Copy) -> Result<()> {
    let mut f = compile(|(p, x): (Array, Array)| -> Result<Array> {
        cond(&p, Value::from(&x), |x: Array| Ok::<_, Error>(a(x)), |x: Array| Ok::<_, Error>(b(x)))?;
        Ok(x)
    });
    f.call((&Array::from_bool(true), matrix(2, 3))).map(|_| ())
}

#[test]
fn traced_branches_agree() {
    let messages = [
        said_of(either(|x| vec![x.clone()], |x| vec![x.clone(), x])),
        said_of(either(|x| (x.clone(), Some(x)), |x| (x, None))),
        said_of(either(|x| [x.clone(), x.clone()], |x| [x.clone(), x.t()])),
        said_of(either(|x| x, |x| x.gt(Array::from_f32(0.0)).expect("compares"))),
    ];
    expect![[r#"
        the predicate is traced and the branches differ: one makes [*], the other [*, *]: list of 1 -> list of 2 at the root
        help: give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`
        the predicate is traced and the branches differ: one makes (*, *), the other (*, None): Some -> None at `1`
        help: give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`
        the predicate is traced and the branches differ: one makes f32[2,3], the other f32[3,2] at `1`
        help: give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`
        the predicate is traced and the branches differ: one makes f32[2,3], the other bool[2,3] at the root
        help: give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`
    "#]]
    .assert_eq(&messages.concat());
}

#[test]
fn traced_branches_agree_in_their_implicit_types_and_static_fields() {
    let _scopes = without_handlers();
    let chosen = |operands: fn(&Array) -> [Value; 2]| {
        let mut f = compile(|(p, x): (Array, Array)| -> Result<Array> {
            cond(&p, operands(&x), |[a, _]: [Array; 2]| same(a), |[_, b]: [Array; 2]| same(b))?;
            Ok(x)
        });
        f.call((&Array::from_bool(true), matrix(2, 3)))
    };
    let messages = [
        said_of(chosen(|x| [Left::of(x), x.into()])),
        said_of(chosen(|x| [Outer::of(Left::of(x)), Outer::of(Outer::of(x.into()))])),
        said_of(chosen(|x| [Left::of(x), Left::of(&x.t())])),
    ];
    expect![[r#"
        the predicate is traced and the branches differ: one makes Left{array: *, aval=f32[2,3]}, the other *: Left -> an array at the root
        help: give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`
        the predicate is traced and the branches differ: one makes Outer{inner: Left{array: *, aval=f32[2,3]}, aval=f32[2,3]}, the other Outer{inner: Outer{inner: *, aval=f32[2,3]}, aval=f32[2,3]}: Left -> Outer at `inner`
        help: give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`
        the predicate is traced and the branches differ: one makes Left{array: *, aval=f32[2,3]}, the other Left{array: *, aval=f32[3,2]}: static aval f32[2,3] -> f32[3,2] at the root
        help: give results of one structure, shape and dtype, or decide outside `compile`, `implicit` and `vmap`
    "#]]
    .assert_eq(&messages.concat());
}

#[test]
fn the_carry_keeps_its_structure_and_its_avals() {
    let always = |_: Vec<Array>| Ok::<_, Error>(Array::from_bool(true));
    let grown = |x: Vec<Array>| Ok::<_, Error>([x.clone(), x].concat());
    said(
        while_loop(vec![matrix(2, 3)], always, grown),
        &expect![[r#"
        the body changes the carry from [*] to [*, *]: list of 1 -> list of 2 at the root
        help: return the carry with the structure, shapes and dtypes that it came with, as by `as_dtype`"#]],
    );
    let wider = |_: i32, (n, x): (Array, Array)| Ok::<_, Error>((n, x.t()));
    said(
        fori_loop(0..2, (matrix(1, 1), matrix(2, 3)), wider),
        &expect![[r#"
        the body changes the carry from f32[2,3] to f32[3,2] at `1`
        help: return the carry with the structure, shapes and dtypes that it came with, as by `as_dtype`"#]],
    );
    let promoted = |_: i32, x: Array| x.add(Array::from_f32(0.5));
    said(
        fori_loop(0..2, Array::from_int(1), promoted),
        &expect![[r#"
        the body changes the carry from i32[] to f32[] at the root
        help: return the carry with the structure, shapes and dtypes that it came with, as by `as_dtype`"#]],
    );
    let doubled = |_: i32, w: Array| w.add(&w);
    let _scopes = without_handlers();
    said(
        fori_loop(0..2, Left::of(&matrix(2, 3)), doubled),
        &expect![[r#"
            the body changes the carry from Left{array: *, aval=f32[2,3]} to *: Left -> an array at the root
            help: return the carry as it came; an implicit array that the body computes anew is dense: begin with its `dense`"#]],
    );
    let transposed = |w: Array, x: Array| Ok::<_, Error>((w.t(), x));
    said(
        scan(matrix(2, 3), matrix(2, 1), None, transposed),
        &expect![[r#"
        the body changes the carry from f32[2,3] to f32[3,2] at the root
        help: return the carry with the structure, shapes and dtypes that it came with, as by `as_dtype`"#]],
    );
}

#[test]
fn a_scan_knows_its_steps() {
    let step = |n: Array, (_, x): (Array, Vec<Array>)| Ok::<_, Error>((n, x));
    let n = || Value::from(Array::from_f32(0.0));
    let xs = |rows| (Value::from(matrix(3, 2)), vec![Left::of(&matrix(rows, 2))]);
    let messages = [
        said_of(scan(n(), xs(4), None, step)),
        said_of(scan(n(), xs(3), Some(2), step)),
        said_of(scan(n(), (n(), Vec::<Array>::new()), None, step)),
        said_of(scan(n(), xs(3), Some(-1), step)),
        said_of(scan(n(), (), None, |n: Array, (): ()| Ok::<_, Error>((n.clone(), n)))),
    ];
    expect![[r#"
        xs at `1.0` is Left(f32[4,2]), of 4 rows, and xs at `0` says 3
        help: give every array of `xs` one row for each step
        xs at `0` is f32[3,2], of 3 rows, and `length` says 2
        help: give every array of `xs` one row for each step
        xs at `0` is f32[], which has no axis to go along
        help: give every array of `xs` an axis 0 of one row for each step, or capture it
        `length` is -1
        help: give the number of steps
        `xs` holds no array, so the number of steps is not known
        help: give it as `length`
    "#]]
    .assert_eq(&messages.concat());
}

#[test]
fn a_scan_makes_the_same_in_each_step() {
    let mut steps = 0;
    let growing = |n: Array, (): ()| {
        steps += 1;
        Ok::<_, Error>((n.clone(), vec![n; steps]))
    };
    said(
        scan(matrix(1, 1), (), Some(2), growing),
        &expect![[r#"
        step 1 of the scan makes [*, *] where step 0 made [*]: list of 1 -> list of 2 at the root
        help: let every step make the same structure, shapes and dtypes"#]],
    );
    let mut rows = 0;
    let longer = |n: Array, (): ()| {
        rows += 1;
        Ok::<_, Error>((n, matrix(rows, 2)))
    };
    said(
        scan(matrix(1, 1), (), Some(3), longer),
        &expect![[r#"
        step 1 of the scan makes f32[2,2] where step 0 made f32[1,2] at the root
        help: let every step make the same structure, shapes and dtypes"#]],
    );
}

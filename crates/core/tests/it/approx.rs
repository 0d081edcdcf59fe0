//! Comparison up to rounding, by the traits of `approx`.

use approx::{AbsDiffEq, RelativeEq, UlpsEq, assert_relative_eq};
use expect_test::expect;
use mlx_rs::builder::Builder;
use mlx_rs::nn::{Dropout, DropoutBuilder};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use tacit::tree::Gradient;
use tacit::{Aval, Counters, Policy, Value};
use tacit_conformance::opaque::{Opaque, Refusing};

fn of(dtype: Dtype, elements: &[f32]) -> Value {
    Array::from_slice(elements, &[elements.len() as i32]).as_dtype(dtype).expect("casts").into()
}

#[test]
fn floats_agree_up_to_the_bound_that_is_given() {
    let (a, b) = (of(Dtype::Float32, &[1.0, -2.0]), of(Dtype::Float32, &[1.0, -2.01]));
    assert!(a.abs_diff_eq(&b, 0.02) && a.abs_diff_ne(&b, 0.005));
    assert!(a.relative_eq(&b, 0.0, 0.006) && a.relative_ne(&b, 0.0, 0.004));
    assert!(a == a.clone() && a != b);
}

#[test]
fn defaults_and_units_in_the_last_place_are_those_of_the_dtype() {
    for (dtype, unit) in
        [(Dtype::Bfloat16, 2f32.powi(-7)), (Dtype::Float16, 2f32.powi(-10)), (Dtype::Float32, f32::EPSILON)]
    {
        let (one, next, third) = (of(dtype, &[1.0]), of(dtype, &[1.0 + unit]), of(dtype, &[1.0 + 3.0 * unit]));
        assert_relative_eq!(one, next);
        assert!(one.ulps_eq(&next, 0.0, 1) && one.ulps_ne(&third, 0.0, 2) && one.ulps_eq(&third, 0.0, 3), "{dtype:?}");
        // Around zero the signs differ by the steps on both sides.
        let [below, above] = [-unit, unit].map(|x| of(dtype, &[x * 1e-3]));
        assert!(below.ulps_ne(&above, 0.0, 4) && of(dtype, &[0.0]).ulps_eq(&of(dtype, &[-0.0]), 0.0, 0), "{dtype:?}");
    }
    // The least number of f16 and zero are neighbors.
    assert!(of(Dtype::Float16, &[0.0]).ulps_eq(&of(Dtype::Float16, &[2f32.powi(-24)]), 0.0, 1));
}

#[test]
fn a_nan_equals_nothing_and_an_infinity_itself() {
    let nan = of(Dtype::Float32, &[1.0, f32::NAN]);
    assert!(
        nan != nan.clone()
            && nan.abs_diff_ne(&nan, 1.0)
            && nan.relative_ne(&nan, 1.0, 1.0)
            && nan.ulps_ne(&nan, 1.0, 9)
    );
    let infinite = of(Dtype::Float16, &[f32::INFINITY]);
    assert_relative_eq!(infinite, infinite.clone());
    assert!(infinite.relative_ne(&of(Dtype::Float16, &[1.0]), 1.0, 1.0));
}

#[test]
fn integers_are_exact_and_avals_are_equal() {
    let large = |x: i64| Value::from(Array::from_slice(&[x], &[1]));
    let int = large((1 << 53) + 1);
    assert!(int.abs_diff_eq(&int, 0.0) && int.abs_diff_ne(&large(1 << 53), 1e9));
    let flag = |x: bool| Value::from(Array::from_slice(&[x], &[1]));
    assert!(flag(true) == flag(true) && flag(true).ulps_ne(&flag(false), 1.0, 9));
    assert!(of(Dtype::Float32, &[1.0]) != of(Dtype::Bfloat16, &[1.0]));
    assert!(of(Dtype::Float32, &[1.0, 1.0]) != Value::from(Array::from_slice(&[1f32, 1.0], &[2, 1])));
}

#[test]
fn implicit_values_are_built_for_the_comparison_whatever_the_policy() {
    let _deny = Policy::Deny.scope();
    let hidden = Value::from(Opaque::new(Array::from_slice(&[1f32, 2.0], &[2])));
    let ((), counted) = Counters::during(|| assert_relative_eq!(hidden, of(Dtype::Float32, &[1.0, 2.0])));
    assert_eq!(counted, Counters::default());
    // What refuses to be built equals nothing.
    let refusing = Value::from(Refusing::new(Aval::new(&[2], Dtype::Float32)));
    assert!(refusing.abs_diff_ne(&refusing.clone(), 1.0));
}

#[test]
fn gradients_agree_child_by_child() {
    let dense = |x: f32| Gradient::Dense(Array::from_f32(x));
    let implicit = |x: f32| Gradient::Node { name: "T", children: vec![("a".to_owned(), dense(x))] };
    assert_relative_eq!(implicit(1.0), implicit(1.001), max_relative = 1e-2);
    assert!(implicit(1.0) != implicit(2.0) && implicit(1.0) != dense(1.0));
    assert!(Gradient::Nothing.ulps_eq(&Gradient::Nothing, 0.0, 0) && Gradient::Nothing.abs_diff_ne(&dense(0.0), 1.0));
}

#[test]
fn a_value_shows_its_aval_and_first_elements() {
    let ints = Value::from(Array::from_slice(&[1i32, 2, 3], &[3, 1]));
    let hidden = Value::from(Opaque::new(Array::from_slice(&[1f32, 2.0], &[2])));
    let long = of(Dtype::Float16, &[0.5, -1.0, 2.0, f32::NAN, f32::INFINITY, 6.0, 7.0]);
    let empty = of(Dtype::Float32, &[]);
    expect![[r#"
        f16[7] [0.5, -1, 2, NaN, inf, 6, ..]
        i32[3,1] [1, 2, 3]
        Opaque(f32[2])
        f32[0] []"#]]
    .assert_eq(&format!("{long:?}\n{ints:?}\n{hidden:?}\n{empty:?}"));
}

#[test]
fn a_value_shows_numbers_that_no_other_dtype_has() -> tacit::Result<()> {
    let unsigned = Value::from(Array::from_slice(&[1u64 << 63, u64::MAX], &[2]));
    let wide = Value::from(Array::from_slice_f64(&[1e300, -0.5, 1e-300], &[3]));
    // What a file holds may begin at any byte.
    let bytes = [&[0][..], &2.5f32.to_ne_bytes()[..], &(-1f32).to_ne_bytes()[..]].concat();
    let bytes = Array::from_slice(&bytes, &[9]).try_index(1..)?;
    let unaligned = Value::from(bytes.view_dtype(Dtype::Float32)?);
    expect![[r#"
        u64[2] [9223372036854775808, 18446744073709551615]
        f64[3] [1e300, -0.5, 1e-300]
        f32[2] [2.5, -1]"#]]
    .assert_eq(&format!("{unsigned:?}\n{wide:?}\n{unaligned:?}"));
    Ok(())
}

#[test]
fn equality_is_of_what_is_stored_and_builds_nothing() {
    let _deny = Policy::Deny.scope();
    let stored = |elements: &[f32]| Value::from(Opaque::new(Array::from_slice(elements, &[2])));
    let (equal, counted) = Counters::during(|| stored(&[1.0, 2.0]) == stored(&[1.0, 2.0]));
    assert!(equal && stored(&[1.0, 2.0]) != stored(&[1.0, 3.0]));
    assert_eq!(counted, Counters::default());
    // Equal numbers that are stored in another way are compared by `approx`.
    assert!(stored(&[1.0, 2.0]) != of(Dtype::Float32, &[1.0, 2.0]));
    assert!(
        Value::from(Refusing::new(Aval::new(&[2], Dtype::Float32)))
            == Value::from(Refusing::new(Aval::new(&[2], Dtype::Float32)))
    );
}

#[test]
fn errors_of_builders_are_errors_of_tacit() {
    let dropout = || -> tacit::Result<Dropout> { Ok(DropoutBuilder::new().p(2.0).build()?) };
    expect!["Dropout probability must be in the range [0, 1)"]
        .assert_eq(&dropout().expect_err("2 is none").to_string());
}

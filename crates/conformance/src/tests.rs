use std::slice::from_ref;

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit_core::primitives::{Hadamard, Negative, Sort, Tanh};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler};

use crate::opaque::Opaque;

use crate::{
    Report, Subject, captures, coverage, extents, failures, gradients, handlers, memory, pairs, structure, surface,
    types_without_a_subject, values,
};

/// A type of which everything is wrong: each part of the suite must say so.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "testing.Wrong")]
struct Wrong {
    array: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Wrong {
    /// An array of another shape than it says: it can be made, and not be built.
    fn misshapen(x: &Array) -> Result<Self> {
        Ok(Self { array: ops::flatten(x, None, None)?, aval: Aval::from(x) })
    }

    fn new(x: &Array) -> Result<Self> {
        if x.ndim() != 2 {
            return Err(Error::invalid("it is no matrix", "give a matrix"));
        }
        Ok(Self { array: x.clone(), aval: Aval::from(x) })
    }
}

impl Materialize for Wrong {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

/// Wrong in value.
#[handler]
fn wrong_negative(_op: &Negative, w: &Wrong) -> Result<Array> {
    Ok(w.array.clone())
}

/// It panics.
#[handler]
fn wrong_tanh(_op: &Tanh, w: &Wrong) -> Result<Array> {
    panic!("no tanh of {}", w.aval)
}

/// Never reached, as it declines.
#[handler]
fn wrong_sort(_op: &Sort, _w: &Wrong) -> Result<Array> {
    Err(Error::decline("it is not sorted"))
}

/// There are no calls of its primitive.
#[handler]
fn wrong_hadamard(_op: &Hadamard, w: &Wrong) -> Result<Array> {
    Ok(w.array.clone())
}

fn wrong() -> Subject {
    Subject::new("wrong", Wrong::new)
}

fn opaque() -> Subject {
    Subject::new("opaque", |x| Ok(Opaque::new(x.clone()))).within(0.0).exact_zero()
}

/// The first words of each finding.
fn headlines(report: &Report) -> String {
    let lines = report.findings().iter().map(|finding| finding.split(", in Case").next().unwrap_or_default());
    lines.map(|line| line.lines().next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_type_without_handlers_passes() {
    let all = [opaque()];
    for part in [surface, handlers, extents, gradients, captures, failures, memory, values, structure] {
        part(&all[0]).expect_clean();
    }
    pairs(&all[0], &all).expect_clean();
    coverage(&all).expect_clean();
}

#[test]
fn wrong_values_and_panics_are_found() {
    let report = handlers(&wrong());
    expect![[r#"
        Negative: Negative: Negative on Wrong(f32[6,10]): output 0 has the relative error 2.000e0, above 1.0e-5: at [1, 3] it is -2.886361, expected 2.886361
        Negative: Negative: Negative on Wrong(f32[1,1]): output 0 has the relative error 2.000e0, above 1.0e-5: at [0, 0] it is -1.1842842, expected 1.1842842
        Tanh: Tanh: panicked: no tanh of f32[6,10]
        Tanh: Tanh: panicked: no tanh of f32[1,1]"#]]
    .assert_eq(&headlines(&report));
    assert!(surface(&wrong()).findings().iter().any(|finding| finding.starts_with("negative")));
}

#[test]
fn handlers_that_no_call_reaches_are_found() {
    // Other tests of this crate register handlers too.
    let of_wrong = |report: &Report| {
        let report = headlines(report);
        let lines = report.lines().filter_map(|line| {
            let (name, rest) = line.split_once(" (")?;
            let (_, what) = rest.split_once("): ")?;
            name.starts_with("wrong_").then(|| format!("{name}: {what}"))
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        wrong_tanh: no call of the suite reaches it: it takes tanh of Wrong
        wrong_sort: no call of the suite reaches it: it takes sort of Wrong
        wrong_hadamard: there are no calls of Hadamard: write a generator"#]]
    .assert_eq(&of_wrong(&coverage(&[wrong()])));
    let elsewhere = headlines(&coverage(&[wrong().elsewhere(&["wrong_sort", "wrong_order"])]));
    assert!(elsewhere.contains("wrong: there is no handler wrong_order to try elsewhere"), "{elsewhere}");
    assert!(!elsewhere.contains("wrong_sort"), "{elsewhere}");
    expect![[r#"
        wrong_negative: it names a type without a subject: give the suite a line for it
        wrong_tanh: it names a type without a subject: give the suite a line for it
        wrong_sort: it names a type without a subject: give the suite a line for it
        wrong_hadamard: it names a type without a subject: give the suite a line for it"#]]
    .assert_eq(&of_wrong(&types_without_a_subject(&[opaque()])));
}

#[test]
fn types_of_others_are_not_reported() {
    coverage(&[opaque()]).expect_clean();
}

#[test]
fn what_is_not_as_claimed_is_found() {
    let claims = opaque().refuses_non_finite().thresholds(&[0.5]);
    assert!(
        values(&claims).findings().iter().any(|finding| finding == "NaN at 0: it is not refused, expected an error")
    );
    let far = Subject::new("far", |x: &Array| Ok(Opaque::new(x.add(Array::from_f32(0.5))?))).within(0.1).exact_zero();
    expect![[r#"
        zeros: element 0 is 5e-1, made of 0e0 where the largest is 0e0, expected an exact 0
        negative zeros: element 0 is 5e-1, made of -0e0 where the largest is 0e0, expected an exact 0
        a constant: element 0 is 8.7e-1, made of 3.7e-1 where the largest is 3.700000047683716e-1, expected 3.7e-2 off at most
        a negative constant: element 0 is 1.3e-1, made of -3.7e-1 where the largest is 3.700000047683716e-1, expected 3.7e-2 off at most
        negatives: element 0 is -5e-1, made of -1e0 where the largest is 1.9999902248382568e0, expected 2.0e-1 off at most
        positives: element 0 is 1.5e0, made of 1e0 where the largest is 1.9999902248382568e0, expected 2.0e-1 off at most
        one tiny: element 0 is 1.5e0, made of 1e0 where the largest is 1e0, expected 1.0e-1 off at most
        all tiny: element 0 is 5e-1, made of 1e-30 where the largest is 1.0000000031710769e-30, expected 1.0e-31 off at most
        subnormals: element 0 is 5e-1, made of 1e-40 where the largest is 9.99994610111476e-41, expected 1.2e-38 off at most
        normal Float32: element 0 is 6.576565e-2, made of -4.3423435e-1 where the largest is 2.8134310245513916e0, expected 2.8e-1 off at most
        normal Bfloat16: it is f32[6,10], expected bf16[6,10]
        normal Float16: it is f32[6,10], expected f16[6,10]
        Int32: it is f32[6,10], expected i32[6,10]
        Bool: it is f32[6,10], expected bool[6,10]
        Uint8: it is f32[6,10], expected u8[6,10]"#]]
    .assert_eq(&headlines(&values(&far)));
    let coarse = Subject::new("coarse", |x: &Array| Ok(Opaque::new(ops::round(x, None)?))).thresholds(&[0.25, 0.5]);
    expect!["around 0.25: [0.24999999, 0.25, 0.25000003] decode to 0, 0, 0, expected to rise in one step"]
        .assert_eq(&headlines(&values(&coarse)));
}

#[test]
fn an_aval_that_is_not_the_built_one_is_found() {
    let misshapen = Subject::new("misshapen", Wrong::misshapen);
    let first_shape: Vec<String> = headlines(&structure(&misshapen)).lines().take(5).map(str::to_owned).collect();
    expect![[r#"
        the aval of f32[2,3]: f32[6] has the aval f32[6], expected f32[2,3]
        the children of f32[2,3]: testing.Wrong says that it is f32[2,3] and materializes to f32[6]
        a clone of f32[2,3]: testing.Wrong says that it is f32[2,3] and materializes to f32[6]
        a stored copy of f32[2,3]: testing.Wrong says that it is f32[2,3] and materializes to f32[6]
        another thread of f32[2,3]: testing.Wrong says that it is f32[2,3] and materializes to f32[6]"#]]
    .assert_eq(&first_shape.join("\n"));
    assert!(!pairs(&misshapen, from_ref(&misshapen)).findings().is_empty());
}

#[test]
fn a_subject_that_is_never_made_is_found() {
    let none = Subject::new("none", |_: &Array| Err::<Value, _>(Error::invalid("never", "never")));
    for report in [handlers(&none), values(&none), structure(&none), pairs(&none, from_ref(&none))] {
        assert!(!report.findings().is_empty(), "{report}");
    }
    let report = Report::new("nothing");
    assert!(std::panic::catch_unwind(|| report.expect_clean()).is_err(), "nothing was compared");
}

#[test]
fn numbers_that_no_f32_tells_apart_are_not_close() {
    let differ = |found: Array, expected: Array| {
        assert!(crate::oracle::relative_error(&found, &expected).expect("compares") > 0.0, "{found} and {expected}");
        let difference = crate::close(&found, &expected, 0.0).expect_err("they differ").to_string();
        crate::close(&expected, &expected, 0.0).expect("it is itself");
        difference
    };
    let f64s = |x: f64| Array::from_slice_f64(&[x], &[1]);
    for (a, b) in [(1e300, 2e300), (1.0 + 1e-9, 1.0), (1e-60, 5e-50)] {
        differ(f64s(a), f64s(b));
    }
    let ints = |x: i32| Array::from_slice(&[x], &[1]);
    expect!["i32[1] is not close to i32[1]: at [0] it is 16777217.0 and not 16777216.0, 1.0e0 off where 0.0e0 is granted; so is 1 of 1 elements"]
        .assert_eq(&differ(ints(16_777_217), ints(16_777_216)));
    differ(Array::from_slice(&[u32::MAX], &[1]), Array::from_slice(&[u32::MAX - 255], &[1]));
    differ(Array::from_slice(&[i64::MAX], &[1]), Array::from_slice(&[i64::MAX - 1], &[1]));
    differ(Array::from_slice(&[u64::MAX], &[1]), Array::from_slice(&[u64::MAX - 1], &[1]));
}

//! Special numbers: zeros, huge, tiny and subnormal ones, NaN and infinities.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Aval;

use crate::call::{bits_equal, dense, text};
use crate::case::{Case, Layout};
use crate::device::is_gpu;
use crate::elements::floats;
use crate::report::Report;
use crate::shape::Shapes;
use crate::subject::Subject;

/// Makes the subject of zeros, constants, huge, tiny and subnormal numbers, NaN and infinities, empty arrays and views.
///
/// What it materializes to must be finite, as near to the original as is claimed, and the same for a view as for its
/// copy. A subject may also refuse: never with a panic, and never normal numbers. Finite numbers in the place of NaN are
/// a finding.
#[must_use]
pub fn values(subject: &Subject) -> Report {
    let mut report = Report::new(format!("values of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    let shape = shapes.plain();
    for (name, value) in FINITE {
        report.compare(name, || finite(subject, &filled(&shape, value)));
    }
    for dtype in &shapes.dtypes {
        let normal = Case { dense: *dtype, ..Case::plain(&shapes) }.array(&shape, 7);
        report.compare(format_args!("normal {dtype:?}"), || {
            subject.make(&normal).map_err(text)?;
            finite(subject, &normal)
        });
    }
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let size = shape.iter().product::<i32>() as usize;
        for at in [0, size / 2, size - 1] {
            let x = filled(&shape, |i| if i == at { special } else { (i as f32 * 0.7).sin() });
            report.compare(format_args!("{special} at {at}"), || non_finite(subject, &x));
        }
    }
    for layout in [Layout::Columns, Layout::Strided, Layout::Broadcast] {
        let view = Case { layout, ..Case::plain(&shapes) }.array(&shape, 3);
        report.compare(format_args!("a view in {layout:?}"), || as_its_copy(subject, &view));
    }
    for axis in 0..shape.len() {
        let mut empty = shape.clone();
        empty[axis] = 0;
        report.compare(format_args!("no elements, {empty:?}"), || refused_or_kept(subject, &empty, Dtype::Float32));
    }
    for dtype in [Dtype::Int32, Dtype::Bool, Dtype::Uint8, Dtype::Complex64] {
        report.compare(format_args!("{dtype:?}"), || refused_or_kept(subject, &shape, dtype));
    }
    report.compare("a scalar", || refused_or_kept(subject, &[], Dtype::Float32));
    for &threshold in &subject.thresholds {
        report.compare(format_args!("around {threshold}"), || around(subject, &shapes, threshold));
    }
    report
}

type Element = fn(usize) -> f32;

/// Finite numbers by their place.
const FINITE: [(&str, Element); 12] = [
    ("zeros", |_| 0.0),
    ("negative zeros", |_| -0.0),
    ("a constant", |_| 0.37),
    ("a negative constant", |_| -0.37),
    ("negatives", |i| -1.0 - (i as f32).sin().abs()),
    ("positives", |i| 1.0 + (i as f32).sin().abs()),
    ("mixed signs", |i| if i % 2 == 0 { 1.0 } else { -1.0 } * (1.0 + i as f32)),
    ("one huge", |i| if i == 1 { 1e30 } else { (i as f32).cos() }),
    ("one tiny", |i| if i == 1 { 1e-30 } else { (i as f32).cos() }),
    ("all tiny", |i| 1e-30 * (i as f32).cos()),
    ("subnormals", |i| 1e-40 * (i as f32).cos()),
    ("the greatest", |i| if i % 3 == 0 { f32::MAX } else { -f32::MAX }),
];

fn filled(shape: &[i32], element: impl Fn(usize) -> f32) -> Array {
    let size = shape.iter().product::<i32>() as usize;
    Array::from_slice(&(0..size).map(element).collect::<Vec<_>>(), shape)
}

/// The subject refuses the numbers, or decodes them to finite ones nearby.
fn finite(subject: &Subject, x: &Array) -> Result<(), String> {
    let Ok(value) = subject.make(x) else { return Ok(()) };
    let numbers = floats(x).map_err(text)?;
    let largest = f64::from(numbers.iter().fold(0f32, |most, x| most.max(x.abs())));
    let overflows = subject.overflows.is_some_and(|from| largest > from);
    let decoded = match dense(&value) {
        Err(_) if overflows => return Ok(()),
        decoded => decoded?,
    };
    let (aval, expected) = (Aval::from(&decoded), Aval::from(x));
    if aval != expected {
        return Err(format!("it is {aval}, expected {expected}"));
    }
    let (decoded, x) = (floats(&decoded).map_err(text)?, numbers);
    // Scales, and what they scale, are rounded to the dtype once each.
    let rounding = match expected.dtype {
        Dtype::Bfloat16 => 2f64.powi(-7),
        Dtype::Float16 => 2f64.powi(-10),
        _ => 2f64.powi(-22),
    };
    let overflown = |decoded: f32| overflows && !decoded.is_finite();
    for (i, (&decoded, &x)) in decoded.iter().zip(&x).enumerate() {
        let error = (f64::from(decoded) - f64::from(x)).abs();
        let near = subject.bound.is_none_or(|bound| error <= (bound + rounding) * largest + subject.floor);
        let zero = x != 0.0 || decoded == 0.0 || !subject.exact_zero;
        if overflown(decoded) || decoded.is_finite() && (subject.ignores_values || near && zero) {
            continue;
        }
        let expected = match subject.bound {
            Some(bound) if zero => format!("{:.1e} off at most", (bound + rounding) * largest + subject.floor),
            Some(_) => "an exact 0".to_owned(),
            None => "a finite number".to_owned(),
        };
        return Err(format!(
            "element {i} is {decoded:e}, made of {x:e} where the largest is {largest:e}, expected {expected}"
        ));
    }
    Ok(())
}

/// Refused, or each NaN and infinity is still there; a NaN beside them is no garbage either.
fn non_finite(subject: &Subject, x: &Array) -> Result<(), String> {
    if subject.ignores_values {
        return finite(subject, x);
    }
    let decoded = subject.make(x).map_err(text).and_then(|value| dense(&value));
    let Ok(decoded) = decoded else { return Ok(()) };
    // What a GPU encodes cannot fail.
    if subject.refuses_non_finite && !is_gpu() {
        return Err("it is not refused, expected an error".to_owned());
    }
    for (i, (decoded, x)) in floats(&decoded).map_err(text)?.iter().zip(floats(x).map_err(text)?).enumerate() {
        #[allow(clippy::float_cmp, reason = "equal infinities")]
        if !x.is_finite() && !decoded.is_nan() && *decoded != x {
            return Err(format!("element {i} is {decoded:e}, made of {x}, expected {x}, a NaN or a refusal"));
        }
    }
    Ok(())
}

fn as_its_copy(subject: &Subject, view: &Array) -> Result<(), String> {
    let copy = Array::from_slice(&floats(view).map_err(text)?, view.shape());
    let [of_view, of_copy] = [view, &copy].map(|x| subject.make(x).map_err(text).and_then(|value| dense(&value)));
    bits_equal(&of_view?, &of_copy?)
}

/// An error, or an array of the same aval.
fn refused_or_kept(subject: &Subject, shape: &[i32], dtype: Dtype) -> Result<(), String> {
    let x = ops::ones_dtype(shape, dtype).map_err(text)?;
    let Ok(value) = subject.make(&x) else { return Ok(()) };
    let (aval, expected) = (Aval::from(&dense(&value)?), Aval::from(&x));
    if aval == expected { Ok(()) } else { Err(format!("it is {aval}, expected {expected}")) }
}

/// The code changes at `threshold`, and decoding never falls where the original rises.
fn around(subject: &Subject, shapes: &Shapes, threshold: f32) -> Result<(), String> {
    let near = [threshold.next_down(), threshold, threshold.next_up()];
    let x = filled(&shapes.plain(), |i| if i == 0 { 1.0 } else { near.get(i - 1).copied().unwrap_or(0.0) });
    let decoded = floats(&dense(&subject.make(&x).map_err(text)?)?).map_err(text)?;
    let (below, at, above) = (decoded[1], decoded[2], decoded[3]);
    #[allow(clippy::float_cmp, reason = "a code decodes to one number")]
    if below < above && (at == below || at == above) {
        return Ok(());
    }
    Err(format!("{near:?} decode to {below}, {at}, {above}, expected to rise in one step"))
}

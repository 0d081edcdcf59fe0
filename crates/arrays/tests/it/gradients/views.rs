//! A case for the gradient of each handler of a view.

use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::kernel::hadamard;
use tacit_arrays::{
    ActivationGranularity, Batched, Cast, Concat, Int8Inputs, Observed, Repeated, Rotated, Scaled, ScaledChannels,
    Sliced, Stacked, Transposed,
};
use tacit_core::__private::open;
use tacit_core::{ImplicitArray, Result, Value};

use super::{Case, Expected, Plain, case};
use crate::operands::{affine, mxfp4, nf4, normal, normal_of};

const ROWS: i32 = 4;
const COLUMNS: i32 = 64;

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

fn weight() -> Array {
    normal(2, &[ROWS, COLUMNS])
}

/// The dense array of a view in `f64` plain ops; `rebuilt` makes that of each child.
pub(super) fn rebuilt(value: &Value, mut rebuilt: impl FnMut(&Value) -> Result<Array>) -> Option<Result<Array>> {
    if let Some(cast) = value.downcast::<Cast>() {
        // `f64` holds what is cast.
        return Some(rebuilt(cast.inner()));
    }
    if let Some(observed) = value.downcast::<Observed>() {
        return Some(rebuilt(observed.inner()));
    }
    if let Some(array) = value.downcast::<ScaledChannels>() {
        let inner = rebuilt(array.inner());
        let factors = rebuilt(&array.factors().into());
        return Some(inner.and_then(|inner| {
            let mut shape = vec![1; inner.ndim()];
            shape[array.axis()] = -1;
            Ok(inner.multiply(factors?.reshape(&shape)?)?)
        }));
    }
    if let Some(array) = value.downcast::<Rotated>() {
        // By the matrix, which is exact enough in `f32`.
        let (axis, last) = (array.axis() as i32, array.aval().ok()?.shape.len() as i32 - 1);
        return Some(rebuilt(array.inner()).and_then(|inner| {
            let h = hadamard(&ops::eye::<f32>(inner.dim(axis), None, None)?)?.as_dtype(inner.dtype())?;
            Ok(inner.swap_axes(axis, last)?.matmul(h)?.swap_axes(axis, last)?)
        }));
    }
    let view = value.downcast::<Batched>().is_some()
        || value.downcast::<Concat>().is_some()
        || value.downcast::<Repeated>().is_some()
        || value.downcast::<Scaled>().is_some()
        || value.downcast::<Sliced>().is_some()
        || value.downcast::<Stacked>().is_some()
        || value.downcast::<Transposed>().is_some();
    let Value::Implicit(array) = value else { return None };
    view.then(|| {
        let children = array.children().iter().map(|(_, child)| Ok(rebuilt(child)?.into())).collect::<Result<_>>()?;
        open(&*array.with_children(children)?)?.dense()
    })
}

/// The four products of a view of `ROWS` rows and `COLUMNS` columns.
fn products(w: &Value) -> Vec<Case> {
    let (wide, tall) = (x(&[2, COLUMNS]), x(&[COLUMNS, 2]));
    // The views transposed are views themselves, but for the one that is a turn.
    let right: Plain = |a| Ok(a[0].matmul(a[1].t())?);
    let left: Plain = |a| Ok(a[1].matmul(&a[0])?);
    let sum: Plain = |a| Ok(ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?);
    let sum_left: Plain = |a| Ok(ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?);
    vec![
        case("linear_matmul", vec![wide.clone(), w.clone()], right),
        case("linear_matmul_left", vec![tall.clone(), w.clone()], left),
        case("linear_addmm", vec![wide, w.clone(), x(&[ROWS])], sum),
        case("linear_addmm_left", vec![tall, w.clone(), x(&[ROWS, 2])], sum_left),
    ]
}

fn transposed() -> Vec<Case> {
    let w = || Value::from(Transposed::new(nf4(&weight(), 32), &[1, 0]).expect("a matrix"));
    let mut cases = super::structured::products(w);
    cases.extend([
        case("linear_transpose", vec![w(), x(&[ROWS, COLUMNS])], |a| Ok(a[0].t().multiply(&a[1])?)),
        narrow("linear_astype", w(), &[COLUMNS, ROWS]),
    ]);
    cases
}

fn scaled() -> Vec<Case> {
    let w = || Value::from(Scaled::new(nf4(&weight(), 32), &Array::from_f32(0.75)).expect("fits"));
    let number = || Value::from(Array::from_f32(0.75));
    let mut cases = products(&w());
    cases.extend([
        case("view_moving", vec![w(), rows()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
        case("scaled_sum", vec![w()], |a| Ok(a[0].sum_axes(&[0], false)?)),
        case("scaled_add", vec![w(), x(&[ROWS, COLUMNS])], |a| Ok(a[0].add(&a[1])?)),
        case("linear_negative", vec![w(), x(&[COLUMNS, 2])], |a| Ok(a[0].negative()?.matmul(&a[1])?)),
        narrow("linear_astype", w(), &[ROWS, COLUMNS]),
        case("linear_multiply", vec![mxfp4(&weight()), number(), x(&[COLUMNS, 2])], |a| {
            Ok(a[0].multiply(&a[1])?.matmul(&a[2])?)
        }),
        case("linear_divide", vec![mxfp4(&weight()), number(), x(&[COLUMNS, 2])], |a| {
            Ok(a[0].divide(&a[1])?.matmul(&a[2])?)
        }),
    ]);
    cases
}

fn rotated() -> Vec<Case> {
    let w = || Value::from(Rotated::new(nf4(&weight(), 32), -1).expect("rotates"));
    let mut cases = products(&w());
    cases.extend([
        case("linear_matmul", vec![x(&[2, ROWS]), w()], |a| Ok(a[0].matmul(&a[1])?)),
        case("linear_matmul_left", vec![x(&[ROWS, 2]), w()], |a| Ok(a[1].t().matmul(&a[0])?)),
        case("view_moving", vec![w(), rows()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
        case("view_moving", vec![w(), x(&[COLUMNS, ROWS])], |a| Ok(a[0].t().multiply(&a[1])?)),
        // Of what quantizes nothing that is written.
        case("rotated_update", vec![Rotated::new(weight(), -1).expect("rotates").into(), x(&[1, COLUMNS])], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((1..2, ..), &a[1])?;
            Ok(w)
        }),
        case("rotated_concatenate", vec![w(), w(), x(&[COLUMNS, 2])], |a| {
            Ok(ops::concatenate(&a[..2], 0)?.matmul(&a[2])?)
        }),
        narrow("linear_astype", w(), &[ROWS, COLUMNS]),
    ]);
    cases
}

fn concat() -> Vec<Case> {
    let w = || {
        let parts = vec![nf4(&normal(2, &[3, COLUMNS]), 32), affine(&normal(3, &[1, COLUMNS]), 32, 4)];
        Value::from(Concat::new(parts, 0).expect("fits"))
    };
    let wide = || {
        let parts = vec![nf4(&normal(2, &[ROWS, 32]), 32), affine(&normal(3, &[ROWS, 32]), 32, 4)];
        Value::from(Concat::new(parts, 1).expect("fits"))
    };
    let mut cases = products(&w());
    cases.extend(products(&wide()));
    cases.extend([
        case("linear_transpose", vec![w(), x(&[COLUMNS, ROWS])], |a| Ok(a[0].t().multiply(&a[1])?)),
        narrow("linear_astype", w(), &[ROWS, COLUMNS]),
        case("cut_slice", vec![w(), x(&[COLUMNS, 2])], |a| Ok(a[0].try_index(..3)?.matmul(&a[1])?)),
        case("concat_split", vec![w(), x(&[COLUMNS, 2])], |a| {
            let parts = a[0].split_at_indices(&[3], 0)?;
            Ok(ops::concatenate(&[parts[1].matmul(&a[1])?, parts[0].matmul(&a[1])?], 0)?)
        }),
        case("concat_reshape", vec![x(&[1, 2, COLUMNS]), w()], |a| {
            Ok(a[0].matmul(a[1].expand_dims(0)?.swap_axes(1, 2)?)?)
        }),
        case("concat_broadcast", vec![x(&[3, 2, COLUMNS]), w()], |a| {
            Ok(a[0].matmul(ops::broadcast_to(&a[1], &[3, ROWS, COLUMNS])?.swap_axes(1, 2)?)?)
        }),
        case("linear_gather", vec![w(), rows()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
        case("linear_gather", vec![wide(), rows()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
    ]);
    cases
}

fn stacked() -> Vec<Case> {
    let expert = |seed| normal(seed, &[ROWS, COLUMNS]);
    let w = || Value::from(Stacked::new(vec![nf4(&expert(2), 32), affine(&expert(3), 32, 4)]).expect("fits"));
    let wide = || x(&[2, 3, COLUMNS]);
    let tall = || x(&[2, COLUMNS, 3]);
    vec![
        case("linear_matmul", vec![wide(), w()], |a| Ok(a[0].matmul(a[1].swap_axes(1, 2)?)?)),
        case("linear_matmul_left", vec![tall(), w()], |a| Ok(a[1].matmul(&a[0])?)),
        case("linear_addmm", vec![wide(), w(), x(&[2, 3, ROWS])], |a| {
            Ok(ops::addmm(&a[2], &a[0], a[1].swap_axes(1, 2)?, 0.5, -2.0)?)
        }),
        case("linear_addmm_left", vec![tall(), w(), x(&[2, ROWS, 3])], |a| {
            Ok(ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?)
        }),
        case("linear_transpose", vec![w(), x(&[2, COLUMNS, ROWS])], |a| Ok(a[0].swap_axes(1, 2)?.multiply(&a[1])?)),
        narrow("linear_astype", w(), &[2, ROWS, COLUMNS]),
        case("cut_slice", vec![w(), x(&[1, COLUMNS, 2])], |a| Ok(a[0].try_index(1..)?.matmul(&a[1])?)),
        case("stacked_squeeze", vec![w(), x(&[COLUMNS, 2])], |a| {
            Ok(a[0].try_index(1..)?.squeeze_axes(&[0])?.matmul(&a[1])?)
        }),
        case("linear_gather_mm", vec![x(&[3, 1, COLUMNS]), w()], |a| chosen(&a[0], a[1].swap_axes(1, 2)?)),
        case("linear_gather_mm", vec![x(&[3, 1, ROWS]), experts()], |a| chosen(&a[0], a[1].clone())),
        case("linear_gather_mm", vec![x(&[3, 1, ROWS]), observed()], |a| chosen(&a[0], a[1].clone())),
        case("linear_gather_mm", vec![x(&[3, 1, ROWS]), scaled_experts(1)], |a| chosen(&a[0], a[1].clone())),
        case("linear_gather_mm", vec![x(&[3, 1, ROWS]), scaled_experts(2)], |a| chosen(&a[0], a[1].clone())),
        case("int8_inputs_moving", vec![eight_bits(&[COLUMNS, ROWS]), rows()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
        // Of numbers that no rounding changes; that of `x` goes straight through, and has no differences.
        case("int8_inputs_product", vec![eight_bits(&[2, ROWS, 6])], |a| {
            chosen(&whole(&[3, 1, ROWS], a[0].dtype())?, a[0].clone())
        }),
        case("int8_inputs_product", vec![eight_bits(&[4, 3, 2])], |a| {
            convolved(&whole(&[1, 5, 2], a[0].dtype())?, &a[0])
        }),
    ]
}

/// A weight beside which activations are rounded to 8 bits.
fn eight_bits(shape: &[i32]) -> Value {
    Int8Inputs::new(normal(21, shape), ActivationGranularity::Tensor).expect("a float array").into()
}

/// Whole numbers up to 127.
fn whole(shape: &[i32], dtype: Dtype) -> Result<Array> {
    let size: i32 = shape.iter().product();
    let numbers = (0..size).map(|at| (127 - at * 37 % 200) as f32);
    Ok(Array::from_iter(numbers, shape).as_dtype(dtype)?)
}

/// A convolution of `x: [1, 5, c]` with three places.
fn convolved(x: &Array, w: &Array) -> Result<Array> {
    if w.dtype() != Dtype::Float64 {
        return Ok(ops::conv1d(x, w, None, None, None, None)?);
    }
    // Which MLX has for no `f64`.
    let places = (0..3).map(|at| Ok(x.try_index((.., at..at + 3))?.matmul(w.try_index((.., at))?.t())?));
    let places: Vec<Array> = places.collect::<Result<_>>()?;
    Ok(places[0].add(&places[1])?.add(&places[2])?)
}

/// Experts whose inputs, or results, are scaled.
fn scaled_experts(axis: i32) -> Value {
    let experts = experts();
    let extent = experts.aval().expect("known").shape[axis as usize];
    Value::from(ScaledChannels::new(experts, &normal(9, &[extent]), axis).expect("fits"))
}

/// The same, no longer observed: while they are, a gradient is an error.
fn observed() -> Value {
    let experts = Observed::new(experts()).expect("floats");
    assert!(experts.finish().is_err(), "nothing was multiplied");
    experts.into()
}

/// Two experts that are packed as one array.
fn experts() -> Value {
    nf4(&normal(4, &[2, ROWS, COLUMNS]), 32)
}

/// The products of matrices with experts that an index chooses; MLX's own knows no `f64`.
fn chosen(x: &Array, experts: Array) -> Result<Array> {
    let index = Array::from_slice(&[1u32, 0, 1], &[3]);
    if x.dtype() == Dtype::Float64 {
        return Ok(x.matmul(experts.take_axis(&index, 0)?)?);
    }
    Ok(ops::gather_mm(x, experts, None, &index, None)?)
}

fn sliced() -> Vec<Case> {
    let inner = || nf4(&normal(2, &[ROWS + 1, COLUMNS]), 32);
    let w = || Value::from(Sliced::new(inner(), &[1, 0], &[ROWS + 1, COLUMNS]).expect("fits"));
    let mut cases = products(&w());
    cases.extend([
        case("sliced_slice", vec![w(), x(&[COLUMNS, 2])], |a| Ok(a[0].try_index(1..)?.matmul(&a[1])?)),
        case("linear_transpose", vec![w(), x(&[COLUMNS, ROWS])], |a| Ok(a[0].t().multiply(&a[1])?)),
        narrow("linear_astype", w(), &[ROWS, COLUMNS]),
        case("linear_gather", vec![w(), rows()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
    ]);
    cases
}

/// The weights are f16 and so the differences see its rounding.
fn cast() -> Vec<Case> {
    let inner = || nf4(&normal_of(Dtype::Float16, 2, &[ROWS, COLUMNS]), 32);
    let w = || Value::from(Cast::new(inner(), Dtype::Float32).expect("floats"));
    let inner = affine(&normal_of(Dtype::Float16, 2, &[ROWS, COLUMNS]), 32, 4);
    let by_affine = Value::from(Cast::new(inner, Dtype::Float32).expect("floats"));
    let mut cases = products(&w());
    cases.extend(products(&by_affine));
    cases.extend([
        case("view_moving", vec![w(), x(&[COLUMNS, ROWS])], |a| Ok(a[0].t().multiply(&a[1])?)),
        case("view_moving", vec![w(), x(&[2, COLUMNS])], |a| Ok(a[0].try_index(1..3)?.multiply(&a[1])?)),
        case("view_moving", vec![w(), rows()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
        narrow("linear_astype", w(), &[ROWS, COLUMNS]),
    ]);
    cases.into_iter().map(|case| Case { expected: Expected::Differences(2e-3), ..case }).collect()
}

fn rows() -> Value {
    Array::from_slice(&[3i32, 0, 3], &[3]).into()
}

/// A cast to f16, whose rounding the differences see.
fn narrow(handler: &'static str, w: Value, shape: &[i32]) -> Case {
    let f: Plain = |a| Ok(crate::gradients::narrowed(&a[0])?.multiply(&a[1])?);
    Case { expected: Expected::Differences(2e-3), ..case(handler, vec![w, x(shape)], f) }
}

/// Three entries of two matrices.
fn batched() -> Vec<Case> {
    let w = |transposed| Value::from(Batched::new(experts(), &[3], vec![1, 0, 1], transposed).expect("fits"));
    let (wide, tall) = (|| x(&[3, 2, COLUMNS]), || x(&[3, COLUMNS, 2]));
    let right: Plain = |a| Ok(a[0].matmul(&a[1])?);
    let left: Plain = |a| Ok(a[1].matmul(&a[0])?);
    vec![
        case("scores_of", vec![wide(), w(true)], right),
        case("linear_matmul", vec![x(&[3, 2, ROWS]), w(false)], right),
        case("linear_matmul_left", vec![tall(), w(false)], left),
        case("linear_matmul_left", vec![x(&[3, ROWS, 2]), w(true)], left),
        case("batched_reshape", vec![wide(), w(true)], |a| Ok(a[0].expand_dims(0)?.matmul(a[1].expand_dims(0)?)?)),
        case("linear_broadcast", vec![x(&[2, 3, 2, COLUMNS]), w(true)], |a| {
            Ok(a[0].matmul(ops::broadcast_to(&a[1], &[2, 3, COLUMNS, ROWS])?)?)
        }),
        case("linear_broadcast", vec![x(&[3, 2, 2, ROWS]), experts()], |a| {
            Ok(a[0].matmul(ops::broadcast_to(&a[1], &[3, 2, ROWS, COLUMNS])?)?)
        }),
        case("linear_transpose", vec![wide(), w(false)], |a| Ok(a[0].matmul(a[1].swap_axes(1, 2)?)?)),
        case("batched_slice", vec![x(&[2, 2, COLUMNS]), w(true)], |a| {
            Ok(a[0].matmul(a[1].try_index((1.., .., 1..3))?)?)
        }),
        narrow("linear_astype", w(false), &[3, ROWS, COLUMNS]),
        case("linear_gather_mm", vec![x(&[3, 1, COLUMNS]), w(true)], |a| chosen(&a[0], a[1].clone())),
    ]
}

fn repeated() -> Vec<Case> {
    let w = || Value::from(Repeated::new(nf4(&weight(), 32), &[2]).expect("a matrix"));
    vec![
        case("linear_matmul", vec![x(&[2, 3, ROWS]), w()], |a| Ok(a[0].matmul(&a[1])?)),
        case("repeated_moving", vec![x(&[2, 3, COLUMNS]), w()], |a| Ok(a[0].matmul(a[1].swap_axes(1, 2)?)?)),
        case("repeated_moving", vec![x(&[3, 2, 3, ROWS]), w()], |a| {
            Ok(a[0].matmul(ops::broadcast_to(&a[1], &[3, 2, ROWS, COLUMNS])?)?)
        }),
    ]
}

/// Scores of two heads, with what is done to them.
fn scores() -> Vec<Case> {
    fn of(a: &[Array]) -> Result<Array> {
        Ok(a[0].multiply(Array::from_f32(0.1).as_dtype(a[0].dtype())?)?.matmul(a[1].swap_axes(1, 2)?)?)
    }
    fn like(x: f32, a: &Array) -> Result<Array> {
        Ok(Array::from_f32(x).as_dtype(a.dtype())?)
    }
    let operands = || vec![x(&[2, 3, COLUMNS]), experts(), x(&[2, 3, ROWS])];
    let hidden: Plain = |a| {
        let seen = Array::from_slice(&[true, false, true, true], &[ROWS]);
        let scores = of(a)?;
        let hidden = like(-1.5, &scores)?;
        Ok(ops::softmax_axis(ops::select(seen, scores, hidden)?, -1, None)?)
    };
    let attended: Plain = |a| {
        let weights = ops::softmax_axis(of(a)?.add(&a[2])?, -1, None)?;
        Ok(weights.matmul(&a[1])?)
    };
    // MLX's exponential in `f64` is good to some 1e-7, which a difference divides by its step.
    let rough = |handler, f| Case { expected: Expected::Differences(1e-3), ..case(handler, operands(), f) };
    let narrow: Plain = |a| Ok(crate::gradients::narrowed(&of(a)?)?.multiply(&a[2])?);
    vec![
        case("scores_multiply", operands(), |a| Ok(of(a)?.multiply(like(0.3, &a[0])?)?)),
        case("scores_divide", operands(), |a| Ok(of(a)?.divide(like(3.0, &a[0])?)?)),
        case("scores_add", operands(), |a| Ok(of(a)?.add(&a[2])?)),
        Case { expected: Expected::Differences(2e-3), ..case("scores_astype", operands(), narrow) },
        rough("scores_select", hidden),
        rough("scores_softmax", |a| Ok(ops::softmax_axis(of(a)?, -1, None)?)),
        rough("scores_matmul", attended),
    ]
}

/// A case for each handler.
pub(super) fn cases() -> Vec<Case> {
    [batched(), repeated(), scores(), transposed(), scaled(), rotated(), concat(), stacked(), sliced(), cast()]
        .into_iter()
        .flatten()
        .collect()
}

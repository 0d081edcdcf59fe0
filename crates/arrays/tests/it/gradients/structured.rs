//! The cases of the structured types.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{
    ActivationGranularity, Constant, Diagonal, Identity, Int8Inputs, Lora, LowRank, Masked, SavedInputs, Sparse24,
    Stacked,
};
use tacit_core::__private::open;
use tacit_core::{ImplicitArray, Result, Value};

use super::{Case, Expected, Plain, case, narrowed, rows, x};
use crate::operands::{normal, normal_of};
use crate::structured::{diagonal, identity, lora, low_rank, masked, sparse24};

/// The four products of a matrix `w`.
pub(super) fn products(w: fn() -> Value) -> Vec<Case> {
    let aval = w().aval().expect("an aval");
    let [n, k] = aval.shape[..] else { panic!("{aval} is a matrix") };
    let (wide, tall) = (x(&[2, n]), x(&[k, 2]));
    let right: Plain = |a| Ok(a[0].matmul(&a[1])?);
    let left: Plain = |a| Ok(a[1].matmul(&a[0])?);
    let sum: Plain = |a| Ok(ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?);
    let sum_left: Plain = |a| Ok(ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?);
    vec![
        case("linear_matmul", vec![wide.clone(), w()], right),
        case("linear_matmul_left", vec![tall.clone(), w()], left),
        case("linear_addmm", vec![wide, w(), x(&[k])], sum),
        case("linear_addmm_left", vec![tall, w(), x(&[n, 2])], sum_left),
    ]
}

/// `[4, 3]`: the weights of no product's rows or columns add up to nearly nothing, as a gradient of one number would show.
fn constant() -> Value {
    Constant::full(&[4, 3], &Array::from_f32(0.75)).expect("one number").into()
}

/// `[4, 6]`: what codes change has its own tests, as rounding has no differences.
fn saved_inputs() -> Value {
    SavedInputs::exact(normal(21, &[4, 6])).expect("a float array").into()
}

/// `[4, 6]`: what its products round has its own tests, as rounding has no differences.
fn int8_inputs() -> Value {
    Int8Inputs::new(normal(21, &[4, 6]), ActivationGranularity::Token).expect("a float array").into()
}

/// Products of two matrices of which the left one saves more.
fn both() -> Vec<Case> {
    let square = || Value::from(LowRank::new(normal(2, &[5, 1]), normal(3, &[1, 5])).expect("a product"));
    vec![
        case("linear_matmul", vec![diagonal(), square()], |a| Ok(a[0].matmul(&a[1])?)),
        case("linear_addmm", vec![diagonal(), square(), x(&[5])], |a| Ok(ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?)),
    ]
}

/// Views of what has no view of its own.
fn views() -> Vec<Case> {
    let half = |seed, shape: &[i32]| normal_of(Dtype::Float16, seed, shape);
    let narrow = || Value::from(LowRank::new(half(2, &[6, 1]), half(3, &[1, 4])).expect("a product"));
    let stack = || Value::from(Stacked::new(vec![low_rank(), low_rank()]).expect("fits"));
    let aval = low_rank().aval().expect("an aval");
    let [n, k] = aval.shape[..] else { panic!("{aval} is a matrix") };
    let widened: Plain = |a| {
        let dtype = if a[0].dtype() == Dtype::Float64 { Dtype::Float64 } else { Dtype::Float32 };
        Ok(a[0].as_dtype(dtype)?.multiply(&a[1])?)
    };
    vec![
        case("linear_transpose", vec![stack(), x(&[n, 2, k])], |a| {
            Ok(a[0].transpose_axes(&[1, 0, 2])?.multiply(&a[1])?)
        }),
        case("linear_slice", vec![diagonal(), x(&[1])], |a| Ok(a[0].try_index((1..3, ..))?.multiply(&a[1])?)),
        case("cut_slice", vec![low_rank(), x(&[1])], |a| Ok(a[0].try_index((1..3, ..))?.multiply(&a[1])?)),
        Case { expected: Expected::Differences(2e-3), ..case("linear_astype", vec![narrow(), x(&[6, 4])], widened) },
        case("linear_negative", vec![low_rank(), x(&[n, k])], |a| Ok(a[0].negative()?.multiply(&a[1])?)),
        case("linear_concatenate", vec![low_rank(), low_rank(), x(&[1])], |a| {
            Ok(ops::concatenate(&a[..2], 0)?.multiply(&a[2])?)
        }),
    ]
}

/// A case for each handler of the structured types; MLX's `exp` of an `f64` is too coarse for differences.
pub(super) fn cases() -> Vec<Case> {
    let scalar = || Value::from(normal(3, &[]));
    let transposed: Plain = |a| Ok(a[0].t().multiply(&a[1])?);
    let cast: Plain = |a| Ok(narrowed(&a[0])?.multiply(&a[1])?);
    let times: Plain = |a| Ok(a[0].multiply(&a[1])?);
    let over: Plain = |a| Ok(a[0].divide(&a[1])?);
    let plus: Plain = |a| Ok(a[0].add(&a[1])?);
    let minus: Plain = |a| Ok(a[0].subtract(&a[1])?);
    let negative: Plain = |a| Ok(a[0].negative()?);
    let summed: Plain = |a| Ok(a[0].sum_axes(&[-1], false)?);
    let gather: Plain = |a| Ok(a[0].take_axis(&a[1], 0)?);
    let chain: Plain = |a| Ok(a[2].matmul(a[0].matmul(&a[1])?)?);
    let mut cases = vec![
        case("constant_unary", vec![constant()], |a| Ok(a[0].square()?)),
        case("constant_moving", vec![constant()], |a| Ok(a[0].t().flatten(None, None)?)),
        case("constant_reduction", vec![constant()], |a| Ok(a[0].sum_axes(&[0], false)?)),
        case("constant_binary", vec![constant(), constant()], |a| {
            Ok(a[0].multiply(a[1].square()?)?.sum_axes(&[1], false)?)
        }),
        case("constant_with_dense", vec![constant(), x(&[4, 3])], |a| {
            Ok(a[0].subtract(&a[1])?.sum_axes(&[1], false)?)
        }),
        case("dense_with_constant", vec![constant(), x(&[4, 3])], |a| Ok(a[1].divide(&a[0])?.sum_axes(&[1], false)?)),
        case("linear_transpose", vec![identity(), x(&[5, 2])], |a| Ok(a[0].t().matmul(&a[1])?)),
        case("identity_multiply", vec![identity(), x(&[5, 5])], times),
        case("diagonal_matmul", vec![diagonal(), diagonal(), x(&[2, 5])], chain),
        case("linear_transpose", vec![diagonal(), x(&[5, 5])], transposed),
        case("diagonal_multiply", vec![diagonal(), x(&[5, 5])], times),
        case("linear_divide", vec![diagonal(), scalar()], over),
        case("diagonal_binary", vec![diagonal(), diagonal()], plus),
        case("diagonal_binary", vec![diagonal(), diagonal()], minus),
        case("diagonal_multiply", vec![diagonal(), diagonal()], times),
        case("linear_negative", vec![diagonal()], negative),
        case("diagonal_sum", vec![diagonal()], summed),
        case("linear_transpose", vec![low_rank(), x(&[9, 8])], transposed),
        case("low_rank_multiply", vec![low_rank(), scalar()], times),
        case("linear_gather", vec![low_rank(), rows()], gather),
        case("low_rank_add", vec![low_rank(), low_rank()], plus),
        case("low_rank_sum", vec![low_rank()], summed),
        case("linear_transpose", vec![lora(), x(&[9, 8])], transposed),
        case("linear_multiply", vec![lora(), scalar()], times),
        case("linear_gather", vec![lora(), rows()], gather),
        case("linear_transpose", vec![int8_inputs(), x(&[6, 4])], transposed),
        case("saved_inputs_binary", vec![saved_inputs(), x(&[4, 6])], times),
        case("saved_inputs_binary", vec![saved_inputs(), scalar()], over),
        case("view_moving", vec![masked(), x(&[6, 4])], transposed),
        case("view_moving", vec![masked()], |a| Ok(a[0].split_equal(2, 1)?.swap_remove(1))),
        case("view_moving", vec![masked()], |a| Ok(ops::broadcast_to(&a[0], &[2, 4, 6])?)),
        case("view_moving", vec![masked()], |a| Ok(a[0].reshape(&[3, 8])?)),
        case("view_moving", vec![masked()], |a| Ok(a[0].expand_dims(1)?)),
        case("view_moving", vec![masked()], |a| Ok(a[0].expand_dims(1)?.squeeze_axes(&[1])?)),
        case("view_moving", vec![masked()], |a| Ok(a[0].flatten(None, None)?)),
        case("view_moving", vec![masked()], |a| Ok(ops::unflatten(&a[0], 1, &[2, 3])?)),
        case("view_moving", vec![masked()], |a| Ok(a[0].try_index((.., 2..))?)),
        case("view_moving", vec![masked(), rows()], gather),
        case("masked_multiply", vec![masked(), scalar()], times),
        case("sparse24_transpose", vec![sparse24(), x(&[12, 4])], transposed),
        case("sparse24_multiply", vec![sparse24(), scalar()], times),
        case("sparse24_gather", vec![sparse24(), rows()], gather),
        case("sparse24_squeeze", vec![Sparse24::prune(&normal(20, &[4, 1, 12])).expect("groups").into()], |a| {
            Ok(a[0].squeeze_axes(&[1])?)
        }),
        case("sparse24_sum", vec![sparse24()], summed),
    ];
    cases.extend([constant, identity, diagonal, low_rank, lora].into_iter().flat_map(products));
    cases.extend(both());
    cases.extend(views());
    for (handler, w) in [
        ("linear_astype", identity()),
        ("linear_astype", diagonal()),
        ("linear_astype", low_rank()),
        ("linear_astype", lora()),
        ("masked_astype", masked()),
        ("linear_astype", int8_inputs()),
        ("sparse24_astype", sparse24()),
    ] {
        let shape = w.aval().expect("an aval").shape;
        cases.push(Case { expected: Expected::Differences(2e-3), ..case(handler, vec![w, x(&shape)], cast) });
    }
    cases
}

/// The dense array of a structured type in `f64`, whose leaves are those of its children.
pub(super) fn rebuilt(array: &dyn ImplicitArray, leaves: &mut std::slice::Iter<'_, Array>) -> Result<Option<Array>> {
    let own = array.as_any();
    let structured = own.is::<Constant>()
        || own.is::<Diagonal>()
        || own.is::<Identity>()
        || own.is::<Int8Inputs>()
        || own.is::<Lora>()
        || own.is::<LowRank>()
        || own.is::<Masked>()
        || own.is::<SavedInputs>()
        || own.is::<Sparse24>();
    if !structured {
        return Ok(None);
    }
    let children = array.children();
    let wide = children.iter().map(|(_, child)| Ok(super::rebuilt(child, leaves)?.into())).collect::<Result<_>>()?;
    // Without the check of the aval, which says `f32`.
    Ok(Some(open(&*array.with_children(wide)?)?.dense()?))
}

//! Means over the ranks: of trees, of half floats, and of ranks that count unequally.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Result;
use tacit_distributed::Group;

use crate::case::{Case, ODD_TOO};
use crate::collectives::{assert_equal, folded, gradient_tree, numbers};

pub(crate) const CASES: &[Case] = &[
    Case::new("of_trees", means_of_trees),
    Case::new("of_half_floats", means_of_half_floats).sizes(ODD_TOO),
    Case::new("by_weight", means_by_weight).sizes(ODD_TOO),
];

fn means_of_trees(group: &Group) -> Result<()> {
    let all: Vec<_> = (0..group.size()).map(gradient_tree).collect::<Result<_>>()?;
    let found = group.mean(&all[group.rank()])?;
    let count = Array::from_f32(group.size() as f32);
    for (layer, (weight, bias)) in found.iter().enumerate() {
        let of = |side: fn(&(Array, Array)) -> &Array| -> Result<Array> {
            let of_ranks: Vec<Array> = all.iter().map(|tree| side(&tree[layer]).clone()).collect();
            let sum = folded(&of_ranks, |sum, x| sum.add(x))?;
            Ok(sum.divide(count.as_dtype(sum.dtype())?)?)
        };
        assert_equal(weight, &of(|layer| &layer.0)?, &format!("weight {layer}"))?;
        assert_equal(bias, &of(|layer| &layer.1)?, &format!("bias {layer}"))?;
    }
    let (empty, sum) = group.sum(&(ops::zeros::<f32>(&[0, 3])?, Array::from_f32(1.0)))?;
    assert_eq!(empty.shape(), [0, 3]);
    assert_equal(&sum, &count, "beside an array without elements")?;
    Ok(())
}

/// A mean overflows only where it is itself too large, and is rounded once.
fn means_of_half_floats(group: &Group) -> Result<()> {
    for (dtype, largest) in [(Dtype::Float16, 65_504.0), (Dtype::Bfloat16, 3.0e38), (Dtype::Float16, 40_000.0)] {
        let x = ops::full::<f32>(&[3], Array::from_f32(largest))?.as_dtype(dtype)?;
        // Of bf16 no more than f32 has.
        let x = if dtype == Dtype::Bfloat16 { x.divide(Array::from_int(8).as_dtype(dtype)?)? } else { x };
        assert_equal(&group.mean(&x)?, &x, &format!("the mean of {largest} in {dtype:?}"))?;
        let weight = Array::from_int(3 + group.rank() as i32);
        let (mean, large) = (group.weighted_mean(&x, &weight)?, x.as_dtype(Dtype::Float32)?);
        let off = mean.as_dtype(Dtype::Float32)?.subtract(&large)?.abs()?.divide(&large)?.max(None)?;
        assert!(off.item_exact::<f32>() < 1e-2, "the weighted mean of {largest} in {dtype:?}: {mean}");
    }
    // 256 and ones: bf16 would forget each of these.
    let own = if group.rank() == 0 { 256.0 } else { 1.0 };
    let x = Array::from_f32(own).as_dtype(Dtype::Bfloat16)?;
    let mean = (255.0 + group.size() as f32) / group.size() as f32;
    assert_equal(&group.mean(&x)?, &Array::from_f32(mean).as_dtype(Dtype::Bfloat16)?, "a mean in bf16")
}

/// Ranks with unequal counts: the mean is that of all that they have counted together.
fn means_by_weight(group: &Group) -> Result<()> {
    let rows = |rank: usize| numbers(rank, &[2 * rank as i32 + 1, 3], Dtype::Float32);
    let all = (0..group.size()).map(rows).collect::<Result<Vec<_>>>()?;
    let expected = ops::concatenate(&all, 0)?.mean_axes(&[0], false)?;
    let own = &all[group.rank()];
    let mean = own.mean_axes(&[0], false)?;
    let near = |found: &Array, what: &str| -> Result<()> {
        let off = found.subtract(&expected)?.abs()?.max(None)?.item_exact::<f32>();
        assert!(off < 1e-5, "{what}: {found}, not {expected}");
        Ok(())
    };
    let count = own.dim(0);
    for weight in [
        Array::from_int(count),
        Array::from_slice(&[count as f32], &[1]),
        Array::from_int(count).as_dtype(Dtype::Uint32)?,
    ] {
        let (found, more) = group.weighted_mean(&(mean.clone(), vec![mean.clone()]), &weight)?;
        near(&found, "by rows")?;
        near(&more[0], "in a list")?;
    }
    // The mean of nothing is no number, and does not count.
    let is_last = group.rank() + 1 == group.size();
    let (x, weight) = if is_last { (f32::NAN, 0) } else { (2.0, 5) };
    let found = group.weighted_mean(&Array::from_f32(x), &Array::from_int(weight))?;
    assert_equal(&found, &Array::from_f32(2.0), "without the last rank")?;
    // The shares of a mean in double precision are as precise.
    let one = Array::from_f32(1.0).as_dtype(Dtype::Float64)?;
    let mean = group.weighted_mean(&one, &Array::from_int(1 + group.rank() as i32))?;
    mean.eval()?;
    assert!((mean.as_slice::<f64>()[0] - 1.0).abs() < 1e-15, "{mean:?}");
    let none = group.weighted_mean(&Array::from_f32(2.0), &Array::from_int(0))?;
    assert!(none.item_exact::<f32>().is_nan(), "{none}");
    let refused = |weight: Array| group.weighted_mean(&mean, &weight).expect_err("is no weight").to_string();
    let help = "help: give one number, such as the count of this rank's rows";
    assert_eq!(refused(Array::from_slice(&[1.0f32, 2.0], &[2])), format!("a weight is f32[2]\n{help}"));
    Ok(())
}

//! What ranks saw of a model's weights, each of its own inputs, summed.

use mlx_rs::{Dtype, ops};
use tacit_arrays::Observation;
use tacit_core::Result;
use tacit_distributed::Group;
use tacit_nn::Observations;

use crate::case::Case;
use crate::collectives::{assert_equal, numbers};

pub(crate) const CASES: &[Case] = &[
    Case::new("by_rows_of_each", by_rows_of_each),
    Case::new("but_on_one_rank", but_on_one_rank),
    Case::new("of_other_weights", of_other_weights),
];

/// What a rank saw: each another number of rows.
fn seen(rank: usize) -> Result<Observation> {
    Observation::from_inputs(&numbers(rank, &[2 * rank as i32 + 1, 3], Dtype::Float32)?)
}

fn by_rows_of_each(group: &Group) -> Result<()> {
    let own: Observations = [("w".to_owned(), seen(group.rank())?)].into_iter().collect();
    let all = own.over_ranks(|sums| group.all_sum(sums))?;
    let found = all.get("w")?;
    let rows = |rank: usize| numbers(rank, &[2 * rank as i32 + 1, 3], Dtype::Float32);
    let whole = (0..group.size()).map(rows).collect::<Result<Vec<_>>>()?;
    let expected = Observation::from_inputs(&ops::concatenate(&whole, 0)?)?;
    assert_eq!(found.rows(), expected.rows());
    assert_equal(found.gram()?, expected.gram()?, "the products")?;
    assert_equal(&found.mean_magnitudes()?, &expected.mean_magnitudes()?, "the magnitudes")
}

/// No rank waits for sums of a weight that another one does not have.
fn but_on_one_rank(group: &Group) -> Result<()> {
    let mut own = vec![("lost".to_owned(), seen(0)?), ("whole".to_owned(), seen(0)?)];
    if group.rank() == 1 {
        // Sums of other inputs, which are added to no others.
        own.push(("lost".to_owned(), Observation::from_inputs(&numbers(0, &[4, 2], Dtype::Float32)?)?));
    }
    let own: Observations = own.into_iter().collect();
    let all = own.over_ranks(|sums| group.all_sum(sums))?;
    assert_eq!(all.get("whole")?.rows(), [group.size() as u64]);
    let told = all.get("lost").expect_err("one rank has no sums").to_string();
    let (size, on_it) = (group.size(), group.rank() == 1);
    let expected =
        if on_it { "are of different inputs".to_owned() } else { format!("on {} of {size} ranks", size - 1) };
    assert!(told.contains(&expected), "{told}");
    Ok(())
}

/// As many sums of other weights, as ranks have that hold some layers each, are not added up.
fn of_other_weights(group: &Group) -> Result<()> {
    let own: Observations = [(format!("layers.{}.weight", group.rank()), seen(0)?)].into_iter().collect();
    let error = own.over_ranks(|sums| group.all_sum(sums)).expect_err("the weights are others").to_string();
    assert!(error.contains("other weights were observed on another rank"), "{error}");
    Ok(())
}

//! Numbers that ranks tell each other beside what they compute.

use mlx_rs::Array;
use tacit_core::Result;

use crate::Group;

/// What each rank says, in the order of the ranks. Every rank calls it, with as many numbers.
pub(crate) fn said(group: &Group, words: &[u32]) -> Result<Vec<Vec<u32>>> {
    let gathered = group.all_gather(&Array::from_slice(words, &[words.len() as i32]), 0)?;
    gathered.eval()?;
    Ok(gathered.as_slice::<u32>().chunks(words.len()).map(<[u32]>::to_vec).collect())
}

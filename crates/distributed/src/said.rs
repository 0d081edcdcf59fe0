//! Numbers that ranks tell each other beside what they compute.

use mlx_rs::Array;
use tacit_core::Result;

use crate::Group;

/// What each rank says, in the order of the ranks. Every rank calls it, with as many numbers.
pub(crate) fn said(group: &Group, own: &[u32]) -> Result<Vec<Vec<u32>>> {
    let all = group.all_gather(&Array::from_slice(own, &[own.len() as i32]), 0)?;
    all.eval()?;
    Ok(all.as_slice::<u32>().chunks(own.len()).map(<[u32]>::to_vec).collect())
}

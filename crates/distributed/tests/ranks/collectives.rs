//! The collectives: their values, derivatives and what is counted of them.

use tacit_core::Result;
use tacit_distributed::Group;

use crate::case::Case;

pub(crate) const CASES: &[Case] = &[Case::new("ranks_are_numbered", ranks_are_numbered)];

fn ranks_are_numbered(group: &Group) -> Result<()> {
    assert!(group.rank() < group.size() && [2, 4].contains(&group.size()), "{group:?}");
    Ok(())
}

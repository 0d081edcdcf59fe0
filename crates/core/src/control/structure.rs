//! The structure that a loop keeps from step to step, and that both branches share.

use mlx_rs::Array;

use crate::tree::TreeDef;
use crate::{Aval, Result, Value};

/// A structure whose implicit arrays are opened, and the avals of its arrays.
pub(super) struct Structure {
    pub(super) def: TreeDef,
    pub(super) avals: Vec<Aval>,
}

/// What one structure has and the other has not, in words.
pub(super) struct Change {
    pub(super) from: String,
    pub(super) to: String,
    /// Follows the words before it without a space.
    pub(super) place: String,
}

impl Structure {
    /// The structure of these values, and the arrays in it.
    pub(super) fn from_values(closed: &TreeDef, values: Vec<Value>) -> Result<(Vec<Array>, Self)> {
        let (opened, def) = closed.opened(values)?;
        let arrays = opened.iter().map(Value::dense).collect::<Result<Vec<Array>>>()?;
        let avals = arrays.iter().map(Aval::from).collect();
        Ok((arrays, Self { def, avals }))
    }

    /// Where `other` differs first: in structure, or in shape or dtype.
    pub(super) fn change(&self, other: &Self) -> Option<Change> {
        if self.def != other.def {
            let place = self.def.difference(&other.def).map(|difference| format!(": {difference}"));
            return Some(Change {
                from: self.def.to_string(),
                to: other.def.to_string(),
                place: place.unwrap_or_default(),
            });
        }
        let leaf = self.avals.iter().zip(&other.avals).position(|(own, others)| own != others)?;
        Some(Change {
            from: self.avals[leaf].to_string(),
            to: other.avals[leaf].to_string(),
            place: format!(" at {}", self.def.paths()[leaf].shown()),
        })
    }
}

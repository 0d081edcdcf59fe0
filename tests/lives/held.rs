//! All that a model holds, to the bit, and how far two outputs are from each other.

use std::collections::{BTreeMap, BTreeSet};

use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, Dtype};
use tacit::Result;
use tacit::model::{Model, ParameterFilter};

use crate::net::Net;

/// The bytes of an array.
pub(crate) fn bytes(array: &Array) -> Result<Vec<u8>> {
    let bytes = array.reshape(&[-1])?.view_dtype(Dtype::Uint8)?;
    bytes.eval()?;
    Ok(bytes.as_slice::<u8>().to_vec())
}

/// Everything that a model holds and says of itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    values: BTreeMap<String, String>,
    leaves: BTreeMap<String, (String, Vec<u8>)>,
    trained: Vec<String>,
    report: String,
}

impl Held {
    pub(crate) fn of(model: &Model<Net>) -> Result<Self> {
        let values = model.values()?.into_iter().map(|(path, value)| (path, value.to_string())).collect();
        let leaf = |(path, array): (String, &Array)| {
            Ok((path, (format!("{:?}{:?}", array.dtype(), array.shape()), bytes(array)?)))
        };
        let leaves = model.leaves(&ParameterFilter::All).into_iter().map(leaf).collect::<Result<_>>()?;
        let mut trained: Vec<String> = model.trainable_parameters().flatten().keys().map(ToString::to_string).collect();
        trained.sort_unstable();
        Ok(Self { values, leaves, trained, report: model.report().to_string() })
    }

    /// The first difference between what two hold.
    pub(crate) fn holds_other(&self, other: &Self) -> Option<String> {
        if self.values != other.values {
            return Some(format!("values {:?}, and {:?}", self.values, other.values));
        }
        let keys = |held: &Self| held.leaves.keys().cloned().collect::<Vec<_>>();
        if keys(self) != keys(other) {
            return Some(format!("leaves {:?}, and {:?}", keys(self), keys(other)));
        }
        let leaf = self.leaves.iter().find(|(path, leaf)| other.leaves[*path] != **leaf);
        if let Some((path, leaf)) = leaf {
            return Some(format!("the leaf {path}, {} and {}", leaf.0, other.leaves[path].0));
        }
        None
    }

    /// The first difference between two, without what they tell of themselves.
    pub(crate) fn differs(&self, other: &Self) -> Option<String> {
        self.holds_other(other).or_else(|| {
            (self.trained != other.trained).then(|| format!("trained {:?}, and {:?}", self.trained, other.trained))
        })
    }

    /// The paths of leaves whose numbers are others.
    pub(crate) fn moved(&self, other: &Self) -> BTreeSet<String> {
        let moved = self.leaves.iter().filter(|(path, leaf)| other.leaves.get(*path) != Some(leaf));
        moved.map(|(path, _)| path.clone()).collect()
    }

    /// The first difference of all.
    pub(crate) fn changed(&self, other: &Self) -> Option<String> {
        self.differs(other).or_else(|| {
            (self.report != other.report).then(|| format!("reports\n{}\nand\n{}", self.report, other.report))
        })
    }
}

/// The largest difference over the largest number.
pub(crate) fn distance(a: &Array, b: &Array) -> Result<f32> {
    let (a, b) = (a.as_dtype(Dtype::Float32)?, b.as_dtype(Dtype::Float32)?);
    let most = |x: Array| Ok::<_, tacit::Error>(x.abs()?.max(None)?.item_exact::<f32>());
    let (difference, largest) = (most(a.subtract(&b)?)?, most(b)?);
    Ok(difference / largest.max(f32::MIN_POSITIVE))
}

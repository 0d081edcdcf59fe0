//! Which leaves a gradient is taken with respect to.

use super::opened::{Opened, is_differentiable};
use crate::tree::{self, Open, Path};
use crate::values::Values;
use crate::{Aval, Error, Result};

/// What a gradient is taken with respect to; leaves that are not float, and frozen ones, never have one.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::{Wrt, grad_wrt};
///
/// let mut gradient = grad_wrt(Wrt::arguments([1]), |(x, y): (Array, Array)| x.multiply(y));
/// let (dx, dy) = gradient.call((Array::from_f32(2.0), Array::from_f32(3.0)))?;
/// assert!(dx.is_nothing());
/// assert_eq!(dy.array()?.item_exact::<f32>(), 2.0);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub enum Wrt {
    /// Every float leaf.
    #[default]
    All,
    /// The float leaves of these arguments: the elements of the tuple or list that the function takes, counted from 0.
    /// A function that takes another tree has one argument.
    Arguments(Vec<usize>),
    /// The float leaves for whose path this holds. It holds for all children of an implicit array if it holds for the
    /// array.
    Paths(Box<dyn Fn(&Path) -> bool>),
}

impl Wrt {
    /// The float leaves of these arguments.
    #[must_use]
    pub fn arguments(positions: impl IntoIterator<Item = usize>) -> Self {
        Self::Arguments(positions.into_iter().collect())
    }

    /// The float leaves for whose path `chosen` holds, as in `Wrt::paths(|path| path.ends_with("weight"))`.
    #[must_use]
    pub fn paths(chosen: impl Fn(&Path) -> bool + 'static) -> Self {
        Self::Paths(Box::new(chosen))
    }

    /// The positions of the leaves that are chosen and float; at least one.
    pub(super) fn choose(&self, arguments: &Values, opened: &Opened) -> Result<Vec<usize>> {
        let chosen: Vec<usize> = match self {
            Self::All => (0..opened.leaves.len()).collect(),
            Self::Arguments(positions) => of_arguments(positions, opened)?,
            Self::Paths(holds) => of_paths(holds, arguments, opened)?,
        };
        let frozen = opened.def.frozen();
        let differentiable = |&position: &usize| is_differentiable(&opened.leaves[position]) && !frozen[position];
        let float: Vec<usize> = chosen.iter().copied().filter(differentiable).collect();
        if float.is_empty() {
            let paths = opened.def.paths();
            let listed =
                listed(chosen.iter().map(|&i| format!("{} {}", paths[i].shown(), Aval::from(&opened.leaves[i]))));
            return Err(Error::invalid(
                format!("no float array is among the leaves to differentiate with respect to: {listed}"),
                "choose a float leaf that is not frozen; integers and packed codes have no gradient",
            ));
        }
        Ok(float)
    }
}

impl From<Vec<usize>> for Wrt {
    fn from(positions: Vec<usize>) -> Self {
        Self::Arguments(positions)
    }
}

impl<const N: usize> From<[usize; N]> for Wrt {
    fn from(positions: [usize; N]) -> Self {
        Self::arguments(positions)
    }
}

impl std::fmt::Debug for Wrt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::Arguments(positions) => f.debug_tuple("Arguments").field(positions).finish(),
            Self::Paths(_) => f.write_str("Paths(..)"),
        }
    }
}

fn of_arguments(positions: &[usize], opened: &Opened) -> Result<Vec<usize>> {
    let elements = opened.def.elements();
    let count = elements.unwrap_or(1);
    if let Some(position) = positions.iter().find(|position| **position >= count) {
        return Err(Error::invalid(
            format!("argument {position} is to be differentiated with respect to, and the function takes {count}"),
            "count the elements of the tuple that the function takes from 0; any other tree is argument 0",
        ));
    }
    let argument = |path: &Path| match elements {
        Some(_) => path.split('.').next().and_then(|label| label.parse().ok()).unwrap_or_default(),
        None => 0,
    };
    let paths = opened.def.paths();
    Ok((0..paths.len()).filter(|&i| positions.contains(&argument(&paths[i]))).collect())
}

fn of_paths(holds: &dyn Fn(&Path) -> bool, arguments: &Values, opened: &Opened) -> Result<Vec<usize>> {
    let paths = opened.def.paths();
    let mut chosen = Vec::new();
    let mut position = 0;
    for (outer, value) in arguments.def.paths().iter().zip(&arguments.values) {
        let is_chosen = holds(outer);
        for _ in 0..tree::leaves(value, Open::Fully)?.len() {
            if is_chosen || holds(&paths[position]) {
                chosen.push(position);
            }
            position += 1;
        }
    }
    if chosen.is_empty() {
        return Err(Error::invalid(
            format!("no leaf to differentiate with respect to is chosen of {}", listed(paths.iter().map(Path::shown))),
            "choose one of these paths",
        ));
    }
    Ok(chosen)
}

fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let left = items.len().saturating_sub(SHOWN);
    let shown: Vec<String> = items.take(SHOWN).collect();
    match (shown.is_empty(), left) {
        (true, _) => "there is none".to_owned(),
        (_, 0) => shown.join(", "),
        _ => format!("{} and {left} more", shown.join(", ")),
    }
}

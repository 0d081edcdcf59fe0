//! Parameters that were added to a module, or removed from it, since its structure was recorded.

use std::collections::BTreeSet;

use mlx_rs::module::ModuleParameters;
use mlx_rs::ops;
use tacit_core::{Error, Result};

/// The parameters that a module and a structure do not both have, by path.
///
/// mlx-rs lends those that are there. One that is not, a module cannot be given, and none can be taken out of it: only a
/// copy of the module has others.
pub(crate) struct Moved {
    came: Vec<String>,
    went: Vec<String>,
}

impl Moved {
    /// How the parameters of a module differ from those of a structure; nothing where they do not.
    pub(crate) fn find<'p>(paths: impl Iterator<Item = &'p str> + Clone, structure: &[String]) -> Option<Self> {
        if paths.clone().eq(structure.iter().map(String::as_str)) {
            return None;
        }
        let (paths, structure): (BTreeSet<&str>, BTreeSet<&str>) =
            (paths.collect(), structure.iter().map(String::as_str).collect());
        let not_in = |a: &BTreeSet<&str>, b| a.difference(b).map(|&path| path.to_owned()).collect::<Vec<_>>();
        let moved = Self { came: not_in(&paths, &structure), went: not_in(&structure, &paths) };
        (!moved.came.is_empty() || !moved.went.is_empty()).then_some(moved)
    }

    /// Puts zeros into what came, which holds what a trace left.
    pub(crate) fn clear(&self, module: &mut impl ModuleParameters) -> Result<()> {
        for (path, slot) in module.parameters_mut().flatten() {
            if self.came.iter().any(|came| *came == *path) {
                *slot = ops::zeros_dtype(slot.shape(), slot.dtype())?;
            }
        }
        Ok(())
    }

    pub(crate) fn error(&self) -> Error {
        let differs = match (self.went.first(), self.came.first()) {
            (Some(path), _) => format!("the module has no parameter {path}, which the structure has"),
            (None, came) => {
                let path = came.map_or("", String::as_str);
                format!("the module has a parameter {path}, which the structure has not")
            }
        };
        let help = "leave the parameters in place, or make the state a `Module` that can be copied: only such a \
                    state may gain or lose one";
        Error::invalid(differs, help)
    }
}

//! An mlx-rs module as a tree.

use std::any::{Any, type_name};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_core::tree::{Arguments, Labels, Leaf, Node, Reader, Visitor};
use tacit_core::{Error, Result, Tree};

use crate::moved::Moved;
use crate::parameters::{missing, sorted};

/// An mlx-rs module as a tree whose leaves are its parameters, by their paths.
///
/// A parameter that is frozen, and a running statistic of a `BatchNorm`, is so in the structure too: no gradient is taken
/// of it, and [`tree::update`](tacit_core::tree::update) leaves it alone. A module's other fields cannot be compared, so
/// they are not part of the structure: where one changes after a function was compiled, such as a training flag, give the
/// compiled function a static argument that changes with it. What the function assigns to one is there after a call that traces it,
/// and no replay assigns it again. The gradient of a module is one [`Gradient`](tacit_core::tree::Gradient), with a child for each
/// parameter.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::nn;
/// use tacit_core::tree;
/// use tacit_nn::Module;
///
/// let linear = Module::new(nn::Linear::new(2, 3)?);
/// let paths = tree::structure(&linear)?.paths();
/// assert_eq!(paths.iter().map(|path| &**path).collect::<Vec<_>>(), ["bias", "weight"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Module<M> {
    module: M,
    /// How the module is copied; nothing where it cannot be.
    copy: Option<fn(&M) -> M>,
}

impl<M> Module<M> {
    /// The tree of a module that can be copied: a state, an argument or a result.
    #[must_use]
    pub fn new(module: M) -> Self
    where
        M: Clone,
    {
        Self { module, copy: Some(M::clone) }
    }

    /// The tree of a module that cannot be copied, such as a `Sequential`.
    ///
    /// It is assigned in place, as the state of a compiled function is; since it cannot be made of its leaves, it is no
    /// argument or result of a traced function. Where a call fails, its fields beside the parameters stay as the call left them.
    #[must_use]
    pub fn in_place(module: M) -> Self {
        Self { module, copy: None }
    }

    fn copied(&self) -> Option<Self> {
        self.copy.map(|copy| Self { module: copy(&self.module), copy: self.copy })
    }
}

impl<M> Deref for Module<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

impl<M> DerefMut for Module<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.module
    }
}

impl<M: ModuleParameters> Module<M> {
    fn fill(&mut self, leaves: Leaves<'_>) -> Result<()> {
        let mut slots = self.module.parameters_mut().flatten();
        for (path, array) in leaves {
            match slots.get_mut(path) {
                Some(slot) => **slot = array,
                None => return Err(missing(path, slots.keys())),
            }
        }
        Ok(())
    }
}

impl<M: ModuleParameters + 'static> Arguments for Module<M> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let template = || -> Rc<dyn Any> {
            let mut hollow = self.copied();
            if let Some(hollow) = &mut hollow {
                hollow.parameters_mut().flatten().into_values().for_each(empty);
            }
            Rc::new(hollow)
        };
        show(&self.module, type_name::<M>(), Some(&template), visitor);
        Ok(())
    }
}

impl<M: ModuleParameters + 'static> Tree for Module<M> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let (template, leaves) = entered::<Option<Self>>(reader, type_name::<M>())?;
        let mut copy = template.and_then(|hollow| hollow.as_ref()?.copied()).ok_or_else(|| {
            Error::invalid(
                format!("{} cannot be made of its parameters alone", type_name::<M>()),
                "make it the state of `compile_with_state`, or assign to it with `tree::assign`",
            )
        })?;
        copy.fill(leaves)?;
        Ok(copy)
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let is_made = reader.is_made();
        let as_left = reader.is_given_back() || is_made && !reader.is_replayed();
        let (template, mut leaves) = entered::<Option<Self>>(reader, type_name::<M>())?;
        let copied = || template.and_then(|hollow| hollow.as_ref()?.copied());
        // Its other fields, too, are what they were before the call, or what the function left there.
        if as_left && let Some(copy) = copied() {
            *self = copy;
            return self.fill(leaves);
        }
        let current: Vec<Rc<str>> = sorted(&self.module).into_iter().map(|(path, _)| path).collect();
        let paths: Vec<String> = leaves.iter().map(|(path, _)| (*path).to_owned()).collect();
        let Some(moved) = Moved::find(current.iter().map(|path| &**path), &paths) else { return self.fill(leaves) };
        // A parameter that came or went, such as a bias, is in a copy that has it.
        if let Some(copy) = copied() {
            *self = copy;
            return self.fill(leaves);
        }
        if !is_made {
            // What is given back takes the place of what a trace left, as far as there is one.
            leaves.retain(|(path, _)| current.iter().any(|current| &**current == *path));
            moved.clear(&mut self.module)?;
            self.fill(leaves)?;
        }
        Err(moved.error())
    }
}

/// Shows the parameters of a module, frozen ones as such.
fn show<'a, M: ModuleParameters>(
    module: &'a M,
    kind: &'static str,
    template: Option<&dyn Fn() -> Rc<dyn Any>>,
    visitor: &mut dyn Visitor<'a>,
) {
    let parameters = sorted(module);
    let keys: Vec<&str> = parameters.iter().map(|(key, _)| &**key).collect();
    visitor.node(&Node { template, ..Node::new(kind, Labels::Keys(&keys)) });
    // Not asked by `any_frozen`: to mlx-rs a layer within is frozen only where all of it is.
    let trainable = module.trainable_parameters().flatten();
    for (path, array) in parameters {
        let frozen = is_statistic(&path) || !trainable.contains_key(&path);
        if frozen { visitor.frozen(array) } else { visitor.array(array) }
    }
}

/// Whether a parameter is a statistic of mlx-rs's `BatchNorm`, which does not freeze them as MLX's own does.
pub(crate) fn is_statistic(path: &str) -> bool {
    matches!(path.rsplit('.').next(), Some("running_mean" | "running_var"))
}

pub(crate) type Leaves<'d> = Vec<(&'d str, Array)>;

/// Enters a node: the template in it, and the leaves by key.
pub(crate) fn entered<'d, T: 'static>(
    reader: &mut Reader<'d>,
    name: &'static str,
) -> Result<(Option<&'d T>, Leaves<'d>)> {
    let entered = reader.enter(name)?;
    let leaves = entered.keys().iter().map(|key| Ok((key.as_str(), reader.array()?))).collect::<Result<_>>()?;
    Ok((entered.template(), leaves))
}

/// Takes the data out of a template.
pub(crate) fn empty(array: &mut Array) {
    *array = Array::from_bool(false);
}

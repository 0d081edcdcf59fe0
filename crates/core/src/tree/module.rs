//! What mlx-rs itself can list: modules, optimizers, random states.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::{FlattenedModuleParamMut, ModuleParameters};
use mlx_rs::utils::Updatable;

use super::{Labels, Leaf, Node, Reader, Static, Tree, Visitor};
use crate::{Error, Result};

/// An mlx-rs module as a tree whose leaves are its parameters, by their paths.
///
/// A module's other fields cannot be compared, so they are not part of the structure: where one changes after a function
/// was compiled, such as a training flag, give the compiled function a static argument that changes with it.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::nn;
/// use tacit_core::tree::{self, Module};
///
/// let linear = Module(nn::Linear::new(2, 3)?);
/// let paths = tree::structure(&linear)?.paths();
/// assert_eq!(paths.iter().map(|path| &**path).collect::<Vec<_>>(), ["bias", "weight"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Module<M>(pub M);

/// A module that cannot be cloned, such as a `Sequential`, as a tree like [`Module`].
///
/// It is assigned in place, as the state of a compiled function is; since it cannot be made of its leaves, it is no
/// argument or result of a traced function.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::nn;
/// use tacit_core::tree::{self, InPlace};
///
/// let layers = InPlace(nn::Sequential::new().append(nn::Linear::new(2, 3)?));
/// assert_eq!(&*tree::structure(&layers)?.paths()[0], "layers.0.bias");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct InPlace<M>(pub M);

/// Anything that mlx-rs can update as a tree: an optimizer, whose leaves are its moments, or a random state.
///
/// What it declares as optional and absent is not there. As for a [`Module`], other fields are not part of the
/// structure: in a compiled function a learning rate is a constant, and an optimizer whose moments appear by a replay takes
/// the other fields, too, of the one that was traced.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::random::RandomState;
/// use tacit_core::tree::{self, Stateful};
///
/// let random = Stateful(RandomState::with_seed(1)?);
/// assert_eq!(tree::structure(&random)?.leaves(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stateful<U>(pub U);

macro_rules! transparent {
    ($($wrapper:ident)+) => {
        $(
            impl<T> Deref for $wrapper<T> {
                type Target = T;

                fn deref(&self) -> &T {
                    &self.0
                }
            }

            impl<T> DerefMut for $wrapper<T> {
                fn deref_mut(&mut self) -> &mut T {
                    &mut self.0
                }
            }
        )+
    };
}

transparent! { Module InPlace Stateful }

const MODULE: &str = "Module";
const IN_PLACE: &str = "InPlace";
const STATEFUL: &str = "Stateful";

impl<M: ModuleParameters + Clone + 'static> Tree for Module<M> {
    type With<L: Leaf> = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let template = || -> Rc<dyn Any> {
            let mut hollow = self.0.clone();
            hollow.parameters_mut().flatten().into_values().for_each(empty);
            Rc::new(hollow)
        };
        show(&self.0, visitor, MODULE, Some(&template));
        Ok(())
    }

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let (template, leaves) = templated::<M>(reader, MODULE)?;
        let mut module = template.clone();
        fill(module.parameters_mut().flatten(), leaves)?;
        Ok(Self(module))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let (template, leaves) = templated::<M>(reader, MODULE)?;
        let slots = self.0.parameters_mut().flatten();
        if slots.len() == leaves.len() && leaves.iter().all(|(key, _)| slots.contains_key(*key)) {
            return fill(slots, leaves);
        }
        drop(slots);
        // A parameter that came or went, such as a bias, is in a copy that has it.
        self.0 = template.clone();
        fill(self.0.parameters_mut().flatten(), leaves)
    }
}

impl<M: ModuleParameters + 'static> Tree for InPlace<M> {
    type With<L: Leaf> = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        show(&self.0, visitor, IN_PLACE, None);
        Ok(())
    }

    fn unflatten(_: &mut Reader<'_>) -> Result<Self> {
        Err(Error::invalid(
            format!("{} cannot be made of its parameters alone", std::any::type_name::<M>()),
            "make it the state of `compile_with_state`, or assign to it with `tree::assign`",
        ))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let entered = reader.enter(IN_PLACE)?;
        let leaves = entered.keys().iter().map(|key| Ok((key.as_str(), reader.array()?))).collect::<Result<_>>()?;
        fill(self.0.parameters_mut().flatten(), leaves)
    }
}

/// Shows a module's parameters, sorted by their paths.
fn show<'a, M: ModuleParameters>(
    module: &'a M,
    visitor: &mut dyn Visitor<'a>,
    name: &'static str,
    template: Option<&dyn Fn() -> Rc<dyn Any>>,
) {
    let mut sorted: Vec<(Rc<str>, &'a Array)> = module.parameters().flatten().into_iter().collect();
    sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let keys: Vec<&str> = sorted.iter().map(|(key, _)| &**key).collect();
    let statics: &[(_, &dyn Static)] = &[("of", &TypeName::of::<M>())];
    visitor.node(&Node { template, ..Node::new(name, Labels::Keys(&keys)).with_statics(statics) });
    for (_, array) in sorted {
        visitor.array(array);
    }
}

fn fill(mut slots: FlattenedModuleParamMut<'_>, leaves: Vec<(&str, Array)>) -> Result<()> {
    for (path, array) in leaves {
        let slot = slots.get_mut(path).ok_or_else(|| {
            Error::invalid(
                format!("the module has no parameter {path}"),
                "use the definition of a module of the same form",
            )
        })?;
        **slot = array;
    }
    Ok(())
}

impl<U: Updatable + Clone + 'static> Tree for Stateful<U> {
    type With<L: Leaf> = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        // mlx-rs lists the arrays of what it may change only.
        let mut own = self.0.clone();
        let projection = own.state_projection().map_err(refused)?;
        let present: Vec<(&str, &Array)> = projection.iter().filter_map(|(key, array)| Some((key, array?))).collect();
        let keys: Vec<&str> = present.iter().map(|(key, _)| *key).collect();
        let template = || -> Rc<dyn Any> {
            let mut hollow = self.0.clone();
            if let Ok(mut projection) = hollow.state_projection() {
                projection.values_mut().for_each(empty);
            }
            Rc::new(hollow)
        };
        let statics: &[(_, &dyn Static)] = &[("of", &TypeName::of::<U>())];
        visitor.node(&Node::new(STATEFUL, Labels::Keys(&keys)).with_statics(statics).with_template(&template));
        for (_, array) in present {
            visitor.made(array.into());
        }
        Ok(())
    }

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let (template, leaves) = templated::<U>(reader, STATEFUL)?;
        let mut stateful = Self(template.clone());
        stateful.take(leaves)?;
        Ok(stateful)
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let (template, leaves) = templated::<U>(reader, STATEFUL)?;
        // A moment appears with the first step: only a copy that has it has a place for it.
        let same = {
            let projection = self.0.state_projection().map_err(refused)?;
            let own = projection.iter().filter(|(_, array)| array.is_some()).map(|(key, _)| key);
            own.eq(leaves.iter().map(|(key, _)| *key))
        };
        if !same {
            self.0 = template.clone();
        }
        self.take(leaves)
    }
}

impl<U: Updatable> Stateful<U> {
    fn take(&mut self, leaves: Vec<(&str, Array)>) -> Result<()> {
        let mut projection = self.0.state_projection().map_err(refused)?;
        let mut slots = projection.values_mut();
        for (path, array) in leaves {
            let slot = slots.next().ok_or_else(|| {
                Error::invalid(
                    format!("the state has no entry {path}"),
                    "use the definition of a state of the same form",
                )
            })?;
            *slot = array;
        }
        Ok(())
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("mlx-rs cannot list the state: {error}"), "give each entry its own key")
}

/// Enters the node of `T`: the template in it, and the leaves by key.
fn templated<'d, T: 'static>(reader: &mut Reader<'d>, name: &'static str) -> Result<(&'d T, Vec<(&'d str, Array)>)> {
    let entered = reader.enter(name)?;
    let template = entered.template().ok_or_else(|| {
        Error::invalid(
            format!("the structure holds another {name} than {}", std::any::type_name::<T>()),
            "use the definition of a tree of this very type",
        )
    })?;
    let leaves = entered.keys().iter().map(|key| Ok((key.as_str(), reader.array()?))).collect::<Result<_>>()?;
    Ok((template, leaves))
}

fn empty(array: &mut Array) {
    *array = Array::from_bool(false);
}

/// Tells two types apart in a structure.
#[derive(Clone, PartialEq, Eq, Hash)]
struct TypeName(&'static str);

impl TypeName {
    fn of<T>() -> Self {
        Self(std::any::type_name::<T>())
    }
}

impl std::fmt::Debug for TypeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(super::def::short(self.0))
    }
}

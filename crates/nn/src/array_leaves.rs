//! An implicit array as the leaves that it is made of.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use mlx_rs::Array;
use tacit_arrays::{Adapter, Distributed};
use tacit_core::tree::{Labels, Node, Reader, Visitor};
use tacit_core::{Aval, ChildName, ImplicitArray, Result, Value, short_name};

use crate::filter::{BASE, Role};
use crate::within::{has_chosen, undropped};

/// An implicit array taken apart, so that its leaves can be lent and replaced one by one.
#[derive(Clone, Debug)]
pub(crate) struct ArrayLeaves {
    /// The path of the parameter, or the key of the moment.
    pub(crate) path: String,
    pub(crate) form: Form,
    pub(crate) aval: Aval,
    pub(crate) leaves: Vec<ArrayLeaf>,
}

#[derive(Clone, Debug)]
pub(crate) struct ArrayLeaf {
    /// The path of the parameter or moment and that of the child in it.
    pub(crate) path: String,
    pub(crate) role: Role,
    pub(crate) array: Array,
}

impl ArrayLeaves {
    /// Takes the value at `path` apart.
    pub(crate) fn new(path: &str, value: &Value) -> Result<Self> {
        let aval = value.aval()?;
        let mut leaves = Vec::new();
        let skeleton = taken_apart(path, value, None, &mut leaves)?;
        Ok(Self { path: path.to_owned(), form: Form::new(skeleton), aval, leaves })
    }

    /// The array that the leaves make.
    pub(crate) fn value(&self) -> Result<Value> {
        self.form.filled(&mut self.leaves.iter().map(|leaf| &leaf.array))
    }

    /// The array that a call has, which drops nothing out of training.
    pub(crate) fn used(&self, training: bool) -> Result<Value> {
        let drops = !training && self.leaves.iter().any(|leaf| leaf.role == Role::Choice);
        if drops { undropped(&self.value()?) } else { self.value() }
    }

    /// Takes other leaves where they make an array of the same form and aval, as those of a step do; tells whether it did.
    pub(crate) fn refill(&mut self, form: &Form, leaves: &[Array]) -> bool {
        let same = |(leaf, other): (&ArrayLeaf, &Array)| {
            leaf.array.dtype() == other.dtype() && leaf.array.shape() == other.shape()
        };
        let fits = self.leaves.len() == leaves.len() && self.leaves.iter().zip(leaves).all(same) && self.form == *form;
        if fits {
            self.leaves.iter_mut().zip(leaves).for_each(|(leaf, other)| leaf.array = other.clone());
        }
        fits
    }

    /// Whether it is trained as its codes, or something in it is.
    pub(crate) fn is_coded(&self) -> bool {
        self.leaves.iter().any(|leaf| leaf.role == Role::Coded)
    }

    /// Whether an adapter is in it, whose own arrays are trained.
    pub(crate) fn is_adapter(&self) -> bool {
        self.leaves.iter().any(|leaf| leaf.role == Role::Factor)
    }

    /// The probability with which an adapter in it would drop features, and has no random key to do so.
    pub(crate) fn lacks_key(&self) -> Option<f32> {
        fn lacking(value: &Value, is_part: bool) -> Option<f32> {
            let Value::Implicit(array) = value else { return None };
            let adapter = array.family::<dyn Adapter>().filter(|_| !is_part);
            let dropout = adapter.map(Adapter::dropout).filter(|dropout| *dropout > 0.0 && !has_chosen(value));
            let is_part = is_part || adapter.is_some();
            let within =
                || array.children().iter().find_map(|(name, child)| lacking(child, is_part && name.field != BASE));
            dropout.or_else(within)
        }
        // Each step asks, of every parameter.
        if self.is_adapter() { lacking(&self.form.skeleton, false) } else { None }
    }

    /// The array as messages show it.
    pub(crate) fn printed(&self) -> String {
        match &self.form.skeleton {
            Value::Implicit(array) => format!("{}({})", short_name(&**array), self.aval),
            Value::Dense(_) => self.aval.to_string(),
        }
    }

    /// Shows it as a node; `moves` says which of its leaves are trained.
    pub(crate) fn show<'a>(&'a self, moves: impl Fn(Role) -> bool, visitor: &mut dyn Visitor<'a>) {
        let children: Vec<&str> = self.leaves.iter().map(|leaf| &leaf.path[self.path.len() + 1..]).collect();
        visitor.node(&Node::new(PARAMETER, Labels::Keys(&children)).with_statics(&[(FORM, &self.form)]));
        for leaf in &self.leaves {
            if moves(leaf.role) { visitor.array(&leaf.array) } else { visitor.frozen(&leaf.array) }
        }
    }

    pub(crate) fn nbytes(&self) -> usize {
        self.leaves.iter().map(|leaf| leaf.array.nbytes()).sum()
    }
}

/// The node of an implicit parameter.
pub(crate) const PARAMETER: &str = "Parameter";
const FORM: &str = "form";

/// What such a node [shows](ArrayLeaves::show): the form of its array, and the leaves.
pub(crate) fn shown(reader: &mut Reader<'_>) -> Result<(Form, Vec<Array>)> {
    let entered = reader.enter(PARAMETER)?;
    let leaves = (0..entered.len()).map(|_| reader.array()).collect::<Result<_>>()?;
    Ok((entered.static_field(FORM)?, leaves))
}

/// An implicit array without data: equal and hash equal where the types and all static fields are.
#[derive(Clone)]
pub(crate) struct Form {
    skeleton: Value,
    /// Which form it is a clone of: forms of one model are compared at each call, mostly with their clones.
    number: u64,
}

impl Form {
    fn new(skeleton: Value) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { skeleton, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn filled(&self, leaves: &mut dyn Iterator<Item = &Array>) -> Result<Value> {
        put_together(&self.skeleton, leaves)
    }
}

/// Equal forms are printed alike: why a function is traced again is found in what is printed.
impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.skeleton, f)
    }
}

impl PartialEq for Form {
    fn eq(&self, other: &Self) -> bool {
        fn same(a: &Value, b: &Value) -> bool {
            match (a, b) {
                (Value::Implicit(a), Value::Implicit(b)) => {
                    let (own, others) = (a.children(), b.children());
                    a.aux_eq(&**b)
                        && own.len() == others.len()
                        && own.iter().zip(&others).all(|((x, a), (y, b))| x == y && same(a, b))
                }
                (Value::Dense(_), Value::Dense(_)) => true,
                _ => false,
            }
        }
        self.number == other.number || same(&self.skeleton, &other.skeleton)
    }
}

impl Eq for Form {}

impl Hash for Form {
    fn hash<H: Hasher>(&self, state: &mut H) {
        fn fed(value: &Value, state: &mut dyn Hasher) {
            if let Value::Implicit(array) = value {
                array.aux_hash(state);
                array.children().iter().for_each(|(_, child)| fed(child, state));
            }
        }
        fed(&self.skeleton, state);
    }
}

fn taken_apart(path: &str, value: &Value, role: Option<Role>, leaves: &mut Vec<ArrayLeaf>) -> Result<Value> {
    let array: &dyn ImplicitArray = match value {
        Value::Dense(array) => {
            let role = role.unwrap_or(Role::Other);
            leaves.push(ArrayLeaf { path: path.to_owned(), role, array: array.clone() });
            return Ok(Array::from_bool(false).into());
        }
        Value::Implicit(array) => &**array,
    };
    let placed = array.family::<dyn Distributed>().is_some();
    let children = array.children().into_iter().map(|(name, child): (ChildName, Value)| {
        let role = match &child {
            Value::Dense(_) if placed => Some(role.unwrap_or(Role::Dense)),
            Value::Implicit(_) if placed => role,
            _ => Some(Role::of_child(array, name, role)),
        };
        taken_apart(&format!("{path}.{name}"), &child, role, leaves)
    });
    let children = children.collect::<Result<_>>()?;
    Ok(array.with_children(children)?.into())
}

fn put_together(skeleton: &Value, leaves: &mut dyn Iterator<Item = &Array>) -> Result<Value> {
    let array = match skeleton {
        Value::Dense(_) => {
            let leaf = leaves.next().unwrap_or_else(|| unreachable!("there is a leaf for each child of the skeleton"));
            return Ok(leaf.into());
        }
        Value::Implicit(array) => array,
    };
    let children = array.children().iter().map(|(_, child)| put_together(child, leaves)).collect::<Result<_>>()?;
    Ok(array.with_children(children)?.into())
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops;
    use tacit_arrays::format::AnyFormat;

    use super::*;

    #[test]
    fn equal_forms_are_printed_alike() {
        let form = |text: &str| {
            let format: AnyFormat = text.parse().expect("a format");
            let value = format.quantize(&ops::ones::<f32>(&[4, 128]).expect("ones")).expect("fits");
            ArrayLeaves::new("weight", &value).expect("is taken apart").form
        };
        let [one, same, other] = ["nf4:64", "nf4:64", "nf4:128"].map(form);
        assert!(one == same && one != other);
        let [one, same, other] = [one, same, other].map(|form| format!("{form:?}"));
        assert!(one == same && one != other, "{one}\n{same}\n{other}");
    }
}

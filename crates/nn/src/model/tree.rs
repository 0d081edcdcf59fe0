//! A model as a tree.

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_core::tree::{Arguments, Labels, Leaf, Node, Reader, Visitor};
use tacit_core::{Error, Result, Tree};

use super::Model;
use super::held::Form;
use crate::module::is_statistic;
use crate::parameters::sorted;

const MODEL: &str = "Model";
const PARAMETER: &str = "Parameter";
const FORM: &str = "form";

impl<M: ModuleParameters> Arguments for Model<M> {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let mut parameters = sorted(&self.module);
        parameters.retain(|(path, _)| !self.ties.contains_key(&**path));
        let keys: Vec<&str> = parameters.iter().map(|(key, _)| &**key).collect();
        visitor.node(&Node::new(MODEL, Labels::Keys(&keys)));
        let unfrozen = self.module.trainable_parameters().flatten();
        for (path, array) in parameters {
            match self.held.get(&*path) {
                Some(held) => {
                    let children: Vec<&str> = held.leaves.iter().map(|leaf| &leaf.path[path.len() + 1..]).collect();
                    visitor.node(&Node::new(PARAMETER, Labels::Keys(&children)).with_statics(&[(FORM, &held.form)]));
                    held.leaves.iter().for_each(|leaf| visitor.array(&leaf.array));
                }
                None if is_statistic(&path) || !unfrozen.contains_key(&path) => visitor.frozen(array),
                None => visitor.array(array),
            }
        }
        Ok(())
    }
}

/// The leaves are the model's leaves by path; what the implicit parameters are made of them is in the structure. It can be a
/// state, and not an argument: a module cannot be made of its parameters alone.
impl<M: ModuleParameters> Tree for Model<M> {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(_: &mut Reader<'_>) -> Result<Self> {
        Err(Error::invalid(
            "a module cannot be made of its parameters alone",
            "pass it as the state of `compile_with_state`, or change it in place",
        ))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let mut values = Vec::new();
        for path in reader.enter(MODEL)?.keys() {
            let value = if reader.is_at(PARAMETER) {
                let entered = reader.enter(PARAMETER)?;
                let leaves = (0..entered.len()).map(|_| reader.array()).collect::<Result<Vec<Array>>>()?;
                entered.static_field::<Form>(FORM)?.filled(&mut leaves.iter())?
            } else {
                reader.value()?
            };
            values.push((path.to_owned(), value));
        }
        self.put_each(values)
    }
}

//! The meaning of leaves beside their numbers, so that a file of leaves is loaded into a model of the same kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use serde::{Deserialize, Serialize};
use tacit_arrays::{Adapter, Distributed};
use tacit_core::{Error, ImplicitArray, Result, Value};

use super::Model;
use crate::ParameterFilter;
use crate::filter::Role;
use crate::parameters::some_of;

/// What some leaves of a model mean: which parts they are, and for each the kinds of the arrays around it, with their static
/// fields, such as the `alpha` of an adapter or the bits of a format.
///
/// A file of leaves has it, and [`Model::load_leaves`] checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafKinds {
    /// The parts of which these are all leaves.
    whole: Vec<String>,
    /// Nothing of a dense parameter.
    leaves: BTreeMap<String, Option<LeafKind>>,
}

/// The kind of array that holds a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeafKind {
    #[serde(flatten)]
    holder: Kind,
    /// The arrays around that one, from the outermost on. Files of earlier versions do not say them.
    around: Option<Vec<Kind>>,
}

/// A type of arrays, and its fields that are no arrays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kind {
    kind: String,
    fields: BTreeMap<String, String>,
}

/// Fields that leaves do not depend on, of one type where they mean that there alone: the base may have another float type, products
/// may be computed otherwise, training may stand elsewhere, and what is joined has the extents of its parts.
const LEFT_OUT: [(&str, Option<&str>); 6] = [
    ("aval", None),
    ("dropout", None),
    ("int8_activations", None),
    ("bounds", Some("tacit.Concat")),
    ("on", Some("tacit.Prepared")),
    ("stored", Some("tacit.Cast")),
];

impl LeafKinds {
    /// The paths of the leaves.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.leaves.keys().map(String::as_str)
    }

    /// The same with those of other leaves beside them. Of a leaf that both have, what the others say counts.
    #[must_use]
    pub fn with(mut self, others: Self) -> Self {
        for part in others.whole {
            if !self.whole.contains(&part) {
                self.whole.push(part);
            }
        }
        self.leaves.extend(others.leaves);
        self
    }

    /// The same of leaves that have other paths, such as those of a parameter that is split; one without a path is left out.
    #[must_use]
    pub fn renamed(self, path: impl Fn(&str) -> Option<String>) -> Self {
        let leaves = self.leaves.into_iter().filter_map(|(old, kind)| Some((path(&old)?, kind)));
        Self { whole: self.whole, leaves: leaves.collect() }
    }
}

impl LeafKind {
    /// The kind of a leaf of the last of these arrays, which are around each other.
    fn from_arrays(arrays: &[&dyn ImplicitArray]) -> Option<Self> {
        let (holder, around) = arrays.split_last()?;
        let around = around.iter().map(|array| Kind::from_array(*array)).collect();
        Some(Self { holder: Kind::from_array(*holder), around: Some(around) })
    }

    /// Whether leaves of both mean the same, as far as both say it.
    fn agrees(&self, other: &Self) -> bool {
        let around = self.around.as_ref().zip(other.around.as_ref());
        self.holder == other.holder && around.is_none_or(|(own, other)| own == other)
    }
}

impl fmt::Display for LeafKind {
    /// As `tacit.Lora (alpha 32, transposed false) in tacit.Scaled (divides false)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.holder)?;
        self.around.iter().flatten().rev().try_for_each(|kind| write!(f, " in {kind}"))
    }
}

impl Kind {
    fn from_array(array: &dyn ImplicitArray) -> Self {
        let (kind, adapter) = (array.array_type().saved_as, array.family::<dyn Adapter>().is_some());
        let is_left_out =
            |field: &str| LEFT_OUT.iter().any(|(name, of)| *name == field && of.is_none_or(|of| of == kind));
        let field = |(name, text): (&str, String)| {
            // Static fields are compared by their bits, and read as numbers.
            let text = match text.parse() {
                Ok(bits) if adapter && name == "alpha" => f32::from_bits(bits).to_string(),
                _ => text,
            };
            (name.to_owned(), text)
        };
        let fields = array.aux().into_iter().filter(|(name, _)| !is_left_out(name)).map(field).collect();
        Self { kind: kind.to_owned(), fields }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<String> = self.fields.iter().map(|(name, text)| format!("{name} {text}")).collect();
        if fields.is_empty() { f.write_str(&self.kind) } else { write!(f, "{} ({})", self.kind, fields.join(", ")) }
    }
}

impl<M: ModuleParameters> Model<M> {
    /// The leaves of a part that a file saves: all but the dropout keys of adapters.
    #[must_use]
    pub fn lasting_leaves(&self, only: &ParameterFilter) -> Vec<(String, &Array)> {
        self.chosen(only, |leaf| leaf.role != Role::Choice)
    }

    /// What the leaves that a file saves mean: the kinds of the arrays that each belongs to, with their static fields.
    ///
    /// # Errors
    ///
    /// An implicit array refuses its own children.
    pub fn leaf_kinds(&self, only: &ParameterFilter) -> Result<LeafKinds> {
        let whole = only.whole().into_iter().map(str::to_owned).collect();
        let mut by_path = BTreeMap::new();
        for (path, value) in self.values()? {
            kinds(&path, &value, &[], &mut by_path);
        }
        let kind = |(path, _): (String, &Array)| {
            let kind = by_path.remove(&path).flatten();
            (path, kind)
        };
        Ok(LeafKinds { whole, leaves: self.lasting_leaves(only).into_iter().map(kind).collect() })
    }

    /// Replaces leaves as [`set_leaves`](Self::set_leaves) does, if they mean the same in the model as when they were saved.
    ///
    /// Without kinds, as in files of earlier versions, only one thing can be checked: where one leaf of the adapters, the scales or the
    /// masters is given, all leaves of that part have to be.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::nn;
    /// use tacit_nn::{LoraConfig, Model, ParameterFilter};
    ///
    /// let adapted = |alpha| Model::new(nn::Linear::new(64, 64)?)?.lora("weight", LoraConfig { alpha, ..LoraConfig::default() });
    /// let (trained, mut other): (Model<nn::Linear>, Model<nn::Linear>) = (adapted(32.0)?, adapted(1.0)?);
    /// let leaves = trained.lasting_leaves(&ParameterFilter::Lora).into_iter().map(|(path, array)| (path, array.clone()));
    /// let error = other.load_leaves(leaves.collect::<Vec<_>>(), Some(&trained.leaf_kinds(&ParameterFilter::Lora)?)).unwrap_err();
    /// assert!(error.to_string().contains("alpha 32"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// No leaf is given; a leaf that the kinds name is not given, or one that they do not name is; the model has another leaf of a
    /// part that the kinds say is whole; a leaf belongs to another kind of array in the model, or to one with other fields; or as for
    /// [`set_leaves`](Self::set_leaves).
    pub fn load_leaves(
        &mut self,
        arrays: impl IntoIterator<Item = (String, Array)>,
        kinds: Option<&LeafKinds>,
    ) -> Result<()> {
        let arrays = self.own_leaves(arrays)?;
        if arrays.is_empty() {
            return Err(Error::invalid("there is no leaf to load", "save the leaves that are trained"));
        }
        let paths: BTreeSet<&str> = arrays.keys().map(String::as_str).collect();
        let whole: Vec<&str> = match kinds {
            Some(kinds) => {
                let named: Vec<String> = kinds.paths().map(|path| self.own_leaf(path)).collect();
                let named: BTreeSet<&str> = named.iter().map(String::as_str).collect();
                refuse("leaves that were saved are not given", ALL_LEAVES, named.difference(&paths))?;
                let help = "leave them out: what they mean is in the file that they were saved in";
                refuse("leaves are given that were not saved with the others", help, paths.difference(&named))?;
                kinds.whole.iter().map(String::as_str).collect()
            }
            None => self.parts_of(&paths),
        };
        if let Some(kinds) = kinds {
            self.refuse_differing(kinds, &self.leaf_kinds(&ParameterFilter::All)?)?;
        } else if whole.contains(&"lora") {
            tracing::warn!(
                target: "tacit",
                "the leaves say nothing of the scale and the kind of their adapters: they are taken to be those of the model"
            );
        }
        self.refuse_lacking(whole, &paths)?;
        self.put_leaves(arrays)
    }

    /// Checks that leaves of these kinds, and no fewer, can be loaded into the model as it is now.
    ///
    /// # Errors
    ///
    /// The model has lost one of them, or has two of them as one; one belongs to another kind of array in the model, or to one with
    /// other fields; or the model has another leaf of a part that they say is whole.
    pub fn check_leaves(&self, kinds: &LeafKinds) -> Result<()> {
        const HELP: &str = "take the leaves of the model as it is now, without those that it had before";
        let model_kinds = self.leaf_kinds(&ParameterFilter::All)?;
        let mut paths = BTreeMap::new();
        let mut lost = Vec::new();
        for path in kinds.paths() {
            let leaf = self.own_leaf(path);
            if !model_kinds.leaves.contains_key(&leaf) {
                lost.push(path);
            } else if let Some(other) = paths.insert(leaf, path) {
                return Err(Error::invalid(format!("{other} and {path} are one leaf of the model"), HELP));
            }
        }
        if !lost.is_empty() {
            return Err(Error::invalid(format!("the model does not have these leaves: {}", some_of(lost)), HELP));
        }
        self.refuse_differing(kinds, &model_kinds)?;
        let leaves = paths.keys().map(String::as_str).collect();
        self.refuse_lacking(kinds.whole.iter().map(String::as_str), &leaves).map_err(|error| {
            // Here no file has them.
            Error::invalid(error.clause(), "take all leaves of that part from the model as it is now")
        })
    }

    /// Refuses a leaf that is of another kind among `model_kinds`, which are all of the model.
    fn refuse_differing(&self, kinds: &LeafKinds, model_kinds: &LeafKinds) -> Result<()> {
        let differing = kinds.leaves.iter().find_map(|(path, saved)| {
            let own = model_kinds.leaves.get(&self.own_leaf(path))?;
            let agree = match (saved, own) {
                (Some(saved), Some(own)) => saved.agrees(own),
                // A dense parameter is of none.
                (saved, own) => saved.is_none() && own.is_none(),
            };
            (!agree).then_some((path, saved, own))
        });
        let Some((path, saved, own)) = differing else { return Ok(()) };
        let shown = |kind: &Option<LeafKind>| kind.as_ref().map_or("dense".to_owned(), LeafKind::to_string);
        Err(Error::invalid(
            format!("the leaf {path} was saved of {}, and is of {} in the model", shown(saved), shown(own)),
            "make the model as it was when the leaves were saved, with the same kinds, alphas and formats",
        ))
    }

    /// Refuses that leaves of whole parts are not given.
    fn refuse_lacking<'p>(&self, whole: impl IntoIterator<Item = &'p str>, given: &BTreeSet<&str>) -> Result<()> {
        for part in whole.into_iter().filter_map(ParameterFilter::named) {
            let leaves = self.lasting_leaves(part);
            let lacking = leaves.iter().map(|(path, _)| path.as_str()).filter(|path| !given.contains(path));
            let what = format!("leaves of the model are not given, of {part:?}");
            refuse(&what, ALL_LEAVES, lacking.collect::<Vec<_>>().iter())?;
        }
        Ok(())
    }

    /// The parts that some of these leaves belong to, dense parameters aside.
    fn parts_of(&self, given: &BTreeSet<&str>) -> Vec<&'static str> {
        let parts = [ParameterFilter::Lora, ParameterFilter::Scales, ParameterFilter::Masters];
        let some =
            |part: &&ParameterFilter| self.lasting_leaves(part).iter().any(|(path, _)| given.contains(path.as_str()));
        parts.iter().filter(some).flat_map(ParameterFilter::whole).collect()
    }
}

/// The kinds of the arrays around each leaf of a value, which `around` are around; where a part of it lies is nothing of what
/// it means.
fn kinds(path: &str, value: &Value, around: &[&dyn ImplicitArray], all: &mut BTreeMap<String, Option<LeafKind>>) {
    let Value::Implicit(array) = value else {
        all.insert(path.to_owned(), LeafKind::from_arrays(around));
        return;
    };
    let mut within = around.to_vec();
    if array.family::<dyn Distributed>().is_none() {
        within.push(&**array);
    }
    for (name, child) in array.children() {
        kinds(&format!("{path}.{name}"), &child, &within, all);
    }
}

const ALL_LEAVES: &str =
    "give all leaves of the file that they were saved in; `ParameterFilter::Paths` saves and loads some by themselves";

/// An error that names these paths, if there are any.
fn refuse<'p>(what: &str, help: &str, paths: impl Iterator<Item = &'p &'p str>) -> Result<()> {
    let paths: Vec<&&str> = paths.collect();
    if paths.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(format!("{what}: {}", some_of(paths)), help))
}

//! The structure of a tree, apart from its leaves.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use mlx_rs::Array;

use super::reader::Item;
use super::{Labels, Node, Open, Path, Reader, Static, Tree, Visitor};
use crate::{ChildName, Error, ImplicitArray, Result, Value, short_name};

/// The structure of a tree: the kind, the labels and every static field of each node, and where its leaves are.
///
/// Two are equal if all of that is: `[[a], b]` and `[[a, b]]` differ, and so do two nf4 arrays of different block sizes.
/// It prints as the tree with a `*` for each leaf.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree;
///
/// let a = || Array::from_f32(1.0);
/// let def = tree::structure(&(vec![a()], [a(), a()]))?;
/// assert_eq!(def.to_string(), "([*], [*, *])");
/// assert_ne!(def, tree::structure(&(vec![a(), a()], [a()]))?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TreeDef {
    /// Each node before its children.
    entries: Rc<[Entry]>,
    leaves: usize,
}

/// Where two trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The first place.
    pub path: Path,
    /// What differs there, as in `static block_size 64 -> 32`.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.what, self.path.shown())
    }
}

#[derive(Clone)]
pub(super) enum Entry {
    Leaf,
    Implicit {
        /// The array with children that hold nothing.
        skeleton: Box<dyn ImplicitArray>,
        names: Vec<ChildName>,
    },
    Node(OwnNode),
}

#[derive(Clone)]
pub(super) struct OwnNode {
    pub(super) name: &'static str,
    pub(super) labels: OwnLabels,
    pub(super) statics: Vec<(&'static str, Rc<dyn Static>)>,
    pub(super) template: Option<Rc<dyn Any>>,
}

#[derive(Clone)]
pub(super) enum OwnLabels {
    Positions(usize),
    Inner,
    Fields(&'static [&'static str]),
    Keys(Vec<String>),
}

impl TreeDef {
    /// The number of leaves.
    #[must_use]
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// The paths of the leaves, in order.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::with_capacity(self.leaves);
        self.walk(|entry, path| {
            if matches!(entry, Entry::Leaf) {
                paths.push(path.clone());
            }
        });
        paths
    }

    /// The first place where `other` differs.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let differing = self.entries.iter().zip(&*other.entries).position(|(a, b)| a != b)?;
        let mut paths = Vec::with_capacity(self.len());
        self.walk(|_, path| paths.push(path.clone()));
        Some(Difference {
            path: paths.swap_remove(differing),
            what: self.entries[differing].difference(&other.entries[differing]),
        })
    }

    /// The same structure with every implicit array among its leaves fully opened, and the leaves of that.
    pub(crate) fn opened(&self, leaves: Vec<Value>) -> Result<(Vec<Value>, TreeDef)> {
        let mut leaves = leaves.into_iter();
        let mut flattened = Flattened::new(Open::Fully);
        for entry in &*self.entries {
            match entry {
                Entry::Leaf => leaves.next().into_iter().for_each(|leaf| flattened.value(leaf)),
                node => flattened.entries.push(node.clone()),
            }
        }
        flattened.finish()
    }

    /// The values of an opened structure: its implicit arrays put together again.
    pub(crate) fn closed(&self, arrays: Vec<Array>) -> Result<Vec<Value>> {
        let mut reader = Reader::new(self, arrays.into_iter().map(|array| Item::Value(array.into())))?;
        let mut values = Vec::new();
        while let Some(value) = reader.next_value() {
            values.push(value?);
        }
        Ok(values)
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.entries, &other.entries)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn is_leaf(&self, position: usize) -> bool {
        matches!(self.entries.get(position), Some(Entry::Leaf))
    }

    pub(super) fn is_node(&self, position: usize, node: &Node<'_>) -> bool {
        matches!(self.entries.get(position), Some(Entry::Node(own)) if own.is(node))
    }

    /// The names of the children, if there is an implicit array like this one.
    pub(super) fn implicit_children(&self, position: usize, array: &dyn ImplicitArray) -> Option<&[ChildName]> {
        match self.entries.get(position) {
            Some(Entry::Implicit { skeleton, names }) if skeleton.aux_eq(array) => Some(names),
            _ => None,
        }
    }

    /// Calls `f` with each entry and its path.
    fn walk<'t>(&'t self, mut f: impl FnMut(&'t Entry, &Path)) {
        let mut open: Vec<(Path, Box<dyn Iterator<Item = Path> + 't>)> = Vec::new();
        for entry in &*self.entries {
            let path = loop {
                match open.last_mut() {
                    None => break Path::default(),
                    Some((_, children)) => match children.next() {
                        Some(path) => break path,
                        None => open.pop(),
                    },
                };
            };
            f(entry, &path);
            open.push((path.clone(), entry.child_paths(path)));
        }
    }
}

/// Builds the definition of a tree while it is visited, and collects its leaves.
pub(crate) struct Flattened {
    entries: Vec<Entry>,
    leaves: Vec<Value>,
    open: Open,
    /// How many more layers are opened.
    layers: usize,
    failure: Option<Error>,
}

impl Flattened {
    pub(crate) fn of<T: Tree>(tree: &T, open: Open) -> Result<(Vec<Value>, TreeDef)> {
        Self::shown(open, |visitor| tree.flatten(visitor))
    }

    /// As [`of`](Self::of) a tree that `show` shows.
    pub(crate) fn shown<'a>(
        open: Open,
        show: impl FnOnce(&mut dyn Visitor<'a>) -> Result<()>,
    ) -> Result<(Vec<Value>, TreeDef)> {
        let mut flattened = Self::new(open);
        show(&mut flattened)?;
        flattened.finish()
    }

    fn new(open: Open) -> Self {
        Self { entries: Vec::new(), leaves: Vec::new(), open, layers: open.layers(), failure: None }
    }

    fn finish(self) -> Result<(Vec<Value>, TreeDef)> {
        self.failure.map_or(Ok(()), Err)?;
        let leaves = self.leaves.len();
        Ok((self.leaves, TreeDef { entries: self.entries.into(), leaves }))
    }

    fn leaf(&mut self, value: Value) {
        self.entries.push(Entry::Leaf);
        self.leaves.push(value);
    }

    fn implicit_array(&mut self, array: &dyn ImplicitArray) {
        if self.layers == 0 || !self.open.chooses(array) {
            return self.leaf(dyn_clone::clone_box(array).into());
        }
        let children = array.children();
        // One element stands for every child: the structure must not keep the data.
        let nothing = Value::from(Array::from_bool(false));
        let skeleton = match array.with_children(vec![nothing; children.len()]) {
            Ok(skeleton) => skeleton,
            Err(error) => {
                self.failure.get_or_insert(error);
                return;
            }
        };
        self.entries.push(Entry::Implicit { skeleton, names: children.iter().map(|(name, _)| *name).collect() });
        self.layers -= 1;
        for (_, child) in children {
            self.value(child);
        }
        self.layers += 1;
    }

    fn value(&mut self, value: Value) {
        match value {
            Value::Dense(_) => self.leaf(value),
            Value::Implicit(array) => self.implicit_array(&*array),
        }
    }
}

impl<'a> Visitor<'a> for Flattened {
    fn array(&mut self, array: &'a Array) {
        self.leaf(array.into());
    }

    fn implicit(&mut self, array: &'a dyn ImplicitArray) {
        self.implicit_array(array);
    }

    fn made(&mut self, value: Value) {
        self.value(value);
    }

    fn node(&mut self, node: &Node<'_>) {
        self.entries.push(Entry::Node(OwnNode {
            name: node.name,
            labels: match node.labels {
                Labels::Positions(count) => OwnLabels::Positions(count),
                Labels::Inner => OwnLabels::Inner,
                Labels::Fields(fields) => OwnLabels::Fields(fields),
                Labels::Keys(keys) => OwnLabels::Keys(keys.iter().map(|key| (*key).to_owned()).collect()),
            },
            statics: node.statics.iter().map(|(name, value)| (*name, value.shared())).collect(),
            template: node.template.map(|make| make()),
        }));
    }
}

impl OwnLabels {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Positions(count) => *count,
            Self::Inner => 1,
            Self::Fields(fields) => fields.len(),
            Self::Keys(keys) => keys.len(),
        }
    }

    fn are(&self, labels: Labels<'_>) -> bool {
        match (self, labels) {
            (Self::Positions(own), Labels::Positions(other)) => *own == other,
            (Self::Inner, Labels::Inner) => true,
            (Self::Fields(own), Labels::Fields(other)) => *own == other,
            (Self::Keys(own), Labels::Keys(other)) => own.iter().eq(other.iter()),
            _ => false,
        }
    }
}

impl PartialEq for OwnLabels {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Positions(a), Self::Positions(b)) => a == b,
            (Self::Inner, Self::Inner) => true,
            (Self::Fields(a), Self::Fields(b)) => a == b,
            (Self::Keys(a), Self::Keys(b)) => a == b,
            _ => false,
        }
    }
}

impl OwnNode {
    fn is(&self, node: &Node<'_>) -> bool {
        self.name == node.name
            && self.labels.are(node.labels)
            && self.statics.len() == node.statics.len()
            && self.statics.iter().zip(node.statics).all(|((a, own), (b, other))| a == b && own.equals(*other))
    }
}

impl PartialEq for OwnNode {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.labels == other.labels
            && self.statics.len() == other.statics.len()
            && self.statics.iter().zip(&other.statics).all(|((a, own), (b, other))| a == b && own.equals(&**other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leaf, Self::Leaf) => true,
            (Self::Implicit { skeleton: a, names: x }, Self::Implicit { skeleton: b, names: y }) => {
                a.aux_eq(&**b) && x == y
            }
            (Self::Node(a), Self::Node(b)) => a == b,
            _ => false,
        }
    }
}

impl Entry {
    fn child_paths<'t>(&'t self, parent: Path) -> Box<dyn Iterator<Item = Path> + 't> {
        match self {
            Self::Leaf => Box::new(std::iter::empty()),
            Self::Implicit { names, .. } => Box::new(names.iter().map(move |name| parent.join(name))),
            Self::Node(node) => match &node.labels {
                OwnLabels::Positions(count) => Box::new((0..*count).map(move |i| parent.join(&i))),
                OwnLabels::Inner => Box::new(std::iter::once(parent)),
                OwnLabels::Fields(fields) => Box::new(fields.iter().map(move |field| parent.join(field))),
                OwnLabels::Keys(keys) => Box::new(keys.iter().map(move |key| parent.join(key))),
            },
        }
    }

    /// What the entry is, without its children.
    fn kind(&self, full: bool) -> String {
        let name = |node: &OwnNode| if full { node.name } else { short(node.name) };
        match self {
            Self::Leaf => "an array".to_owned(),
            Self::Implicit { skeleton, .. } if full => skeleton.typetag_name().to_owned(),
            Self::Implicit { skeleton, .. } => short_name(&**skeleton).to_owned(),
            Self::Node(node) => match &node.labels {
                OwnLabels::Positions(count) if *count > 0 => format!("{} of {count}", name(node)),
                OwnLabels::Keys(keys) if keys.is_empty() => format!("{} without keys", name(node)),
                OwnLabels::Keys(keys) => format!("{} with the keys {}", name(node), keys.join(", ")),
                OwnLabels::Positions(_) | OwnLabels::Inner | OwnLabels::Fields(_) => name(node).to_owned(),
            },
        }
    }

    fn difference(&self, other: &Self) -> String {
        let statics = |a: &[(&'static str, String)], b: &[(&'static str, String)]| {
            let differing = a.iter().zip(b).find(|(a, b)| a != b)?;
            Some(format!("static {} {} -> {}", differing.0.0, differing.0.1, differing.1.1))
        };
        let found = match (self, other) {
            (Self::Implicit { skeleton: a, names: x }, Self::Implicit { skeleton: b, names: y })
                if a.typetag_name() == b.typetag_name() =>
            {
                if a.aux_eq(&**b) && x != y {
                    Some(format!("{} with {} children -> {} children", self.kind(false), x.len(), y.len()))
                } else {
                    statics(&a.aux(), &b.aux())
                }
            }
            (Self::Node(a), Self::Node(b)) if a.name == b.name && a.labels == b.labels => {
                let printed = |node: &OwnNode| -> Vec<_> {
                    node.statics.iter().map(|(name, value)| (*name, format!("{value:?}"))).collect()
                };
                statics(&printed(a), &printed(b))
            }
            _ => None,
        };
        found.unwrap_or_else(|| {
            let full = self.kind(false) == other.kind(false);
            format!("{} -> {}", self.kind(full), other.kind(full))
        })
    }
}

/// A type's name without its path.
pub(super) fn short(name: &'static str) -> &'static str {
    let path = name.split('<').next().unwrap_or(name);
    // An enum's variant keeps the enum's name: both begin with a capital letter.
    let mut parts = path.rsplitn(3, "::");
    let last = parts.next().unwrap_or(path);
    let kept = match parts.next() {
        Some(parent) if parent.starts_with(char::is_uppercase) => parent.len() + 2 + last.len(),
        _ => last.len(),
    };
    &name[path.len() - kept..]
}

impl PartialEq for TreeDef {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.entries, &other.entries) || self.entries == other.entries
    }
}

impl Eq for TreeDef {}

impl Hash for TreeDef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        for entry in &*self.entries {
            match entry {
                Entry::Leaf => 0u8.hash(state),
                Entry::Implicit { skeleton, names } => {
                    skeleton.aux_hash(state);
                    names.len().hash(state);
                }
                Entry::Node(node) => {
                    node.name.hash(state);
                    node.labels.len().hash(state);
                    for (_, value) in &node.statics {
                        value.hash_into(state);
                    }
                }
            }
        }
    }
}

impl fmt::Display for TreeDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_entry(f, &mut self.entries.iter())
    }
}

impl fmt::Debug for TreeDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TreeDef({self})")
    }
}

fn write_entry(f: &mut fmt::Formatter<'_>, entries: &mut std::slice::Iter<'_, Entry>) -> fmt::Result {
    match entries.next() {
        None | Some(Entry::Leaf) => f.write_str("*"),
        Some(Entry::Implicit { skeleton, names }) => {
            f.write_str(short_name(&**skeleton))?;
            let aux = skeleton.aux();
            write_children(f, ["{", "}"], names.iter().map(|name| Some(name.to_string())), &aux, entries)
        }
        Some(Entry::Node(node)) => {
            let statics: Vec<_> = node.statics.iter().map(|(name, value)| (*name, format!("{value:?}"))).collect();
            let brackets = match node.name {
                "tuple" => ["(", ")"],
                "list" | "array" => ["[", "]"],
                "map" => ["{", "}"],
                "Some" => ["", ""],
                name => {
                    f.write_str(short(name))?;
                    match &node.labels {
                        OwnLabels::Fields(fields) if fields.is_empty() && statics.is_empty() => ["", ""],
                        OwnLabels::Positions(0) if statics.is_empty() => ["", ""],
                        OwnLabels::Positions(_) | OwnLabels::Inner => ["(", ")"],
                        OwnLabels::Fields(_) | OwnLabels::Keys(_) => ["{", "}"],
                    }
                }
            };
            match &node.labels {
                OwnLabels::Positions(count) => {
                    write_children(f, brackets, (0..*count).map(|_| None), &statics, entries)
                }
                OwnLabels::Inner => write_children(f, brackets, std::iter::once(None), &statics, entries),
                OwnLabels::Fields(fields) => {
                    write_children(f, brackets, fields.iter().map(|field| Some((*field).to_owned())), &statics, entries)
                }
                OwnLabels::Keys(keys) => write_children(f, brackets, keys.iter().cloned().map(Some), &statics, entries),
            }
        }
    }
}

fn write_children(
    f: &mut fmt::Formatter<'_>,
    [open, close]: [&str; 2],
    labels: impl Iterator<Item = Option<String>>,
    statics: &[(&'static str, String)],
    entries: &mut std::slice::Iter<'_, Entry>,
) -> fmt::Result {
    f.write_str(open)?;
    let mut separator = "";
    for label in labels {
        f.write_str(separator)?;
        if let Some(label) = label {
            write!(f, "{label}: ")?;
        }
        write_entry(f, entries)?;
        separator = ", ";
    }
    for (name, value) in statics {
        write!(f, "{separator}{name}={value}")?;
        separator = ", ";
    }
    f.write_str(close)
}

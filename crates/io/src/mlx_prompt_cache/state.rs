//! The state of a cache: a tree whose leaves are arrays, numbers and words.

use std::collections::BTreeMap;

use mlx_rs::Array;
use tacit_core::Error;

use crate::Tensors;

/// A part of a state.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Leaf(Leaf),
    /// By their places, of which some may be missing.
    Branch(BTreeMap<usize, Node>),
}

#[derive(Clone, Debug)]
pub(super) enum Leaf {
    Array(Array),
    Integer(i32),
    Flag(bool),
    Text(String),
    Nothing,
}

/// What is wrong, and in which part.
pub(super) struct Fault {
    /// The places that lead to it, the outermost first.
    path: Vec<String>,
    pub(super) reason: String,
}

pub(super) type Found<T> = Result<T, Fault>;

/// The most places that lead to a leaf: a list in a list of caches has seven.
const DEEPEST: usize = 16;

pub(super) const HELP: &str =
    "the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later";

impl Node {
    pub(super) fn branch(nodes: impl IntoIterator<Item = Self>) -> Self {
        Self::Branch(nodes.into_iter().enumerate().collect())
    }

    pub(super) fn integer(number: i32) -> Self {
        Self::Leaf(Leaf::Integer(number))
    }

    pub(super) fn array(array: &Array) -> Self {
        Self::Leaf(Leaf::Array(array.clone()))
    }

    pub(super) fn option(array: Option<&Array>) -> Self {
        array.map_or(Self::Leaf(Leaf::Nothing), Self::array)
    }

    /// Puts a leaf at the places of a name such as `0.1.2`, behind those that come before it in alphabetical order.
    pub(super) fn insert(&mut self, name: &str, leaf: Leaf) -> Found<()> {
        let mut node = self;
        for (depth, part) in name.split('.').enumerate() {
            let place = part.parse::<usize>().ok().filter(|place| depth < DEEPEST && place.to_string() == part);
            let place = place.ok_or_else(|| Fault::at(name, "its name is not the place of a part"))?;
            let Self::Branch(nodes) = node else {
                return Err(Fault::at(name, "there is another part where it would be"));
            };
            node = nodes.entry(place).or_insert_with(|| Self::Branch(BTreeMap::new()));
        }
        debug_assert!(
            matches!(node, Self::Branch(nodes) if nodes.is_empty()),
            "names come once, in alphabetical order"
        );
        *node = Self::Leaf(leaf);
        Ok(())
    }

    pub(super) fn leaves(&self, name: &str, found: &mut Vec<(String, Leaf)>) {
        match self {
            Self::Leaf(leaf) => found.push((name.to_owned(), leaf.clone())),
            Self::Branch(nodes) => {
                for (place, node) in nodes {
                    node.leaves(&format!("{name}.{place}"), found);
                }
            }
        }
    }

    pub(super) fn parts<const N: usize>(self) -> Found<[Self; N]> {
        let parts = self.list()?;
        let count = parts.len();
        parts.try_into().map_err(|_| Fault::new(format!("it has {count} parts, and its class has {N}")))
    }

    /// All parts, none of which is missing.
    pub(super) fn list(self) -> Found<Vec<Self>> {
        match self {
            Self::Branch(nodes) => match nodes.keys().zip(0..).find(|(place, expected)| *place != expected) {
                None => Ok(nodes.into_values().collect()),
                Some((_, missing)) => Err(Fault::new(format!("its part {missing} is not there"))),
            },
            Self::Leaf(leaf) => Err(Fault::new(format!("it is {}, and its class has parts", leaf.what()))),
        }
    }

    fn leaf(self) -> Found<Leaf> {
        match self {
            Self::Leaf(leaf) => Ok(leaf),
            Self::Branch(_) => Err(Fault::new("it has parts, and its class has one value")),
        }
    }

    pub(super) fn into_array(self) -> Found<Array> {
        self.into_option()?.ok_or_else(|| Fault::new("it is nothing, and its class has an array"))
    }

    pub(super) fn into_option(self) -> Found<Option<Array>> {
        match self.leaf()? {
            Leaf::Array(array) => Ok(Some(array)),
            Leaf::Nothing => Ok(None),
            other => Err(Fault::new(format!("it is {}, and its class has an array", other.what()))),
        }
    }

    /// An integer that is not negative.
    pub(super) fn into_count(self) -> Found<i32> {
        match self.leaf()? {
            Leaf::Integer(number) if number >= 0 => Ok(number),
            Leaf::Integer(number) => Err(Fault::new(format!("it is {number}, and counts something"))),
            other => Err(Fault::new(format!("it is {}, and its class has an integer", other.what()))),
        }
    }

    pub(super) fn into_flag(self) -> Found<bool> {
        match self.leaf()? {
            Leaf::Flag(flag) => Ok(flag),
            other => Err(Fault::new(format!("it is {}, and its class has a flag", other.what()))),
        }
    }

    pub(super) fn into_text(self) -> Found<String> {
        match self.leaf()? {
            Leaf::Text(text) => Ok(text),
            other => Err(Fault::new(format!("it is {}, and its class has a word", other.what()))),
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::Leaf(Leaf::Nothing))
    }
}

impl Leaf {
    fn what(&self) -> &'static str {
        match self {
            Self::Array(_) => "an array",
            Self::Integer(_) => "an integer",
            Self::Flag(_) => "a flag",
            Self::Text(_) => "a word",
            Self::Nothing => "nothing",
        }
    }
}

impl Fault {
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self { path: Vec::new(), reason: reason.into() }
    }

    pub(super) fn at(name: &str, reason: impl Into<String>) -> Self {
        Self::new(reason).below(name)
    }

    /// The fault of a part as one of the whole.
    pub(super) fn below(mut self, place: &str) -> Self {
        self.path.insert(0, place.to_owned());
        self
    }

    pub(super) fn error(self, tensors: &Tensors) -> Error {
        tensors.wrong(Some(&self.path.join(".")), self.reason, HELP)
    }
}

/// What `f` makes of a part, with its place in the fault.
pub(super) fn at_place<T>(place: usize, node: Node, f: impl FnOnce(Node) -> Found<T>) -> Found<T> {
    f(node).map_err(|fault| fault.below(&place.to_string()))
}

//! Tuples, lists, options and maps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

use super::reader::wrong_len;
use super::{Arguments, Labels, Leaf, Node, NodeKind, Reader, Tree, Visitor};
use crate::Result;

fn node(visitor: &mut dyn Visitor<'_>, kind: NodeKind, labels: Labels<'_>) {
    visitor.node(&Node::new(kind, labels));
}

macro_rules! tuples {
    ($($count:literal: $($part:ident $name:ident),*;)+) => {
        $(
            impl<$($part: Arguments),*> Arguments for ($($part,)*) {
                type Arrays = ($($part::Arrays,)*);

                fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
                    let ($($name,)*) = self;
                    node(visitor, NodeKind::Tuple, Labels::Positions($count));
                    $($name.flatten(visitor)?;)*
                    Ok(())
                }
            }

            impl<$($part: Tree),*> Tree for ($($part,)*) {
                type With<Other: Leaf> = ($($part::With<Other>,)*);

                fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
                    reader.enter(NodeKind::Tuple)?.of_len($count)?;
                    Ok(($($part::unflatten(reader)?,)*))
                }

                fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
                    reader.enter(NodeKind::Tuple)?.of_len($count)?;
                    let ($($name,)*) = self;
                    $($name.assign(reader)?;)*
                    Ok(())
                }
            }
        )+
    };
}

tuples! {
    0: ;
    1: A a;
    2: A a, B b;
    3: A a, B b, C c;
    4: A a, B b, C c, D d;
    5: A a, B b, C c, D d, E e;
    6: A a, B b, C c, D d, E e, F f;
    7: A a, B b, C c, D d, E e, F f, G g;
    8: A a, B b, C c, D d, E e, F f, G g, H h;
}

impl<T: Arguments> Arguments for Vec<T> {
    type Arrays = Vec<T::Arrays>;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        self.as_slice().flatten(visitor)
    }
}

impl<T: Tree> Tree for Vec<T> {
    type With<L: Leaf> = Vec<T::With<L>>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        (0..reader.enter(NodeKind::List)?.len()).map(|_| T::unflatten(reader)).collect()
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let count = reader.enter(NodeKind::List)?.len();
        self.truncate(count);
        self.iter_mut().try_for_each(|item| item.assign(reader))?;
        for _ in self.len()..count {
            self.push(T::unflatten(reader)?);
        }
        Ok(())
    }
}

impl<T: Arguments, const N: usize> Arguments for [T; N] {
    type Arrays = [T::Arrays; N];

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        node(visitor, NodeKind::Array, Labels::Positions(N));
        self.iter().try_for_each(|item| item.flatten(visitor))
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    type With<L: Leaf> = [T::With<L>; N];

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        reader.enter(NodeKind::Array)?.of_len(N)?;
        let items = (0..N).map(|_| T::unflatten(reader)).collect::<Result<Vec<T>>>()?;
        items.try_into().map_err(|items: Vec<T>| wrong_len(NodeKind::Array, N, items.len()))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        reader.enter(NodeKind::Array)?.of_len(N)?;
        self.iter_mut().try_for_each(|item| item.assign(reader))
    }
}

impl<T: Arguments> Arguments for Box<T> {
    type Arrays = Box<T::Arrays>;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        (**self).flatten(visitor)
    }
}

impl<T: Tree> Tree for Box<T> {
    type With<L: Leaf> = Box<T::With<L>>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        T::unflatten(reader).map(Box::new)
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        (**self).assign(reader)
    }
}

const OPTION: [NodeKind; 2] = [NodeKind::None, NodeKind::Some];

impl<T: Arguments> Arguments for Option<T> {
    type Arrays = Option<T::Arrays>;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        match self {
            None => node(visitor, OPTION[0], Labels::Positions(0)),
            Some(item) => {
                node(visitor, OPTION[1], Labels::Inner);
                item.flatten(visitor)?;
            }
        }
        Ok(())
    }
}

impl<T: Tree> Tree for Option<T> {
    type With<L: Leaf> = Option<T::With<L>>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        match reader.enter_any(&OPTION)? {
            (0, _) => Ok(None),
            _ => T::unflatten(reader).map(Some),
        }
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match (reader.enter_any(&OPTION)?, &mut *self) {
            ((0, _), _) => *self = None,
            (_, Some(item)) => item.assign(reader)?,
            (_, None) => *self = Some(T::unflatten(reader)?),
        }
        Ok(())
    }
}

fn flatten_map<'a, T: Arguments + 'a>(
    sorted: impl Iterator<Item = (&'a str, &'a T)>,
    visitor: &mut dyn Visitor<'a>,
) -> Result<()> {
    let (keys, items): (Vec<&str>, Vec<&T>) = sorted.unzip();
    node(visitor, NodeKind::Map, Labels::Keys(&keys));
    items.into_iter().try_for_each(|item| item.flatten(visitor))
}

/// What both kinds of map do alike, though no trait has `get_mut` of both.
macro_rules! read_by_key {
    () => {
        fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
            let keys = reader.enter(NodeKind::Map)?.keys();
            keys.iter().map(|key| Ok((K::from(key.as_str()), T::unflatten(reader)?))).collect()
        }

        fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
            let keys = reader.enter(NodeKind::Map)?.keys();
            for key in keys {
                let key = K::from(key.as_str());
                if let Some(item) = self.get_mut(&key) {
                    item.assign(reader)?;
                } else {
                    self.insert(key, T::unflatten(reader)?);
                }
            }
            // Only now are there more than the definition's own, if any.
            if self.len() > keys.len() {
                let keys: HashSet<&str> = keys.iter().map(String::as_str).collect();
                self.retain(|key, _| keys.contains(key.as_ref()));
            }
            Ok(())
        }
    };
}

impl<K: AsRef<str> + for<'k> From<&'k str> + Ord, T: Arguments> Arguments for BTreeMap<K, T> {
    type Arrays = BTreeMap<K, T::Arrays>;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        flatten_map(self.iter().map(|(key, item)| (key.as_ref(), item)), visitor)
    }
}

impl<K: AsRef<str> + for<'k> From<&'k str> + Ord, T: Tree> Tree for BTreeMap<K, T> {
    type With<L: Leaf> = BTreeMap<K, T::With<L>>;

    read_by_key!();
}

/// Its keys come sorted.
impl<K: AsRef<str> + for<'k> From<&'k str> + Eq + Hash, T: Arguments, S: BuildHasher + Default> Arguments
    for HashMap<K, T, S>
{
    type Arrays = HashMap<K, T::Arrays, S>;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let mut sorted: Vec<(&str, &T)> = self.iter().map(|(key, item)| (key.as_ref(), item)).collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        flatten_map(sorted.into_iter(), visitor)
    }
}

impl<K: AsRef<str> + for<'k> From<&'k str> + Eq + Hash, T: Tree, S: BuildHasher + Default> Tree for HashMap<K, T, S> {
    type With<L: Leaf> = HashMap<K, T::With<L>, S>;

    read_by_key!();
}

//! Functions of whole trees.

use mlx_rs::Array;

use super::{Arguments, Difference, Flattened, Open, Path, Reader, Tree, TreeDef, beside, check_aval};
use crate::{Error, Result, Value};

/// The leaves of a tree, or of [arguments](Arguments) that have the leaves of one, in order, and the structure.
///
/// # Errors
///
/// The tree cannot be listed.
pub fn flatten<T: Arguments>(tree: &T, open: Open<'_>) -> Result<(Vec<Value>, TreeDef)> {
    Flattened::flatten(tree, open)
}

/// The leaves of a tree with their paths, and its structure.
///
/// # Errors
///
/// As for [`flatten`].
pub fn flatten_with_path<T: Tree>(tree: &T, open: Open<'_>) -> Result<(Vec<(Path, Value)>, TreeDef)> {
    let (leaves, def) = flatten(tree, open)?;
    Ok((def.paths().into_iter().zip(leaves).collect(), def))
}

/// The tree of this structure with these leaves.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree::{self, Open};
///
/// let pair = (Array::from_f32(1.0), vec![Array::from_f32(2.0)]);
/// let (mut leaves, def) = tree::flatten(&pair, Open::Closed)?;
/// leaves.reverse();
/// let (first, _): (Array, Vec<Array>) = tree::unflatten(&def, leaves)?;
/// assert_eq!(first.as_slice::<f32>(), [2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The number of leaves does not fit, or `T` is of another structure.
pub fn unflatten<T: Tree>(def: &TreeDef, leaves: Vec<Value>) -> Result<T> {
    T::unflatten(&mut Reader::new(def, leaves)?)
}

/// Gives a tree, in place, another structure and other leaves.
///
/// What is not part of the structure stays: the other fields of a module, say.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree::{self, Open};
///
/// let (leaves, def) = tree::flatten(&vec![Array::from_f32(1.0), Array::from_f32(2.0)], Open::Closed)?;
/// let mut list: Vec<Array> = Vec::new();
/// tree::assign(&mut list, &def, leaves)?;
/// assert_eq!(list.len(), 2);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`unflatten`]; part of the tree may be assigned then.
pub fn assign<T: Tree>(tree: &mut T, def: &TreeDef, leaves: Vec<Value>) -> Result<()> {
    tree.assign(&mut Reader::new(def, leaves)?)
}

/// The leaves of a tree in order.
///
/// # Errors
///
/// As for [`flatten`].
pub fn leaves<T: Tree>(tree: &T, open: Open<'_>) -> Result<Vec<Value>> {
    Ok(flatten(tree, open)?.0)
}

/// The structure of a tree, implicit arrays as leaves.
///
/// # Errors
///
/// As for [`flatten`].
pub fn structure<T: Tree>(tree: &T) -> Result<TreeDef> {
    Ok(flatten(tree, Open::Closed)?.1)
}

/// The tree with `f` of each leaf.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree::{self, Open};
///
/// let doubled = tree::map(&vec![Array::from_f32(1.0)], Open::Fully, |leaf| {
///     let leaf = leaf.dense()?;
///     Ok(leaf.add(&leaf)?.into())
/// })?;
/// assert_eq!(doubled[0].as_slice::<f32>(), [2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `f` fails, or makes an implicit array where only a dense one can stand.
pub fn map<T: Tree>(tree: &T, open: Open<'_>, mut f: impl FnMut(Value) -> Result<Value>) -> Result<T> {
    map_with_path(tree, open, |_, leaf| f(leaf))
}

/// The tree with `f` of each leaf and its path.
///
/// # Errors
///
/// As for [`map`].
pub fn map_with_path<T: Tree>(tree: &T, open: Open<'_>, mut f: impl FnMut(&Path, Value) -> Result<Value>) -> Result<T> {
    let (leaves, def) = flatten_with_path(tree, open)?;
    let mapped = leaves.into_iter().map(|(path, leaf)| f(&path, leaf)).collect::<Result<_>>()?;
    unflatten(&def, mapped)
}

/// The tree with `f` of each leaf of it and of the leaf in its place of a second tree, of the same structure.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree::{self, Open};
///
/// let ones = (Array::from_f32(1.0), vec![Array::from_f32(1.0)]);
/// let twos = (Array::from_f32(2.0), vec![Array::from_f32(4.0)]);
/// let sum = tree::map2(&ones, &twos, Open::Fully, |a, b| Ok(a.dense()?.add(b.dense()?)?.into()))?;
/// assert_eq!((sum.0.item_exact::<f32>(), sum.1[0].item_exact::<f32>()), (3.0, 5.0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`map`], or the structures differ.
pub fn map2<T: Tree, U: Tree>(
    first: &T,
    second: &U,
    open: Open<'_>,
    mut f: impl FnMut(Value, Value) -> Result<Value>,
) -> Result<T> {
    let ([a, b], def) = both(first, second, open)?;
    unflatten(&def, a.into_iter().zip(b).map(|(a, b)| f(a, b)).collect::<Result<_>>()?)
}

/// The leaves of two trees of one structure, pair by pair with their path.
///
/// # Errors
///
/// The structures differ; the error names the first place.
pub fn zip<T: Tree, U: Tree>(first: &T, second: &U, open: Open<'_>) -> Result<Vec<(Path, Value, Value)>> {
    let ([a, b], def) = both(first, second, open)?;
    Ok(def.paths().into_iter().zip(a).zip(b).map(|((path, a), b)| (path, a, b)).collect())
}

/// The leaves of two trees, and their one structure.
fn both<T: Tree, U: Tree>(first: &T, second: &U, open: Open<'_>) -> Result<([Vec<Value>; 2], TreeDef)> {
    let (a, def) = flatten(first, open)?;
    let (b, other) = flatten(second, open)?;
    match def.difference(&other) {
        Some(difference) => Err(differ(&difference)),
        None => Ok(([a, b], def)),
    }
}

/// How deep implicit arrays are nested in a tree: 0 where every leaf is dense, 2 for a quantized base inside a sum.
///
/// # Errors
///
/// As for [`flatten`].
pub fn depth<T: Tree>(tree: &T) -> Result<usize> {
    Ok(leaves(tree, Open::Closed)?.iter().map(layers).max().unwrap_or(0))
}

/// Replaces every array of a tree that has a gradient by `f` of its path, itself and the gradient: an optimizer's step.
///
/// `gradients` is what a transform returned for a tree of this structure. Arrays without a gradient stay as they are, and
/// so do frozen ones.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::grad;
/// use tacit_core::tree;
///
/// let mut weights = vec![Array::from_f32(2.0), Array::from_f32(3.0)];
/// let gradients = grad(|w: Vec<Array>| w[0].multiply(&w[1])).call(&weights)?;
/// tree::update(&mut weights, &gradients, |_path, w, gradient| Ok(w.subtract(gradient)?))?;
/// assert_eq!(weights[0].item_exact::<f32>(), -1.0);
/// assert_eq!(weights[1].item_exact::<f32>(), 1.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `f` fails or gives an array of another shape or dtype, or the gradients are those of another tree. The tree is then as
/// it was.
pub fn update<T: Tree, G: Tree>(
    tree: &mut T,
    gradients: &G,
    mut f: impl FnMut(&Path, &Array, &Array) -> Result<Array>,
) -> Result<()> {
    let (mut leaves, def) = flatten(&*tree, Open::Fully)?;
    let words = ["the gradients do not fit the tree", "gradient", "give the gradients of this very tree"];
    let gradients = beside((&leaves, &def), gradients, words)?;
    for (((path, leaf), frozen), gradient) in def.paths().iter().zip(&mut leaves).zip(def.frozen()).zip(gradients) {
        let (false, Some(gradient), Value::Dense(array)) = (frozen, gradient, &*leaf) else { continue };
        let updated = f(path, array, &gradient)?;
        check_aval("update", path, &array.into(), &updated, "return an array of the array's own shape and dtype")?;
        *leaf = updated.into();
    }
    assign(tree, &def, leaves)
}

fn differ(difference: &Difference) -> Error {
    Error::invalid(format!("the trees differ: {difference}"), "give two trees of one structure")
}

fn layers(value: &Value) -> usize {
    match value {
        Value::Dense(_) => 0,
        Value::Implicit(array) => 1 + array.children().iter().map(|(_, child)| layers(child)).max().unwrap_or(0),
    }
}

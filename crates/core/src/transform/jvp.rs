//! Directional derivatives.

use mlx_rs::{Array, ops};

use super::opened::{Opened, check_aval, is_differentiable};
use crate::tree::{self, Gradient, Node, Open, Visitor};
use crate::values::{Values, never_called};
use crate::{Error, ImplicitArray, Result, Tree, Value};

/// The value of `f`, and its derivative in the direction of `tangents`.
///
/// `tangents` has the structure of the gradients of `primals`: arrays of the primals' shapes and dtypes, or
/// [`Gradient::Nothing`] for no change. Those of leaves that are not float are ignored. The derivative has the structure
/// of the results, with dense leaves.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::jvp;
/// use tacit_core::tree::Gradient;
///
/// let primals = (Array::from_f32(3.0).into(), Array::from_f32(5.0).into());
/// let tangents = (Gradient::Dense(Array::from_f32(1.0)), Gradient::Nothing);
/// let (value, change) = jvp(|(x, y): (Array, Array)| x.multiply(y), primals, tangents)?;
/// assert_eq!(value.dense()?.item_exact::<f32>(), 15.0);
/// assert_eq!(change.dense()?.item_exact::<f32>(), 5.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `f` fails, no argument is float, or the tangents do not fit the primals.
pub fn jvp<A, O, E, F>(
    mut f: F,
    primals: A::With<Value>,
    tangents: A::With<Gradient>,
) -> Result<(O::With<Value>, O::With<Value>)>
where
    A: Tree,
    O: Tree,
    E: Into<Error>,
    F: FnMut(A) -> Result<O, E>,
{
    let opened = Opened::of(&primals)?;
    let (chosen, directions) = directions(&primals, &tangents, &opened)?;
    drop((primals, tangents));
    let mut made = None;
    let changes = opened.jvp(&chosen, &directions, |args: A::With<Value>| {
        let results = Values::of(&args)?.run(&mut f)?;
        let dense = results.dense()?;
        made = Some((results, dense.clone()));
        Ok(dense.into_iter().filter(is_differentiable).collect())
    })?;
    let (results, dense) = made.ok_or_else(never_called)?;
    let mut changes = changes.into_iter();
    let changes = dense
        .iter()
        .map(|result| match is_differentiable(result).then(|| changes.next()).flatten() {
            Some(change) => Ok(change.into()),
            None => Ok(ops::zeros_like(result)?.into()),
        })
        .collect::<Result<_>>()?;
    let changes = tree::unflatten(&results.def, changes)?;
    Ok((results.into_tree()?, changes))
}

/// The leaves that have a tangent, and the tangents.
fn directions(primals: &impl Tree, tangents: &impl Tree, opened: &Opened) -> Result<(Vec<usize>, Vec<Array>)> {
    let mut seen = Seen(Vec::new());
    tangents.flatten(&mut seen)?;
    let mut seen = seen.0.into_iter();
    let mut found = Vec::with_capacity(opened.leaves.len());
    let mut own = Own(Vec::new());
    primals.flatten(&mut own)?;
    for part in own.0 {
        match part {
            Part::Leaf(primal) => tangents_of(&primal, &mut seen, &mut found)?,
            Part::Container(container) => match seen.next() {
                Some(Event::Node(_, other)) if other == container => {}
                _ => return Err(unfit("their containers differ")),
            },
        }
    }
    if seen.any(|event| matches!(event, Event::Array(_))) {
        return Err(unfit("there are more tangents than primals"));
    }
    let (mut chosen, mut given) = (Vec::new(), Vec::new());
    for ((position, path), tangent) in opened.def.paths().iter().enumerate().zip(found) {
        let own = &opened.leaves[position];
        let Some(tangent) = tangent.filter(|_| is_differentiable(own)) else { continue };
        check_aval("tangent", path, own, &tangent, "give each tangent the shape and dtype of its array")?;
        chosen.push(position);
        given.push(tangent);
    }
    if chosen.is_empty() {
        // MLX wants one primal at least.
        let Some(position) = opened.leaves.iter().position(is_differentiable) else {
            return Err(Error::invalid("no argument is float", "differentiate with respect to a float array"));
        };
        return Ok((vec![position], vec![ops::zeros_like(&opened.leaves[position])?]));
    }
    Ok((chosen, given))
}

/// Takes the tangents of one value, one for each dense leaf in it.
fn tangents_of(primal: &Value, seen: &mut impl Iterator<Item = Event>, found: &mut Vec<Option<Array>>) -> Result<()> {
    match (seen.next(), primal) {
        (Some(Event::Array(tangent)), Value::Dense(_)) => found.push(Some(tangent)),
        (Some(Event::Node(tree::NOTHING, _)), _) => {
            let leaves = tree::leaves(primal, Open::Fully)?.len();
            found.extend(std::iter::repeat_n(None, leaves));
        }
        (Some(Event::Node(name, _)), Value::Implicit(array)) if name == array.typetag_name() => {
            for (_, child) in array.children() {
                tangents_of(&child, seen, found)?;
            }
        }
        (Some(Event::Node(name, _)), _) => {
            return Err(unfit(&format!("{name} stands where the primal is {primal}")));
        }
        (Some(Event::Array(tangent)), Value::Implicit(_)) => {
            return Err(unfit(&format!("{} stands where the primal is {primal}", Value::from(tangent))));
        }
        (None, _) => return Err(unfit("there are fewer tangents than primals")),
    }
    Ok(())
}

fn unfit(what: &str) -> Error {
    Error::invalid(
        format!("the tangents do not fit the primals: {what}"),
        "give one tangent for each leaf, in the structure of a gradient, or `Gradient::Nothing`",
    )
}

/// What a tree of tangents shows.
struct Seen(Vec<Event>);

enum Event {
    Array(Array),
    /// A node's kind, and the same with its labels.
    Node(&'static str, String),
}

/// What a tree of primals shows.
struct Own(Vec<Part>);

enum Part {
    Leaf(Value),
    /// As in [`Event::Node`].
    Container(String),
}

fn container(node: &Node<'_>) -> String {
    format!("{} {:?}", node.name, node.labels)
}

impl<'a> Visitor<'a> for Own {
    fn array(&mut self, array: &'a Array) {
        self.0.push(Part::Leaf(array.into()));
    }

    fn implicit(&mut self, array: &'a dyn ImplicitArray) {
        self.0.push(Part::Leaf(dyn_clone::clone_box(array).into()));
    }

    fn made(&mut self, value: Value) {
        self.0.push(Part::Leaf(value));
    }

    fn node(&mut self, node: &Node<'_>) {
        self.0.push(Part::Container(container(node)));
    }
}

impl<'a> Visitor<'a> for Seen {
    fn array(&mut self, array: &'a Array) {
        self.0.push(Event::Array(array.clone()));
    }

    fn implicit(&mut self, array: &'a dyn ImplicitArray) {
        self.children(array);
    }

    fn made(&mut self, value: Value) {
        match value {
            Value::Dense(array) => self.0.push(Event::Array(array)),
            Value::Implicit(array) => self.children(&*array),
        }
    }

    fn node(&mut self, node: &Node<'_>) {
        self.0.push(Event::Node(node.name, container(node)));
    }
}

impl Seen {
    fn children(&mut self, array: &dyn ImplicitArray) {
        self.0.push(Event::Node(array.typetag_name(), String::new()));
        for (_, child) in array.children() {
            self.made(child);
        }
    }
}

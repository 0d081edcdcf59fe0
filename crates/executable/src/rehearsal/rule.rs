//! One node recorded on all rows and on the leading ones: whether it keeps rows apart.
//!
//! A primitive of which the table of primitives does not say what becomes of rows is refused where it meets them.

use tacit_bridge::typed::{self, Rows, TypedPrimitive};
use tacit_core::{Aval, Param, Primitive, Result, embedding, primitives};

use crate::extent::{Extent, Mixed, Place};

/// Fails if a node mixes rows, by the avals of its operands and results of all rows and of the leading ones. `twin` is what
/// the other graph has in its place; none where that has nothing.
pub(super) fn check(
    extent: Extent,
    primitive: tacit_bridge::Primitive,
    twin: Option<tacit_bridge::Primitive>,
    operands: &[(Aval, Aval)],
    results: &[(Aval, Aval)],
) -> Result<()> {
    let (primitive, twin) = (embedding::primitive(primitive), twin.map(embedding::primitive));
    let (why, help) = match (places(extent, operands), places(extent, results)) {
        (Ok(from), Ok(to)) => {
            let node = Node { extent, primitive: &primitive, operands, results, from, to };
            if !node.does_the_same(twin.as_ref())? {
                ("is another for them", "let the function read no extent into a parameter, or run all rows")
            } else if node.keeps()? {
                return Ok(());
            } else {
                MIXES
            }
        }
        _ => MIXES,
    };
    let avals: Vec<String> = operands.iter().map(|(whole, _)| whole.to_string()).collect();
    Err(extent.refusal(&format!("{primitive} of {} {why}", avals.join(", ")), help))
}

const MIXES: (&str, &str) = ("mixes them", "keep rows apart in the function, or run all of them");

fn places(extent: Extent, avals: &[(Aval, Aval)]) -> Result<Vec<Option<Place>>, Mixed> {
    avals.iter().map(|(whole, cut)| extent.place(&whole.shape, &cut.shape)).collect()
}

struct Node<'n> {
    extent: Extent,
    primitive: &'n Primitive,
    /// Avals of all rows and of the leading ones.
    operands: &'n [(Aval, Aval)],
    results: &'n [(Aval, Aval)],
    /// Where the rows of the operands and of the results lie.
    from: Vec<Option<Place>>,
    to: Vec<Option<Place>>,
}

impl Node<'_> {
    /// Whether the parameters are equal, but for extents that shapes show.
    fn does_the_same(&self, twin: Option<&Primitive>) -> Result<bool> {
        let shape = self.place_of("shape");
        match twin {
            _ if self.primitive.name() == primitives::Slice::NAME => self.slices_the_same(twin),
            None => Ok(shape.is_some()),
            Some(twin) => {
                let (own, other) = (self.primitive.params()?, twin.params()?);
                let mut pairs = own.iter().zip(&other).enumerate();
                Ok(own.len() == other.len() && pairs.all(|(place, (own, other))| Some(place) == shape || own == other))
            }
        }
    }

    fn slices_the_same(&self, twin: Option<&Primitive>) -> Result<bool> {
        let mut slice: primitives::Slice = self.primitive.view()?;
        let Some(twin) = twin else {
            return Ok(
                slice.start_indices.iter().all(|start| *start == 0) && slice.strides.iter().all(|step| *step == 1)
            );
        };
        let other: primitives::Slice = twin.view()?;
        if let Some(Some(Place { axis, .. })) = self.to.first() {
            slice.end_indices[*axis] = other.end_indices[*axis];
        }
        Ok(slice == other)
    }

    fn keeps(&self) -> Result<bool> {
        if self.from.iter().chain(&self.to).all(Option::is_none) {
            return Ok(true);
        }
        let rows = typed::describe(self.primitive.name()).map_or(Rows::Mixed, |row| row.rows);
        if let Rows::Passed = rows {
            return Ok(true);
        }
        // A result without rows depends on all of them.
        let Some(&[Some(place), ..]) = self.to.iter().all(Option::is_some).then_some(&self.to[..]) else {
            return Ok(false);
        };
        let aligned = self.from.iter().flatten().chain(self.to.iter().flatten()).all(|other| *other == place);
        Ok(match rows {
            Rows::Mixed => false,
            Rows::Passed | Rows::Shown => true,
            Rows::Aligned => aligned,
            Rows::Along => aligned && !self.is_along(self.axis()?),
            Rows::Reordered => {
                let [from, to] = [&self.operands[0].0, &self.results[0].0];
                let whole = |extent: i32| extent % self.extent.upper == 0;
                self.from[0].filter(|_| from.size() > 0).is_some_and(|source| {
                    let axis = primitives::reshaped_axis(&from.shape, source.axis, &to.shape, whole);
                    axis == Some(place.axis) && to.shape[place.axis] / self.extent.upper == place.inner
                })
            }
            Rows::Sliced => {
                let primitives::Slice { start_indices, strides, .. } = self.primitive.view()?;
                aligned && start_indices[place.axis] == 0 && strides[place.axis] == 1
            }
            Rows::Gathered => self.from[0].is_none(),
        })
    }

    /// Where a parameter of this name stands among those of the primitive.
    fn place_of(&self, name: &str) -> Option<usize> {
        typed::describe(self.primitive.name())?.fields.iter().position(|field| field.name == name)
    }

    /// The axis that a parameter names, else the last one.
    fn axis(&self) -> Result<i64> {
        let params = self.primitive.params()?;
        Ok(match self.place_of("axis").and_then(|place| params.get(place)) {
            Some(Param::Int(axis)) => *axis,
            _ => -1,
        })
    }

    /// Whether the rows of an operand lie on this axis of it.
    fn is_along(&self, axis: i64) -> bool {
        self.from.iter().zip(self.operands).any(|(place, (whole, _))| {
            place.is_some_and(|place| axis.rem_euclid(whole.shape.len() as i64) == place.axis as i64)
        })
    }
}

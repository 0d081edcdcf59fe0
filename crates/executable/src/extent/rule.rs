//! One node recorded on all rows and on the leading ones: whether it keeps rows apart.
//!
//! A primitive that is not here is refused where it meets rows.

use tacit_bridge::typed::{self, Class};
use tacit_core::{Aval, Param, Primitive, Result, embedding, op};

use super::{Extent, Mixed, Place, reshape};

/// What a primitive does to the rows that its shapes do not show.
enum Rule {
    /// Elements of one index of this axis of the operands make those of the result.
    Aligned,
    /// As `Aligned`, and it combines elements along the axis that its parameter names.
    Along,
    /// As `Aligned`, and it combines elements along the last axis.
    AlongLast,
    /// Nothing: where the rows go, the shapes tell.
    Shown,
    /// Elements stay in row-major order.
    Reordered,
    /// A range of each axis.
    Sliced,
    /// Slices of a table at indices, which have the rows.
    Gathered,
    /// The trailing operands themselves, whose own nodes were looked at.
    Passed,
}

fn rule_of(name: &str) -> Option<Rule> {
    let row = typed::describe(name)?;
    Some(match (row.class, row.name) {
        (Class::Unary | Class::Binary | Class::Ternary | Class::Reduction, _)
        | (_, "Contiguous" | "Copy" | "Full" | "Pad" | "StopGradient") => Rule::Aligned,
        (Class::Scan, _)
        | (
            _,
            "ArgPartition" | "ArgReduce" | "ArgSort" | "Partition" | "Sort" | "Concatenate" | "GatherAxis"
            | "ScatterAxis" | "ScatterAxis Sum" | "Split",
        ) => Rule::Along,
        (_, "LayerNorm" | "LogSumExp" | "RMSNorm" | "Softmax") => Rule::AlongLast,
        (_, "AddMM" | "Broadcast" | "Matmul" | "QuantizedMatmul" | "Transpose") => Rule::Shown,
        (_, "ExpandDims" | "Flatten" | "Reshape" | "Squeeze" | "Unflatten") => Rule::Reordered,
        (_, "Slice") => Rule::Sliced,
        (_, "Gather") => Rule::Gathered,
        (_, "CustomTransforms" | "Depends") => Rule::Passed,
        _ => return None,
    })
}

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
        match (self.primitive.name(), twin) {
            ("Broadcast" | "Reshape" | "Unflatten", _) => Ok(true),
            ("Slice", twin) => {
                let mut own: op::Slice = self.primitive.view()?;
                let Some(twin) = twin else {
                    return Ok(
                        own.start_indices.iter().all(|start| *start == 0) && own.strides.iter().all(|step| *step == 1)
                    );
                };
                let other: op::Slice = twin.view()?;
                if let Some(Some(Place { axis, .. })) = self.to.first() {
                    own.end_indices[*axis] = other.end_indices[*axis];
                }
                Ok(own == other)
            }
            (_, Some(twin)) => Ok(self.primitive.params()? == twin.params()?),
            (_, None) => Ok(false),
        }
    }

    fn keeps(&self) -> Result<bool> {
        if self.from.iter().chain(&self.to).all(Option::is_none) {
            return Ok(true);
        }
        let Some(rule) = rule_of(self.primitive.name()) else { return Ok(false) };
        if let Rule::Passed = rule {
            return Ok(true);
        }
        // A result without rows was made of all of them.
        let Some(&[Some(place), ..]) = self.to.iter().all(Option::is_some).then_some(&self.to[..]) else {
            return Ok(false);
        };
        let aligned = self.from.iter().flatten().chain(self.to.iter().flatten()).all(|other| *other == place);
        Ok(match rule {
            Rule::Passed | Rule::Shown => true,
            Rule::Aligned => aligned,
            Rule::Along => aligned && !self.is_axis(self.axis()?, place),
            Rule::AlongLast => aligned && !self.is_axis(-1, place),
            Rule::Reordered => {
                let [from, to] = [&self.operands[0].0.shape, &self.results[0].0.shape];
                let moved = self.from[0].and_then(|own| reshape::place_in(own, self.extent.upper, from, to));
                moved == Some(place)
            }
            Rule::Sliced => {
                let op::Slice { start_indices, strides, .. } = self.primitive.view()?;
                aligned && start_indices[place.axis] == 0 && strides[place.axis] == 1
            }
            Rule::Gathered => self.from[0].is_none(),
        })
    }

    /// The parameter of the primitive that names an axis.
    fn axis(&self) -> Result<i64> {
        let fields = typed::describe(self.primitive.name()).map_or(&[][..], |row| row.fields);
        let mut named = fields.iter().zip(self.primitive.params()?);
        Ok(named
            .find_map(|(field, param)| match param {
                Param::Int(axis) if field.name == "axis" => Some(axis),
                _ => None,
            })
            .unwrap_or(-1))
    }

    /// Whether the rows lie on this axis of the first operand.
    fn is_axis(&self, axis: i64, place: Place) -> bool {
        let ndim = self.operands[0].0.shape.len().max(1) as i64;
        axis.rem_euclid(ndim) == place.axis as i64
    }
}

//! One primitive on the leading rows: where they lie in its results, and how it is built on them.
//!
//! A primitive that is not here, or that mixes rows, is refused. Whatever a rule builds must have the recorded shape
//! with only the rows cut.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, IntoStrideBy, TryIndexOp, argmax_axis, argmin_axis};
use mlx_rs::ops::{self, LogCumsumExpOptions};
use tacit_bridge::typed::{self, TypedPrimitive};

use super::{Extent, Held, Place, leading_part, reshape};
use crate::op;
use crate::{Aval, Error, Primitive, Result};

/// A node of the recorded graph, on operands that are cut.
pub(super) struct Node<'n> {
    pub(super) extent: Extent,
    pub(super) primitive: &'n Primitive,
    pub(super) operands: Vec<Held>,
    /// The avals of the operands before they were cut.
    pub(super) recorded: Vec<Aval>,
    /// The avals of the results before they are cut.
    pub(super) results: Vec<Aval>,
}

/// What a rule builds, with the place of the rows; `None` where rows mix.
type Made = Result<Option<(Vec<Array>, Place)>>;

/// Ends a rule with `None` where an option is empty.
macro_rules! some {
    ($option:expr) => {
        match $option {
            Some(value) => value,
            None => return Ok(None),
        }
    };
}

impl Node<'_> {
    /// The results on the cut operands; `None` where rows mix.
    pub(super) fn cut(&self) -> Result<Option<Vec<Held>>> {
        if matches!(self.name(), "CustomTransforms" | "Depends") {
            return Ok(self.passed_on());
        }
        if self.operands.iter().all(|operand| operand.place.is_none()) {
            let whole = self.primitive.emit(&self.arrays())?;
            return Ok(Some(whole.into_iter().map(|array| Held { array, place: None }).collect()));
        }
        let (arrays, place) = some!(self.made()?);
        let fits =
            |(array, aval): (&Array, &Aval)| self.shape(&aval.shape, place).is_some_and(|shape| array.shape() == shape);
        if arrays.len() != self.results.len() || !arrays.iter().zip(&self.results).all(fits) {
            return Ok(None);
        }
        Ok(Some(arrays.into_iter().map(|array| Held { array, place: Some(place) }).collect()))
    }

    /// The error of a node at which rows mix.
    pub(super) fn mixes(&self) -> Error {
        let avals: Vec<String> = self.recorded.iter().map(Aval::to_string).collect();
        let Extent { actual, upper } = self.extent;
        Error::invalid(
            format!(
                "{actual} of {upper} rows cannot be computed alone: {} of {} mixes them",
                self.primitive,
                avals.join(", ")
            ),
            "keep rows apart in the function, or run all of them",
        )
    }

    fn made(&self) -> Made {
        match self.name() {
            name if ELEMENTWISE.contains(&name) => self.aligned_except(&[]),
            "And" | "Max" | "Min" | "Or" | "Prod" | "Sum" => self.reduced(),
            "ArgReduce" => self.extreme(),
            "LogSumExp" => self.along(-1, |x| x.logsumexp_axis(-1, true)),
            "Sort" => self.aligned_except(&[self.view::<op::Sort>()?.axis]),
            "ArgSort" => self.aligned_except(&[self.view::<op::ArgSort>()?.axis]),
            "Partition" => self.aligned_except(&[self.view::<op::Partition>()?.axis]),
            "ArgPartition" => self.aligned_except(&[self.view::<op::ArgPartition>()?.axis]),
            "Softmax" => self.aligned_except(&[-1]),
            "CumSum" | "CumProd" | "CumMax" | "CumMin" | "CumLogAddExp" => self.scanned(),
            "Matmul" | "AddMM" => self.product(),
            "QuantizedMatmul" => self.quantized_product(),
            "Transpose" => self.transposed(),
            "Reshape" | "Flatten" | "Unflatten" | "Squeeze" | "ExpandDims" => self.reshaped(),
            "Broadcast" => self.broadcast(),
            "Concatenate" => self.combined(self.view::<op::Concatenate>()?.axis, ops::concatenate),
            "Gather" => self.gathered(),
            "GatherAxis" => {
                let axis = self.view::<op::GatherAxis>()?.axis;
                self.combined(axis, |arrays, axis| arrays[0].take_along_axis(&arrays[1], axis))
            }
            "ScatterAxis" => {
                let axis = self.view::<op::ScatterAxis>()?.axis;
                self.combined(axis, |arrays, axis| arrays[0].put_along_axis(&arrays[1], &arrays[2], axis))
            }
            "Slice" => self.sliced(),
            "Split" => self.split(),
            "Pad" => self.padded(),
            _ => Ok(None),
        }
    }

    fn name(&self) -> &'static str {
        typed::describe(self.primitive.name()).map_or("", |row| row.name)
    }

    fn view<T: TypedPrimitive>(&self) -> Result<T> {
        self.primitive.view()
    }

    fn arrays(&self) -> Vec<Array> {
        self.operands.iter().map(|operand| operand.array.clone()).collect()
    }

    /// The primitive on other shapes. It emits only what works out the shapes of its results safely; every other rule
    /// goes through MLX's ops.
    fn emitted(&self, operands: &[Array], place: Place) -> Made {
        Ok(Some((self.primitive.emit(operands)?, place)))
    }

    /// A recorded shape with the rows cut, if it has them at `place`.
    fn shape(&self, recorded: &[i32], place: Place) -> Option<Vec<i32>> {
        let mut shape = recorded.to_vec();
        let extent = shape.get_mut(place.axis).filter(|extent| **extent == self.extent.upper * place.inner)?;
        *extent = self.extent.actual * place.inner;
        Some(shape)
    }

    /// The place of the rows in every operand that has them, if it is the same.
    fn place(&self) -> Option<Place> {
        let mut places = self.operands.iter().filter_map(|operand| operand.place);
        let first = places.next()?;
        places.all(|place| place == first).then_some(first)
    }

    /// The place of the rows, if only the first operand has them.
    fn first(&self) -> Option<Place> {
        let others = self.operands.iter().skip(1).any(|operand| operand.place.is_some());
        self.operands.first()?.place.filter(|_| !others)
    }

    /// An operand with its rows at `place`: those of a constant are cut here.
    fn at(&self, operand: usize, place: Place) -> Result<Option<Array>> {
        let Held { array, place: own } = &self.operands[operand];
        match own {
            Some(own) => Ok((*own == place).then(|| array.clone())),
            None if array.shape().get(place.axis) != Some(&(self.extent.upper * place.inner)) => Ok(None),
            None => leading_part(array, place.axis, self.extent.actual * place.inner).map(Some),
        }
    }

    fn all_at(&self, place: Place) -> Result<Option<Vec<Array>>> {
        (0..self.operands.len()).map(|operand| self.at(operand, place)).collect()
    }

    /// Operands and results of one shape, whose elements are combined along none but `axes`.
    fn aligned_except(&self, axes: &[i32]) -> Made {
        let place = some!(self.place().filter(|place| !self.among(axes, *place)));
        let operands = some!(self.all_at(place)?);
        self.emitted(&operands, place)
    }

    /// Whether the rows lie on one of `axes` of the first operand.
    fn among(&self, axes: &[i32], place: Place) -> bool {
        let ndim = self.recorded[0].shape.len().max(1) as i32;
        axes.iter().any(|axis| axis.rem_euclid(ndim) == place.axis as i32)
    }

    /// Operands with the same axes, combined along `axis` alone.
    fn combined(&self, axis: i32, f: impl FnOnce(&[Array], i32) -> Result<Array, Exception>) -> Made {
        let place = some!(self.place().filter(|place| !self.among(&[axis], *place)));
        let operands = some!(self.all_at(place)?);
        Ok(Some((vec![f(&operands, axis)?], place)))
    }

    /// One operand, combined along `axis` alone.
    fn along(&self, axis: i32, f: impl FnOnce(&Array) -> Result<Array, Exception>) -> Made {
        self.combined(axis, |arrays, _| f(&arrays[0]))
    }

    fn extreme(&self) -> Made {
        let op::ArgReduce { reduce_type, axis } = self.view()?;
        let least = reduce_type == "argmin";
        self.along(axis, |x| if least { argmin_axis(x, axis, true) } else { argmax_axis(x, axis, true) })
    }

    fn reduced(&self) -> Made {
        type Reduce = fn(&Array, &[i32]) -> Result<Array, Exception>;
        let (axes, reduce): (_, Reduce) = match self.name() {
            "And" => (self.view::<op::And>()?.axes, |x, axes| x.all_axes(axes, true)),
            "Max" => (self.view::<op::Max>()?.axes, |x, axes| x.max_axes(axes, true)),
            "Min" => (self.view::<op::Min>()?.axes, |x, axes| x.min_axes(axes, true)),
            "Or" => (self.view::<op::Or>()?.axes, |x, axes| x.any_axes(axes, true)),
            "Prod" => (self.view::<op::Prod>()?.axes, |x, axes| x.prod_axes(axes, true)),
            _ => (self.view::<op::Sum>()?.axes, |x, axes| x.sum_axes(axes, true)),
        };
        let place = some!(self.first().filter(|place| !self.among(&axes, *place)));
        Ok(Some((vec![reduce(&self.operands[0].array, &axes)?], place)))
    }

    fn scanned(&self) -> Made {
        let (axis, reverse, inclusive) = match self.name() {
            "CumProd" => self.view::<op::CumProd>().map(|own| (own.axis, own.reverse, own.inclusive)),
            "CumMax" => self.view::<op::CumMax>().map(|own| (own.axis, own.reverse, own.inclusive)),
            "CumMin" => self.view::<op::CumMin>().map(|own| (own.axis, own.reverse, own.inclusive)),
            "CumSum" => self.view::<op::CumSum>().map(|own| (own.axis, own.reverse, own.inclusive)),
            _ => self.view::<op::CumLogAddExp>().map(|own| (own.axis, own.reverse, own.inclusive)),
        }?;
        // MLX does not work out the shape of a scan.
        self.along(axis, |x| match self.name() {
            "CumProd" => x.cumprod(axis, reverse, inclusive),
            "CumMax" => x.cummax(axis, reverse, inclusive),
            "CumMin" => x.cummin(axis, reverse, inclusive),
            "CumSum" => x.cumsum(axis, reverse, inclusive),
            _ => x.logcumsumexp(LogCumsumExpOptions { axis: Some(axis), reverse, inclusive }),
        })
    }

    /// `a: [.., m, k]` times `b: [.., k, n]`: rows among the leading axes of both, on `m` of `a`, or on `n` of `b`.
    fn product(&self) -> Made {
        let ndim = self.results[0].shape.len();
        if self.recorded.iter().any(|aval| aval.shape.len() != ndim) {
            return Ok(None);
        }
        let (a, b) = (self.operands[0].place, self.operands[1].place);
        let place = some!(a.or(b));
        let leading = place.axis + 2 < ndim;
        let mut operands = self.arrays();
        match (a, b) {
            (Some(a), Some(b)) if leading && a == b => {}
            (Some(_), None) if leading => operands[1] = some!(self.at(1, place)?),
            (None, Some(_)) if leading => operands[0] = some!(self.at(0, place)?),
            (Some(_), None) if place.axis + 2 == ndim => {}
            (None, Some(_)) if place.axis + 1 == ndim => {}
            _ => return Ok(None),
        }
        if operands.len() == 3 {
            operands[2] = some!(self.at(2, place)?);
        }
        self.emitted(&operands, place)
    }

    fn transposed(&self) -> Made {
        let place = some!(self.first());
        let axes = self.view::<op::Transpose>()?.axes;
        let axis = some!(axes.iter().position(|&axis| axis as usize == place.axis));
        self.emitted(&self.arrays(), Place { axis, ..place })
    }

    fn reshaped(&self) -> Made {
        let from = some!(self.first());
        let recorded = &self.results[0].shape;
        let place = some!(reshape::place_in(from, self.extent.upper, &self.recorded[0].shape, recorded));
        let reshaped = self.operands[0].array.reshape(&some!(self.shape(recorded, place)))?;
        Ok(Some((vec![reshaped], place)))
    }

    fn broadcast(&self) -> Made {
        let from = some!(self.operands[0].place);
        let recorded = &self.results[0].shape;
        let place = Place { axis: from.axis + recorded.len() - self.recorded[0].shape.len(), ..from };
        let wider = ops::broadcast_to(&self.operands[0].array, &some!(self.shape(recorded, place)))?;
        Ok(Some((vec![wider], place)))
    }

    /// Rows of the indices, which choose slices of the first axis of something that all share.
    fn gathered(&self) -> Made {
        let op::Gather { axes, slice_sizes } = self.view()?;
        let [table, indices] = self.operands.as_slice() else { return Ok(None) };
        let place = some!(indices.place.filter(|_| table.place.is_none()));
        if axes != [0] || slice_sizes.first() != Some(&1) || slice_sizes[1..] != table.array.shape()[1..] {
            return Ok(None);
        }
        let shape = some!(self.shape(&self.results[0].shape, place));
        Ok(Some((vec![table.array.take_axis(&indices.array, 0)?.reshape(&shape)?], place)))
    }

    /// Rows of `x` times a quantized matrix.
    fn quantized_product(&self) -> Made {
        let op::QuantizedMatmul { group_size, bits, mode, transpose } = self.view()?;
        let place = some!(self.first().filter(|place| !self.among(&[-1], *place)));
        let [x, w, scales, biases] = self.operands.as_slice() else { return Ok(None) };
        // mlx-rs has the product in no other mode.
        if mode != "affine" || w.array.ndim() != 2 {
            return Ok(None);
        }
        let (x, w) = (&x.array, &w.array);
        let made = ops::quantized_matmul(x, w, &scales.array, &biases.array, transpose, group_size, bits)?;
        Ok(Some((vec![made], place)))
    }

    fn sliced(&self) -> Made {
        let op::Slice { start_indices, end_indices, strides } = self.view()?;
        let place = some!(self.first());
        let (whole, axis) = (self.recorded[0].shape[place.axis], place.axis);
        let keeps = start_indices[axis] == 0 && end_indices[axis] == whole && strides[axis] == 1;
        // MLX writes an end before the first index as one that it would count from the end.
        if !keeps || strides.iter().any(|&stride| stride < 1) {
            return Ok(None);
        }
        let indices: Vec<ArrayIndexOp<'_>> = (0..strides.len())
            .map(|i| {
                if i == axis {
                    (..).index_op()
                } else {
                    (start_indices[i]..end_indices[i]).stride_by(strides[i]).index_op()
                }
            })
            .collect();
        Ok(Some((vec![self.operands[0].array.try_index(indices.as_slice())?], place)))
    }

    fn split(&self) -> Made {
        let op::Split { indices, axis } = self.view()?;
        let place = some!(self.first().filter(|place| !self.among(&[axis], *place)));
        Ok(Some((ops::split_at_indices(&self.operands[0].array, &indices, axis)?, place)))
    }

    fn padded(&self) -> Made {
        let op::Pad { axes, low_pad_size, high_pad_size } = self.view()?;
        let place = some!(self.first());
        let mut widths = vec![(0, 0); self.recorded[0].shape.len()];
        for ((axis, low), high) in axes.into_iter().zip(low_pad_size).zip(high_pad_size) {
            widths[axis as usize] = (low, high);
        }
        if widths[place.axis] != (0, 0) {
            return Ok(None);
        }
        let value = self.operands[1].array.clone();
        Ok(Some((vec![ops::pad(&self.operands[0].array, &widths[..], value, None)?], place)))
    }

    /// The trailing operands as they are: what a function with a derivative of its own made, or what waited for others.
    fn passed_on(&self) -> Option<Vec<Held>> {
        let count = self.results.len();
        let from = if self.name() == "Depends" { 0 } else { self.operands.len().checked_sub(count)? };
        Some(self.operands.get(from..from + count)?.to_vec())
    }
}

/// Primitives whose operands and results have one shape and that combine elements of one index only.
const ELEMENTWISE: [&str; 68] = [
    "Abs",
    "Add",
    "ArcCos",
    "ArcCosh",
    "ArcSin",
    "ArcSinh",
    "ArcTan",
    "ArcTan2",
    "ArcTanh",
    "AsType",
    "BitwiseAnd",
    "BitwiseInvert",
    "BitwiseOr",
    "BitwiseXor",
    "Ceil",
    "Conjugate",
    "Contiguous",
    "Copy",
    "Cos",
    "Cosh",
    "DivMod",
    "Divide",
    "Equal",
    "Erf",
    "ErfInv",
    "Exp",
    "Expm1",
    "Floor",
    "Full",
    "Greater",
    "GreaterEqual",
    "Imag",
    "LeftShift",
    "Less",
    "LessEqual",
    "Log",
    "Log10",
    "Log1p",
    "Log2",
    "LogAddExp",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Multiply",
    "NaNEqual",
    "Negative",
    "NotEqual",
    "Power",
    "Real",
    "Remainder",
    "RightShift",
    "Round",
    "Rsqrt",
    "Select",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Sqrt",
    "Square",
    "StopGradient",
    "Subtract",
    "Tan",
    "Tanh",
    "FromFP8",
    "ToFP8",
];

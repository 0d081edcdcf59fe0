//! Shapes, slices, joins and scales of packed arrays: codes and scales are cut, joined or scaled, never made anew.

use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_core::op::{Concatenate, Divide, Multiply, Negative, Reshaping, Slice};
use tacit_core::{Aval, Error, Result, Value, broadcast_source, handler};

use crate::concat::Concat;
use crate::dynamic8::Dynamic8Array;
use crate::int8::Int8Array;
use crate::kernel::Scaling;
use crate::packed::{Packed, Stored, itself, turned};
use crate::views::ranges;

/// The same codes in another shape.
#[handler]
pub fn packed_reshape(_op: &Reshaping, array: &dyn Packed, made: &[Aval]) -> Result<Value> {
    let shape = &made[0].shape;
    let stored = array.stored();
    if stored.transposed {
        let matrices = |shape: &[i32]| shape.last_chunk::<2>().copied();
        if matrices(shape) != matrices(&stored.aval.shape) {
            return Err(Error::decline("the codes of a transposed view lie in another order"));
        }
        return reshaped(array, stored, &turned(shape));
    }
    if stored.scheme.is_grouped() && shape.last().is_none_or(|&last| !(last as usize).is_multiple_of(stored.unit())) {
        return Err(Error::decline("a group would be cut"));
    }
    reshaped(array, stored, shape)
}

/// `array` with children that are brought into the form that they have at `shape`.
pub(crate) fn reshaped(array: &dyn Packed, stored: Stored, shape: &[i32]) -> Result<Value> {
    Ok(array.restored(in_shape(stored, shape)?).into())
}

fn in_shape(mut stored: Stored, shape: &[i32]) -> Result<Stored> {
    stored.aval.shape = shape.to_vec();
    if stored.transposed {
        stored.aval.shape = turned(shape);
    }
    let (codes, scales) = stored.scheme.children(shape, stored.block);
    stored.codes = stored.codes.reshape(&codes)?;
    if let Some(Value::Dense(dense)) = &stored.scales {
        stored.scales = Some(dense.reshape(&scales)?.into());
    }
    if let (Scaling::Float, Some(biases)) = (stored.scheme.scaling, &stored.modifier) {
        stored.modifier = Some(biases.reshape(&scales)?);
    }
    Ok(stored)
}

/// What is cut out where both ends lie between two blocks.
#[handler]
pub fn packed_slice(op: &Slice, array: &dyn Packed, made: &[Aval]) -> Result<Value> {
    ranges(op, &made[0])?;
    let [mut start, mut stop] = [op.start_indices.clone(), op.end_indices.clone()];
    if array.stored().transposed {
        [start, stop] = [turned(&start), turned(&stop)];
    }
    sliced(array, &start, &stop)
}

/// The elements of the stored array from `start` on, before `stop`.
pub(crate) fn sliced(array: &dyn Packed, start: &[i32], stop: &[i32]) -> Result<Value> {
    Ok(array.restored(between(array.stored(), start, stop)?).into())
}

/// The children of those elements.
pub(crate) fn between(mut stored: Stored, start: &[i32], stop: &[i32]) -> Result<Stored> {
    let (old, new) = (stored.shape(), start.iter().zip(stop).map(|(start, stop)| stop - start).collect::<Vec<_>>());
    let Some(axis) = (0..old.len()).rev().find(|&axis| old[axis] != new[axis]) else {
        return Ok(stored);
    };
    let (inner, unit) = (extent(&old[axis + 1..]), stored.unit());
    let [from, to, whole] = [start[axis], stop[axis], old[axis]].map(|at| at as usize * inner);
    let aligned = [from, to, whole].iter().all(|at| at % unit == 0);
    let flat = extent(&old[..axis]) == 1 && !stored.scheme.is_grouped() && from % unit == 0;
    if !aligned && !flat {
        return Err(Error::decline("the slice does not begin and end with a block"));
    }
    let cut = |child: &Array, elements: &dyn Fn(usize) -> usize| -> Result<Array> {
        let [from, to, whole] = [from, to, whole].map(|at| elements(at) as i32);
        let child = child.reshape(&[&old[..axis], &[whole]].concat())?;
        let ranges = start[..axis].iter().zip(stop).map(|(&from, &to)| (from..to).index_op());
        let ranges: Vec<ArrayIndexOp> = ranges.chain([(from..to).index_op()]).collect();
        Ok(child.try_index(ranges.as_slice())?)
    };
    let (bits, width, block) = (stored.scheme.bits(), stored.scheme.width(), stored.block);
    let per_block = |at: usize| at.div_ceil(block);
    let scales = match (&stored.scales, Supers::of(&stored)) {
        (None, _) => None,
        (Some(Value::Dense(scales)), None) => Some(cut(scales, &per_block)?.into()),
        (_, Some(supers)) => Some(supers.sliced([&old[..axis], &start[..axis], &stop[..axis]], [whole, from, to])?),
        (Some(scales), None) => {
            let nested = scales.downcast::<Dynamic8Array>();
            let nested = nested.ok_or_else(|| Error::decline("the scales are of a type that is not known here"))?;
            let edges = [from, to, whole].map(per_block);
            let edges = if flat { &edges[..1] } else { &edges };
            if edges.iter().any(|edge| !edge.is_multiple_of(nested.block_size())) {
                return Err(Error::decline("the scales are packed themselves"));
            }
            let [codes, absmax, offset] = nested.parts();
            let absmax = cut(&absmax, &|at| per_block(at).div_ceil(nested.block_size()))?.reshape(&[-1])?;
            let codes = cut(&codes, &per_block)?.reshape(&[-1])?;
            Some(Dynamic8Array::from_parts(codes, absmax, offset, nested.block_size())?.into())
        }
    };
    stored.codes = cut(&stored.codes, &|at| (at * bits).div_ceil(width))?;
    if let (Scaling::Float, Some(biases)) = (stored.scheme.scaling, &stored.modifier) {
        stored.modifier = Some(cut(biases, &per_block)?);
    }
    stored.scales = scales;
    in_shape(stored, &new)
}

/// Arrays of one type and the same static fields, joined where each but the last ends with a block; with dense ones, a
/// [`Concat`], as another format would round these.
#[handler]
pub fn packed_concatenate(op: &Concatenate, first: &dyn Packed, rest: &[&Value]) -> Result<Value> {
    if rest.iter().any(|value| !value.is_implicit()) {
        let parts = std::iter::once(itself(first)).chain(rest.iter().map(|&part| part.clone()));
        return Concat::of(parts.collect(), op.axis as usize);
    }
    let Stored { transposed, aval, .. } = first.stored();
    let mut axes: Vec<i32> = (0..aval.shape.len() as i32).collect();
    if transposed {
        axes = turned(&axes);
    }
    let axis = axes[op.axis as usize] as usize;
    let rest = rest.iter().map(|value| value.family::<dyn Packed>());
    let rest = rest.collect::<Option<Vec<_>>>().ok_or_else(|| Error::decline("the parts are of several types"))?;
    joined(first, &rest, axis)
}

/// Arrays joined along an axis of the stored ones.
fn joined(first: &dyn Packed, rest: &[&dyn Packed], axis: usize) -> Result<Value> {
    let mut stored = first.stored();
    let mut parts = vec![stored.clone()];
    for &part in rest {
        if !first.restored(part.stored()).aux_eq(part) || part.stored().transposed != stored.transposed {
            return Err(Error::decline("the parts have other static fields"));
        }
        parts.push(part.stored());
    }
    if stored.scheme.scaling != Scaling::Float && parts.iter().any(|part| part.modifier.is_some()) {
        return Err(Error::decline("each part has a factor of its own"));
    }
    let shape = stored.shape();
    let (outer, unit) = (extent(&shape[..axis]), stored.unit());
    let extents: Vec<usize> = parts.iter().map(|part| extent(&part.shape()[axis..])).collect();
    let (_, heads) = extents.split_last().unwrap_or((&0, &[]));
    let aligned = extents.iter().all(|extent| extent % unit == 0);
    let flat = outer == 1 && !stored.scheme.is_grouped() && heads.iter().all(|extent| extent % unit == 0);
    if !aligned && !flat {
        return Err(Error::decline("a part does not end with a block"));
    }
    let join = |child: &dyn Fn(&Stored) -> Option<Array>| -> Result<Array> {
        let children = parts.iter().map(|part| {
            let child = child(part).ok_or_else(|| Error::decline("the scales are packed themselves"))?;
            Ok(child.reshape(&[outer as i32, (child.size() / outer) as i32])?)
        });
        Ok(ops::concatenate(&children.collect::<Result<Vec<_>>>()?, 1)?)
    };
    let supers: Option<Vec<Supers>> = parts.iter().map(Supers::of).collect();
    let scales = match supers {
        _ if stored.scales.is_none() => None,
        Some(supers) => Some(Supers::joined(&supers, outer)?),
        None => Some(join(&|part| part.scales.as_ref()?.as_dense().cloned())?.into()),
    };
    stored.codes = join(&|part| Some(part.codes.clone()))?;
    stored.modifier = stored.modifier.is_some().then(|| join(&|part| part.modifier.clone())).transpose()?;
    stored.scales = scales;
    let mut shape = shape;
    shape[axis] = parts.iter().map(|part| part.shape()[axis]).sum();
    reshaped(first, stored, &shape)
}

/// A scalar as the other factor.
#[handler]
pub fn packed_multiply(_op: &Multiply, array: &dyn Packed, factor: &Array) -> Result<Value> {
    let factor = scalar(array, factor)?;
    scaled(array, |number| Ok(number.multiply(&factor)?))
}

/// A scalar as the divisor.
#[handler]
pub fn packed_divide(_op: &Divide, array: &dyn Packed, divisor: &Array) -> Result<Value> {
    let divisor = scalar(array, divisor)?;
    scaled(array, |number| Ok(number.divide(&divisor)?))
}

/// The other sign, which goes to the scales.
#[handler]
pub fn packed_negative(_op: &Negative, array: &dyn Packed) -> Result<Value> {
    scaled(array, |number| Ok(number.negative()?))
}

/// The scalar in `f32` that `other`, of the array's shape, is a broadcast of.
fn scalar(array: &dyn Packed, other: &Array) -> Result<Array> {
    let source = broadcast_source(other)?;
    if source.size() != 1 || other.shape() != array.stored().aval.shape {
        return Err(Error::decline(format!("{} is not a scalar", Aval::from(&source))));
    }
    Ok(source.reshape(&[])?.as_dtype(Dtype::Float32)?)
}

/// The scales in `f32`, so that they are rounded no further, after a linear map.
fn scaled(array: &dyn Packed, map: impl Fn(&Array) -> Result<Array>) -> Result<Value> {
    let mut stored = array.stored();
    let wide = |number: &Array| map(&number.as_dtype(Dtype::Float32)?);
    match (stored.scheme.scaling, &stored.scales) {
        (Scaling::Float, Some(Value::Dense(scales))) => {
            stored.scales = Some(wide(scales)?.into());
            stored.modifier = stored.modifier.as_ref().map(wide).transpose()?;
        }
        (Scaling::Float, Some(scales)) => {
            if let Some(integers) = scales.downcast::<Int8Array>() {
                stored.scales = Some(scaled(integers, map)?);
                return Ok(array.restored(stored).into());
            }
            let nested = scales.downcast::<Dynamic8Array>();
            let nested = nested.ok_or_else(|| Error::decline("the scales are of a type that is not known here"))?;
            stored.scales = Some(nested.scaled(map)?.into());
        }
        (Scaling::E4m3, _) if stored.modifier.is_some() => {
            stored.modifier = stored.modifier.as_ref().map(wide).transpose()?;
        }
        (Scaling::One, _) => return Err(Error::decline("the codes are the values, and have no scales")),
        _ => return Err(Error::decline("the scales are no floats that another number could scale")),
    }
    Ok(array.restored(stored).into())
}

pub(crate) fn extent(shape: &[i32]) -> usize {
    shape.iter().map(|&extent| extent as usize).product()
}

impl Stored {
    /// The elements after which a block ends and an element of the array of codes does, too.
    pub(crate) fn unit(&self) -> usize {
        self.unit_of(self.block)
    }

    /// The elements that have a scale in common, or the scale of their scales.
    pub(crate) fn reach(&self) -> usize {
        Supers::of(self).map_or(self.block, |supers| supers.elements)
    }

    /// The same in blocks of another size.
    pub(crate) fn unit_of(&self, block: usize) -> usize {
        let (bits, width) = (self.scheme.bits(), self.scheme.width());
        let codes = lcm(bits, width) / bits;
        let block = Supers::of(self).map_or(block, |supers| supers.elements);
        lcm(block, codes)
    }
}

/// Scales that are integers with a factor for each super-block: `f32[rows, super-blocks, groups]`.
struct Supers<'a> {
    integers: &'a Int8Array,
    rows: i32,
    groups: i32,
    /// Elements of a super-block.
    elements: usize,
}

impl<'a> Supers<'a> {
    fn of(stored: &'a Stored) -> Option<Self> {
        let integers = stored.scales.as_ref()?.downcast::<Int8Array>()?;
        let &[rows, _, groups] = integers.stored().aval.shape.as_slice() else { return None };
        Some(Self { integers, rows, groups, elements: stored.block * groups as usize })
    }

    /// Those of the elements `from..to` of the last axis, which has `whole`, in a range of the axes before it.
    fn sliced(&self, [old, start, stop]: [&[i32]; 3], [whole, from, to]: [usize; 3]) -> Result<Value> {
        let [whole, from, to] = [whole, from, to].map(|at| at.div_ceil(self.elements) as i32);
        let integers =
            reshaped(self.integers, self.integers.stored(), &[&[self.rows], old, &[whole, self.groups]].concat())?;
        let cut = sliced(
            packed(&integers)?,
            &[&[0], start, &[from, 0]].concat(),
            &[&[self.rows], stop, &[to, self.groups]].concat(),
        )?;
        self.flat(&cut)
    }

    /// Those of the parts one after the other, for each of `outer` rows.
    fn joined(parts: &[Self], outer: usize) -> Result<Value> {
        let along = |part: &Self| {
            let supers = part.integers.stored().aval.shape[1] / outer as i32;
            reshaped(part.integers, part.integers.stored(), &[part.rows, outer as i32, supers, part.groups])
        };
        let parts_along = parts.iter().map(along).collect::<Result<Vec<_>>>()?;
        let arrays = parts_along.iter().map(packed).collect::<Result<Vec<_>>>()?;
        let (first, rest) = arrays.split_first().ok_or_else(|| Error::decline("there are no parts"))?;
        parts[0].flat(&joined(*first, rest, 2)?)
    }

    /// The super-blocks along one axis again.
    fn flat(&self, integers: &Value) -> Result<Value> {
        let array = packed(integers)?;
        let supers = extent(&array.stored().aval.shape) as i32 / (self.rows * self.groups).max(1);
        reshaped(array, array.stored(), &[self.rows, supers, self.groups])
    }
}

fn packed(value: &Value) -> Result<&dyn Packed> {
    value.family::<dyn Packed>().ok_or_else(|| Error::decline("the scales are not packed"))
}

pub(crate) fn lcm(a: usize, b: usize) -> usize {
    a / gcd(a, b).max(1) * b
}

pub(crate) fn gcd(mut large: usize, mut small: usize) -> usize {
    while small > 0 {
        (large, small) = (small, large % small);
    }
    large
}

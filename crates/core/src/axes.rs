//! Where the axes of an array go when a primitive moves its elements.

use mlx_rs::Array;
use tacit_bridge::typed::{
    Broadcast, BroadcastAxes, Contiguous, Copy, DynamicSlice, ExpandDims, Flatten, Gather, Slice, Split, Squeeze,
    Transpose,
};
use tacit_bridge::typed::{TypedPrimitive, describe};

use crate::class::{Moving, Reshaping};
use crate::{Aval, Result, Value};

impl Moving {
    /// Where `axis` of the first operand is in each result, if the elements along it stay together and in order.
    ///
    /// `None` if they are cut, or if nothing is known of the primitive. `shape` is that of the first operand, `rest` are the other
    /// operands, and `results` are the avals of the results.
    ///
    /// # Errors
    ///
    /// The parameters of the primitive cannot be read.
    pub fn axis_after(&self, axis: usize, shape: &[i32], rest: &[&Value], results: &[Aval]) -> Result<Option<usize>> {
        let extent = shape[axis];
        Ok(match self.name() {
            Contiguous::NAME | Copy::NAME => Some(axis),
            Transpose::NAME => self.view::<Transpose>()?.axes.iter().position(|&from| from as usize == axis),
            Slice::NAME => {
                let slice = self.view::<Slice>()?;
                let whole = slice.start_indices[axis] == 0 && slice.strides[axis] == 1;
                (whole && results[0].shape[axis] == extent).then_some(axis)
            }
            Split::NAME => (self.view::<Split>()?.axis as usize != axis).then_some(axis),
            DynamicSlice::NAME => (!self.view::<DynamicSlice>()?.axes.contains(&(axis as i32))
                && results[0].shape[axis] == extent)
                .then_some(axis),
            Gather::NAME => {
                let gather = self.view::<Gather>()?;
                let whole = !gather.axes.contains(&(axis as i32)) && gather.slice_sizes[axis] == extent;
                // The axes of the indices stand before those of the slices.
                let indices = rest.first().map_or(Ok(0), |indices| indices.aval().map(|aval| aval.shape.len()))?;
                whole.then_some(axis + indices)
            }
            Broadcast::NAME | BroadcastAxes::NAME => {
                let place = axis + results[0].shape.len() - shape.len();
                (results[0].shape[place] == extent).then_some(place)
            }
            name if describe(name).is_some_and(|row| row.class == tacit_bridge::typed::Class::Reshaping) => {
                reshaped_axis(shape, axis, &results[0].shape, |found| found == extent)
            }
            _ => None,
        })
    }
}

impl Reshaping {
    /// Gives `part`, a part of the operand, the `shape` that it has as a part of the result.
    ///
    /// A primitive that names no extents, such as `squeeze`, is applied to the part itself, so that a function without shapes serves
    /// parts of any extents.
    ///
    /// # Errors
    ///
    /// The part has not as many elements as `shape`, or the parameters of the primitive cannot be read.
    pub fn of_part(&self, part: &Array, shape: &[i32]) -> Result<Array> {
        let result = match self.name() {
            ExpandDims::NAME => part.expand_dims_axes(&self.view::<ExpandDims>()?.axes)?,
            Squeeze::NAME => part.squeeze_axes(&self.view::<Squeeze>()?.axes)?,
            Flatten::NAME => {
                let range = self.view::<Flatten>()?;
                part.flatten(range.start_axis, range.end_axis)?
            }
            _ => return Ok(part.reshape(shape)?),
        };
        // Of several axes of 1 another one may be meant.
        if result.shape() == shape { Ok(result) } else { Ok(part.reshape(shape)?) }
    }
}

/// The axis of the shape `to` that begins where `axis` of `from` does, counted row-major.
///
/// Extents of 1 may make several such axes; the first one whose extent `fits` accepts is taken.
#[must_use]
pub fn reshaped_axis(from: &[i32], axis: usize, to: &[i32], fits: impl Fn(i32) -> bool) -> Option<usize> {
    let size = |extents: &[i32]| extents.iter().map(|&extent| i64::from(extent)).product::<i64>();
    let before = size(&from[..axis]);
    (0..to.len()).find(|&place| size(&to[..place]) == before && fits(to[place]))
}

#[cfg(test)]
mod tests {
    use super::reshaped_axis;

    #[test]
    fn rows_keep_together_or_there_is_no_axis() {
        let whole =
            |from: &[i32], axis: usize, to: &[i32]| reshaped_axis(from, axis, to, |extent| extent == from[axis]);
        assert_eq!(whole(&[2, 3, 4], 2, &[6, 4]), Some(1));
        assert_eq!(whole(&[2, 3, 4], 0, &[2, 12]), Some(0));
        assert_eq!(whole(&[2, 3, 4], 1, &[2, 12]), None);
        assert_eq!(whole(&[2, 3, 4], 1, &[2, 1, 3, 4]), Some(2));
        assert_eq!(whole(&[1, 4], 0, &[1, 1, 4]), Some(0));
        let parts = |from: &[i32], axis: usize, to: &[i32]| reshaped_axis(from, axis, to, |extent| extent % 4 == 0);
        assert_eq!(parts(&[4, 2, 3], 0, &[8, 3]), Some(0));
        assert_eq!(parts(&[8, 3], 0, &[4, 2, 3]), Some(0));
        assert_eq!(parts(&[4, 6], 0, &[1, 4, 1, 6]), Some(1));
        assert_eq!(parts(&[3, 4, 2], 1, &[3, 8]), Some(1));
        assert_eq!(parts(&[24], 0, &[2, 12]), None);
        assert_eq!(parts(&[3, 4, 2], 1, &[12, 2]), None);
        assert_eq!(parts(&[4, 6], 0, &[6, 4]), None);
    }
}

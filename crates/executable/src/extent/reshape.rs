//! Where the rows of an array lie after it was reshaped.

use super::Place;

/// The place of the rows in row-major order, if no row is torn: the axes before stay together, and the axis that begins
/// the rows is a multiple of them.
pub(crate) fn place_in(place: Place, upper: i32, from: &[i32], to: &[i32]) -> Option<Place> {
    let size = |extents: &[i32]| extents.iter().map(|&extent| i64::from(extent)).product::<i64>();
    let before = size(&from[..place.axis]);
    let found = |axis: &usize| size(&to[..*axis]) == before && to[*axis] % upper == 0;
    let axis = (0..to.len()).find(found).filter(|_| size(from) > 0)?;
    Some(Place { axis, inner: to[axis] / upper })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(place: (usize, i32), from: &[i32], to: &[i32]) -> Option<(usize, i32)> {
        let place = Place { axis: place.0, inner: place.1 };
        place_in(place, 4, from, to).map(|place| (place.axis, place.inner))
    }

    #[test]
    fn rows_keep_together_or_there_is_no_place() {
        assert_eq!(moved((0, 1), &[4, 2, 3], &[8, 3]), Some((0, 2)));
        assert_eq!(moved((0, 2), &[8, 3], &[4, 2, 3]), Some((0, 1)));
        assert_eq!(moved((0, 1), &[4, 6], &[1, 4, 1, 6]), Some((1, 1)));
        assert_eq!(moved((1, 1), &[3, 4, 2], &[3, 8]), Some((1, 2)));
        assert_eq!(moved((0, 6), &[24], &[8, 3]), Some((0, 2)));
        assert_eq!(moved((0, 6), &[24], &[2, 12]), None);
        assert_eq!(moved((1, 1), &[3, 4, 2], &[12, 2]), None);
        assert_eq!(moved((0, 1), &[4, 6], &[6, 4]), None);
        assert_eq!(moved((0, 1), &[4, 0], &[0]), None);
    }
}

//! The rows of tensors of a file, in the order of a parameter.

use std::ops::Range;

use tacit_bridge::forget_bytes;

use crate::mapped::Part;

/// The bytes of the rows of one tensor or of several, one behind the other.
pub(super) struct Rows {
    tensors: Vec<Part>,
    /// The row of the file that each row is, where they are in another order.
    order: Option<Vec<u32>>,
    /// The bytes of a row.
    stride: usize,
}

impl Rows {
    pub(super) fn new(tensors: Vec<Part>, order: Option<&[u32]>, stride: usize) -> Self {
        Self { tensors, order: order.map(<[u32]>::to_vec), stride }
    }

    pub(super) fn get(&self, row: usize) -> &[u8] {
        let order = self.order.as_ref();
        let mut at = order.and_then(|order| order.get(row)).map_or(row, |&row| row as usize) * self.stride;
        for bytes in self.tensors.iter().map(Part::bytes) {
            if at < bytes.len() {
                return &bytes[at..at + self.stride];
            }
            at -= bytes.len();
        }
        &[]
    }

    /// Lets the memory of rows go, which were read. Those of another order lie all over the tensors, and wait for
    /// [`forget_all`](Self::forget_all).
    pub(super) fn forget(&self, rows: Range<usize>) {
        if self.order.is_some() {
            return;
        }
        let (mut begin, mut end) = (rows.start * self.stride, rows.end * self.stride);
        for bytes in self.tensors.iter().map(Part::bytes) {
            forget_bytes(&bytes[begin.min(bytes.len())..end.min(bytes.len())]);
            (begin, end) = (begin.saturating_sub(bytes.len()), end.saturating_sub(bytes.len()));
        }
    }

    /// Lets the memory of all rows go, with the pages that the system read beside those that were asked for.
    pub(super) fn forget_all(&self) {
        self.tensors.iter().for_each(Part::forget);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::Arc;

    use tacit_bridge::MappedFile;

    use super::*;

    #[test]
    fn rows_of_two_tensors_come_in_their_order() {
        let path = std::env::temp_dir().join(format!("tacit-rows-{}", std::process::id()));
        fs::write(&path, [0, 7, 8, 0, 1, 2, 3, 4, 5, 6]).expect("writes");
        let file = Arc::new(MappedFile::new(&File::open(&path).expect("opens")).expect("maps"));
        fs::remove_file(path).ok();
        let part = |place| Part { file: Arc::clone(&file), place };
        let all = |order: Option<&[u32]>| {
            let rows = Rows::new(vec![part(4..10), part(1..3)], order, 2);
            rows.forget(1..4);
            rows.forget_all();
            (0..4).flat_map(|row| rows.get(row).to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(all(None), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(all(Some(&[3, 0, 2, 1])), [7, 8, 1, 2, 5, 6, 3, 4]);
    }
}

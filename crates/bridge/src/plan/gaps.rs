//! Places in the arena for arrays that live at different times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

/// The parts of an arena that nothing lives in, while stages are gone through in their order.
#[derive(Default)]
pub(super) struct Gaps {
    /// Their bytes by their offsets, none beside another.
    free: BTreeMap<usize, usize>,
    /// The arrays that live: the stage at which each ends, its offset and its bytes.
    living: BinaryHeap<Reverse<(usize, usize, usize)>>,
    pub(super) end: usize,
}

impl Gaps {
    /// A place for so many bytes: the smallest gap that is long enough, or else at the end. None where that is too far away.
    pub(super) fn take(&mut self, bytes: usize, life: &Range<usize>) -> Option<usize> {
        while let Some(&Reverse((end, offset, bytes))) = self.living.peek()
            && end <= life.start
        {
            self.living.pop();
            self.free(offset, bytes);
        }
        let fitting = self.free.iter().filter(|&(_, &gap)| gap >= bytes).min_by_key(|&(_, &gap)| gap);
        let offset = match fitting.or_else(|| self.free.last_key_value().filter(|&(at, gap)| at + gap == self.end)) {
            Some((&offset, _)) => offset,
            None => self.end,
        };
        let gap = self.free.remove(&offset).unwrap_or(0);
        let end = offset.checked_add(bytes).filter(|&end| isize::try_from(end).is_ok())?;
        if gap > bytes {
            self.free.insert(end, gap - bytes);
        }
        self.end = self.end.max(end);
        self.living.push(Reverse((life.end, offset, bytes)));
        Some(offset)
    }

    /// Makes a gap, one with those beside it.
    fn free(&mut self, offset: usize, bytes: usize) {
        let (mut offset, mut end) = (offset, offset + bytes);
        if let Some(after) = self.free.remove(&end) {
            end += after;
        }
        if let Some((&before, &gap)) = self.free.range(..offset).next_back()
            && before + gap == offset
        {
            offset = before;
        }
        self.free.insert(offset, end - offset);
    }
}

#[cfg(test)]
mod tests {
    use super::Gaps;

    #[test]
    fn gaps_are_apart_from_all_that_lives() {
        let mut gaps = Gaps::default();
        let mut taken: Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> = Vec::new();
        let mut seed = 1_usize;
        for stage in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (bytes, life) = (64 * (1 + (seed >> 40) % 9), stage..stage + 1 + (seed >> 50) % 20);
            let offset = gaps.take(bytes, &life).expect("a place");
            for (place, other) in &taken {
                let together = other.start < life.end && life.start < other.end;
                assert!(!together || offset + bytes <= place.start || place.end <= offset);
            }
            taken.push((offset..offset + bytes, life));
        }
        assert!(gaps.end < 64 * 9 * 20 * 2, "{}", gaps.end);
        assert_eq!(gaps.take(usize::MAX - 63, &(2000..2001)), None);
    }
}

//! Fifteen thresholds, and how vectors find what lies between them.

/// Thresholds that ascend; infinite ones at the end stand for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    pub(super) values: [f32; 15],
    /// For instructions that look up 32 numbers at once.
    #[cfg(target_arch = "x86_64")]
    pub(super) cells: Option<Cells>,
}

/// Cells of equal width, -16 to 15, of floats times a factor that are rounded to integers. None holds two thresholds, so that
/// one comparison is left: half the work of a binary search, where a vector looks up 32 numbers at once.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    pub(super) factor: f32,
    /// The threshold in each cell, which is at the lowest 5 bits of its number.
    pub(super) thresholds: [f32; 32],
    /// How many thresholds are in the cells below.
    pub(super) ranks: [u32; 32],
}

impl Thresholds {
    pub(crate) const fn new(values: [f32; 15]) -> Self {
        Self {
            values,
            #[cfg(target_arch = "x86_64")]
            cells: Cells::from_values(&values),
        }
    }

    /// For a binary search, whose first step compares with the eighth threshold: what the second, third and fourth step compare
    /// with at the rank, a multiple of 8, 4 and 2, that the ones before found.
    pub(super) fn steps(&self) -> [[f32; 16]; 3] {
        [3, 1, 0].map(|middle| std::array::from_fn(|rank| self.values[(rank + middle).min(14)]))
    }
}

#[cfg(target_arch = "x86_64")]
impl Cells {
    const fn from_values(values: &[f32; 15]) -> Option<Self> {
        let (mut max, mut i) = (0.0_f32, 0);
        while i < 15 && values[i].is_finite() {
            max = max.max(values[i].abs());
            i += 1;
        }
        let factor = 15.0 / max;
        if !factor.is_finite() {
            return None;
        }
        let mut cells = Self { factor, thresholds: [f32::INFINITY; 32], ranks: [0; 32] };
        i = 0;
        while i < 15 && values[i].is_finite() {
            // As floats are rounded that are looked up.
            let cell = (values[i] * factor).round_ties_even() as i32;
            if cells.thresholds[(cell & 31) as usize].is_finite() {
                return None;
            }
            cells.thresholds[(cell & 31) as usize] = values[i];
            let mut later = cell + 1;
            while later < 16 {
                cells.ranks[(later & 31) as usize] += 1;
                later += 1;
            }
            i += 1;
        }
        Some(cells)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn no_cell_holds_two_thresholds() {
        let even: [f32; 15] = std::array::from_fn(|i| i as f32 - 7.0);
        assert!(Thresholds::new(even).cells.is_some());
        let mut near = even;
        near[8] = near[7].next_up();
        assert!(Thresholds::new(near).cells.is_none());
        assert!(Thresholds::new([f32::INFINITY; 15]).cells.is_none());
    }
}

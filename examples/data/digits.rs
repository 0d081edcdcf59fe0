//! 1,797 handwritten digits, which several examples learn: see the README beside this file.

use mlx_rs::{Array, ops, random};
use tacit::Result;

/// The images as `f32[n,64]` from 0 to 1, the labels as `u32[n]`.
pub(crate) struct Digits {
    pub(crate) images: Array,
    pub(crate) labels: Array,
}

impl Digits {
    /// All of them.
    pub(crate) fn load() -> Self {
        const RECORD: usize = 65;
        let bytes = include_bytes!("digits.bin");
        let count = (bytes.len() / RECORD) as i32;
        let pixels: Vec<f32> =
            bytes.chunks(RECORD).flat_map(|r| r[..64].iter().map(|&p| f32::from(p) / 16.0)).collect();
        let labels: Vec<u32> = bytes.chunks(RECORD).map(|record| u32::from(record[64])).collect();
        Self { images: Array::from_slice(&pixels, &[count, 64]), labels: Array::from_slice(&labels, &[count]) }
    }

    /// Those with these numbers.
    pub(crate) fn select(&self, rows: &[u32]) -> Result<Self> {
        let rows = Array::from_slice(rows, &[rows.len() as i32]);
        Ok(Self { images: self.images.take_axis(&rows, 0)?, labels: self.labels.take_axis(&rows, 0)? })
    }

    /// The same digits with rows and columns swapped.
    #[allow(dead_code, reason = "only what adapts a model to other digits needs it")]
    pub(crate) fn on_their_side(&self) -> Result<Self> {
        let images = self.images.reshape(&[-1, 8, 8])?.swap_axes(1, 2)?.reshape(&[-1, 64])?;
        Ok(Self { images, labels: self.labels.clone() })
    }
}

/// The numbers below `count` in an order that the seed decides.
pub(crate) fn shuffled(count: usize, seed: u64) -> Result<Vec<u32>> {
    let draws = random::uniform::<_, f32>(0.0, 1.0, &[count as i32], Some(&random::key(seed)?))?;
    Ok(ops::argsort_axis(&draws, 0)?.as_slice::<u32>().to_vec())
}

//! Reproducible numbers without a dependency.

/// `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// `len` draws from N(0, 1), by Box and Muller.
    pub(crate) fn normal(&mut self, len: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(len + 1);
        while values.len() < len {
            let radius = (-2.0 * self.unit().ln()).sqrt();
            let (sine, cosine) = (std::f64::consts::TAU * self.unit()).sin_cos();
            values.extend([(radius * cosine) as f32, (radius * sine) as f32]);
        }
        values.truncate(len);
        values
    }
}

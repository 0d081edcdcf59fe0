//! Caches of half floats where MLX multiplies half floats one by one: on CPUs.

use mlx_rs::{Device, DeviceType, Dtype};
use tacit_arrays::format::{AnyFormat, Bf16, F16};
use tacit_core::Result;

use super::store::Store;
use super::{Cache, KvCache};

impl KvCache {
    /// The same tokens with keys and values of half floats in the formats `f16` and `bf16`, where the default device is a CPU.
    ///
    /// Their attention has sums in `f32` at the memory's speed, where MLX has a plain loop over half floats: a long prompt is
    /// read several times as fast. Nothing is rounded. Keys and values of `f32`, and of another format, stay as they are, and so
    /// does everything on a GPU. Codes have no gradient: keep a cache dense where a step is differentiated through it.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::Dtype;
    /// use tacit_nn::KvCache;
    ///
    /// let mut cache = KvCache::new([1, 2, 64], Dtype::Bfloat16)?.hold_halves()?;
    /// cache.reserve(3)?;
    /// # if cfg!(target_os = "linux") {
    /// assert_eq!(cache.keys().to_string(), "Bf16(bf16[1,2,256,64])");
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The tokens that are there cannot be evaluated.
    pub fn hold_halves(self) -> Result<Self> {
        self.held_on(Device::try_default()?.get_type()?)
    }

    fn held_on(self, device: DeviceType) -> Result<Self> {
        let (keys, values) = (format(&self.keys, device)?, format(&self.values, device)?);
        self.stored(keys, values)
    }
}

impl Cache {
    /// The same with keys and values of half floats in the formats `f16` and `bf16` on a CPU: see [`KvCache::hold_halves`].
    ///
    /// # Errors
    ///
    /// As for [`KvCache::hold_halves`].
    pub fn hold_halves(self) -> Result<Self> {
        Ok(match self {
            Self::Kv(cache) => Self::Kv(cache.hold_halves()?),
            Self::Arrays(cache) => Self::Arrays(cache),
            Self::List(caches) => Self::List(caches.into_iter().map(Self::hold_halves).collect::<Result<_>>()?),
        })
    }
}

/// What a buffer is to be stored in.
fn format(store: &Store, device: DeviceType) -> Result<Option<AnyFormat>> {
    let half = match (store.format(), device, store.aval()?.dtype) {
        (Some(own), ..) => return Ok(Some(own.clone())),
        (None, DeviceType::Gpu, _) => None,
        (None, _, Dtype::Float16) => Some(F16.into()),
        (None, _, Dtype::Bfloat16) => Some(Bf16.into()),
        _ => None,
    };
    Ok(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_held_on_a_cpu_alone_and_other_formats_stay() {
        let formats = |dtype, device, own: Option<&str>| {
            let own = own.map(|text| text.parse::<AnyFormat>().expect("a format"));
            let cache = KvCache::new([1, 2, 64], dtype).and_then(|cache| cache.stored(own, None)).expect("one");
            let held = cache.held_on(device).expect("fits");
            [&held.keys, &held.values].map(|store| store.format().map(ToString::to_string))
        };
        let named = |text: &str| Some(text.to_owned());
        assert_eq!(formats(Dtype::Bfloat16, DeviceType::Cpu, None), [named("bf16"), named("bf16")]);
        assert_eq!(formats(Dtype::Float16, DeviceType::Cpu, None), [named("f16"), named("f16")]);
        assert_eq!(formats(Dtype::Float32, DeviceType::Cpu, None), [None, None]);
        assert_eq!(formats(Dtype::Bfloat16, DeviceType::Gpu, None), [None, None]);
        let other = formats(Dtype::Bfloat16, DeviceType::Cpu, Some("affine:8:64"));
        assert_eq!(other, [named("affine:8:64"), named("bf16")]);
    }
}

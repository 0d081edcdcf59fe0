//! What a suite needs of the CPU where everything else runs on a GPU: f64.

use mlx_rs::{Device, DeviceType, Stream, with_stream};

/// Whether ops go to a GPU where nobody says otherwise.
pub(crate) fn is_gpu() -> bool {
    Device::try_default().and_then(|device| device.get_type()).is_ok_and(|device| matches!(device, DeviceType::Gpu))
}

/// Runs `f` with all its ops on the CPU, which alone has f64.
pub(crate) fn on_the_cpu<R>(f: impl FnOnce() -> R) -> R {
    if is_gpu() { with_stream(&Stream::cpu(), f) } else { f() }
}

//! On which device a suite runs, and what it needs of the CPU where that is a GPU: f64.

use mlx_rs::{Device, DeviceType, Stream, with_stream};

/// The variable that names the device of the suite: `cpu` or `gpu`. Where it is not set, that is MLX's default.
pub const DEVICE_VARIABLE: &str = "TACIT_SUITE_DEVICE";

/// Makes the device of [`DEVICE_VARIABLE`] MLX's default; each test of the suite begins with it.
///
/// # Panics
///
/// The variable names no device, or one that MLX has not here: the suite would pass on another.
#[doc(hidden)]
pub fn choose_device() {
    if let Ok(text) = std::env::var(DEVICE_VARIABLE) {
        choose(&text);
    }
}

fn choose(text: &str) {
    let device = named(text).unwrap_or_else(|| panic!("{DEVICE_VARIABLE} is {text}: say `cpu` or `gpu`"));
    Device::set_default(&Device::new(device, 0));
    // mlx-rs does not say that MLX refused it.
    assert_eq!(is_gpu(), matches!(device, DeviceType::Gpu), "{DEVICE_VARIABLE} is {text}, which MLX has not here");
}

fn named(text: &str) -> Option<DeviceType> {
    match text {
        "cpu" => Some(DeviceType::Cpu),
        "gpu" => Some(DeviceType::Gpu),
        _ => None,
    }
}

/// Whether ops go to a GPU where nobody says otherwise.
pub(crate) fn is_gpu() -> bool {
    Device::try_default().and_then(|device| device.get_type()).is_ok_and(|device| matches!(device, DeviceType::Gpu))
}

/// Runs `f` with all its ops on the CPU, which alone has f64.
pub(crate) fn on_the_cpu<R>(f: impl FnOnce() -> R) -> R {
    if is_gpu() { with_stream(&Stream::cpu(), f) } else { f() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_in_small_letters() {
        assert!(matches!(named("cpu"), Some(DeviceType::Cpu)));
        assert!(matches!(named("gpu"), Some(DeviceType::Gpu)));
        assert!(["", "CPU", "cuda"].into_iter().all(|text| named(text).is_none()));
    }

    #[test]
    #[should_panic(expected = "TACIT_SUITE_DEVICE is cuda: say `cpu` or `gpu`")]
    fn a_device_of_another_name_is_refused() {
        choose("cuda");
    }
}

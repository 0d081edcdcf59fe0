//! How much memory lies idle beside a run.

use mlx_rs::{Device, DeviceType, memory};
use tacit_bridge::process::give_back_large_memory_at_once;
use tacit_core::Result;

/// Has neither MLX nor the C library hold memory for later, in all that this program computes on a CPU: MLX keeps 32 MiB of what is
/// free for the next arrays. A GPU has memory of its own.
pub(super) fn hold_nothing_idle() -> Result<()> {
    if matches!(Device::try_default()?.get_type()?, DeviceType::Gpu) {
        return Ok(());
    }
    memory::set_cache_limit(0)?;
    give_back_large_memory_at_once();
    Ok(())
}

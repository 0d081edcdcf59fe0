//! How much memory lies idle beside a run.

use mlx_rs::{Device, DeviceType, memory};
use tacit_bridge::process::give_back_large_memory_at_once;
use tacit_core::Result;

/// Has neither MLX nor the C library hold memory for later, in all that this program computes on a CPU.
///
/// MLX keeps 32 MiB of what is free for the next arrays. It also queues dozens of tasks ahead of the one that runs, and allocates what
/// each of them makes when it is queued: above its limit it waits after each ten for those that are queued. Tasks of whole rows of
/// tokens leave no gap there, but MLX does not sleep as it waits for the last of them: this takes a core from those that compute.
/// A GPU has memory of its own, and launches that are worth queueing.
pub(super) fn hold_nothing_idle() -> Result<()> {
    if matches!(Device::try_default()?.get_type()?, DeviceType::Gpu) {
        return Ok(());
    }
    memory::set_cache_limit(0)?;
    memory::set_memory_limit(0)?;
    give_back_large_memory_at_once();
    Ok(())
}

//! What MLX holds while something runs, for programs of a single test: it counts the bytes of a whole program.

use mlx_rs::memory;

/// The bytes that MLX holds at most while `f` runs, above those before.
pub(crate) fn peak(f: impl FnOnce()) -> usize {
    memory::clear_cache().expect("clears");
    memory::reset_peak_memory().expect("resets");
    let before = memory::active_memory().expect("counts");
    f();
    memory::peak_memory().expect("counts").saturating_sub(before)
}

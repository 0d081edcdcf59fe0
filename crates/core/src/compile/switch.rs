//! Whether functions are compiled at all.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{LazyLock, Once};

use crate::environment::{Setting, Switch};
use crate::policy::warn;

/// The variable that switches compilation off for the process: `off`, `0` or `false`.
pub const COMPILE_VARIABLE: &str = "TACIT_COMPILE";

/// MLX's own variable: set to anything, it switches MLX's compile off for the process, and with it that of Tacit.
pub const MLX_VARIABLE: &str = "MLX_DISABLE_COMPILE";

const UNKNOWN: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

static SWITCH: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Runs compiled functions without compiling them from now on, in the whole process; for debugging.
pub fn disable() {
    SWITCH.store(OFF, Ordering::Relaxed);
}

/// Compiles again after [`disable`], and in spite of [`COMPILE_VARIABLE`], unless [`MLX_VARIABLE`] is set, which MLX reads once.
pub fn enable() {
    SWITCH.store(ON, Ordering::Relaxed);
}

/// Has MLX simplify graphs but not fuse ops into kernels of its own, in the whole process from now on.
///
/// Each such kernel costs a run of the C++ compiler: for tests, which have many small graphs.
pub fn disable_fusion() {
    tacit_bridge::set_no_fuse();
}

/// Whether functions are compiled: [`MLX_VARIABLE`] is not set, and the last call of [`enable`] or [`disable`] says so, or, without
/// one, [`COMPILE_VARIABLE`].
#[must_use]
pub fn is_enabled() -> bool {
    static ALLOWED_BY_MLX: LazyLock<bool> = LazyLock::new(|| std::env::var_os(MLX_VARIABLE).is_none());
    static ASKED_FOR: Setting<Switch, 6> = Setting::new(
        COMPILE_VARIABLE,
        [
            ("on", Switch::On),
            ("off", Switch::Off),
            ("1", Switch::On),
            ("0", Switch::Off),
            ("true", Switch::On),
            ("false", Switch::Off),
        ],
    );
    *ALLOWED_BY_MLX
        && match SWITCH.load(Ordering::Relaxed) {
            UNKNOWN => ASKED_FOR.get() == Switch::On,
            known => known == ON,
        }
}

/// Says once that no compiler is installed.
pub(super) fn warn_without_compiler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if !tacit_bridge::compiler_available() {
            warn(
                "no g++ is in the search path: compiled functions replay their graphs without fusing ops\n\
                 help: install g++ to have MLX compile for the CPU",
            );
        }
    });
}

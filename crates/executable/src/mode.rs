//! How an executable runs.

use tacit_core::embedding::Setting;

/// How an executable runs its function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Every run calls the function and evaluates the graph that it made node by node: an error appears in the run that
    /// makes it and names the node, and the function may look at values, as long as no argument is implicit. For finding
    /// faults; a run that is committed or pipelined is evaluated as in the other modes, and `wait` names the node.
    Eager,
    /// Every run calls the function, and nothing is evaluated before it is asked for.
    Lazy,
    /// The function is traced once and its graph replayed; results are evaluated when asked for.
    #[default]
    Compiled,
}

/// The variable that sets the mode where the builder does not: `eager`, `lazy` or `compiled`.
pub const MODE_VARIABLE: &str = "TACIT_MODE";

impl Mode {
    /// The mode of executables whose builder names none.
    #[must_use]
    pub fn from_environment() -> Self {
        static MODE: Setting<Mode, 3> =
            Setting::new(MODE_VARIABLE, [("eager", Mode::Eager), ("lazy", Mode::Lazy), ("compiled", Mode::Compiled)]);
        MODE.get()
    }
}

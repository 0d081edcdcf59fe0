//! What stages refuse.

/// What a kernel answers where it cannot go on.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Stages are made by the pass, and nothing transforms or maps a graph after it.
pub(super) fn only_in_plans() -> BoxError {
    "a stage of a plan has no derivative\nhelp: differentiate the function before it is compiled".into()
}

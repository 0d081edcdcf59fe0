//! How an executable runs.

use std::sync::LazyLock;

use tacit_core::embedding::warn;

/// How an executable runs its function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Every run calls the function and evaluates what it returns: errors appear in the run that makes them, and the
    /// function may look at values, as long as no argument is implicit.
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
        static MODE: LazyLock<Mode> = LazyLock::new(|| match std::env::var(MODE_VARIABLE) {
            Ok(text) => Mode::parse(&text).unwrap_or_else(|| {
                warn(&format!("{MODE_VARIABLE}={text} is none of eager, lazy and compiled; compiled is in force"));
                Mode::default()
            }),
            Err(_) => Mode::default(),
        });
        *MODE
    }

    fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "eager" => Some(Self::Eager),
            "lazy" => Some(Self::Lazy),
            "compiled" => Some(Self::Compiled),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Mode;

    #[test]
    fn the_three_modes_are_read_in_any_case() {
        let modes = ["Eager", "lazy", "COMPILED", "fast"].map(Mode::parse);
        assert_eq!(modes, [Some(Mode::Eager), Some(Mode::Lazy), Some(Mode::Compiled), None]);
    }
}

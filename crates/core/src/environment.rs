//! Settings that an environment variable names.

use std::sync::OnceLock;

use crate::policy::warn;

/// A setting of the process: the word in an environment variable, read once.
///
/// Without the variable, and where it is empty, it is the default, which is one of the words. Another word also means the default,
/// with a warning. Case does not matter.
#[derive(Debug)]
pub struct Setting<T: 'static, const N: usize> {
    variable: &'static str,
    words: [(&'static str, T); N],
    read: OnceLock<T>,
}

/// What is on where nobody switches it off.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Switch {
    #[default]
    On,
    Off,
}

impl<T: Copy + Default + PartialEq, const N: usize> Setting<T, N> {
    /// A setting that has not been read.
    #[must_use]
    pub const fn new(variable: &'static str, words: [(&'static str, T); N]) -> Self {
        Self { variable, words, read: OnceLock::new() }
    }

    /// What was chosen.
    pub fn get(&self) -> T {
        let mut wrong = None;
        let value = *self.read.get_or_init(|| {
            // Scripts set a variable to nothing to unset it.
            let text = std::env::var_os(self.variable).filter(|text| !text.is_empty());
            let Some(text) = text else { return T::default() };
            let text = text.to_string_lossy();
            let known = self.words.iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
            known.map_or_else(
                || {
                    wrong = Some(text.into_owned());
                    T::default()
                },
                |(_, value)| *value,
            )
        });
        // Outside the lock: who is told may ask again, as a subscriber that runs compiled functions does.
        if let Some(text) = wrong {
            let words = self.words.map(|(word, _)| word);
            let (last, others) = words.split_last().unwrap_or((&"", &[]));
            let others = others.join(", ");
            let default = self.words.iter().find(|(_, value)| *value == T::default());
            let default = default.map_or("the default", |(word, _)| word);
            warn(&format!("{}={text} is not one of {others} and {last}; {default} is in force", self.variable));
        }
        value
    }
}

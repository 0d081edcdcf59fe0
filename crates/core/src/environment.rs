//! Settings that an environment variable names.

use crate::policy::warn;

/// What the word in `variable` stands for, in any case. If it is not set, or with a warning if it is none of `words`, that
/// is the default, which is one of them.
pub fn from_environment<T: Copy + Default + PartialEq>(variable: &str, words: [(&str, T); 3]) -> T {
    let Ok(text) = std::env::var(variable) else { return T::default() };
    if let Some((_, value)) = words.iter().find(|(word, _)| text.eq_ignore_ascii_case(word)) {
        return *value;
    }
    let [first, second, third] = words.map(|(word, _)| word);
    let default = words.into_iter().find(|(_, value)| *value == T::default()).map_or("the default", |(word, _)| word);
    warn(&format!("{variable}={text} is none of {first}, {second} and {third}; {default} is in force"));
    T::default()
}

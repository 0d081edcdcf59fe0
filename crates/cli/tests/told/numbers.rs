//! Texts whose numbers differ from run to run.

/// The text with N in the place of each number.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut said = String::new();
    for c in text.chars() {
        let is_part = c.is_ascii_digit() || (c == '.' && said.ends_with('N'));
        if !is_part {
            said.push(c);
        } else if !said.ends_with('N') {
            said.push('N');
        }
    }
    said
}

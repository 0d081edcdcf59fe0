//! Text of other people, made safe to print.
//!
//! Names of tensors, paths and messages come from files that anybody may have written. A terminal obeys some characters, a
//! reader is deceived by others, and XML has no place for a third kind: whatever prints such text lets it go through here.

use std::borrow::Cow;
use std::fmt::Write;

/// A name in one line: whatever is no plain character is written as Rust escapes it, also the end of a line.
///
/// ```
/// use tacit_drawing::printable;
///
/// assert_eq!(printable::name("layers.0.weight"), "layers.0.weight");
/// assert_eq!(printable::name("a\u{1b}[2Jb\n"), r"a\u{1b}[2Jb\n");
/// ```
#[must_use]
pub fn name(text: &str) -> Cow<'_, str> {
    escaped(text, is_plain)
}

/// A text of several lines, whose ends stay.
#[must_use]
pub fn text(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n' || is_plain(c))
}

/// A name as XML and HTML have it, between tags and in quotes.
///
/// ```
/// use tacit_drawing::printable;
///
/// assert_eq!(printable::xml("a<b & \"c\u{1}\""), r"a&lt;b &amp; &quot;c\u{1}&quot;");
/// ```
#[must_use]
pub fn xml(text: &str) -> String {
    name(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON whose strings have escapes in the place of what a terminal would obey: the same data.
///
/// ```
/// use tacit_drawing::printable;
///
/// assert_eq!(printable::json("\"a\u{9b}2Jb\u{202e}\""), r#""a\u009b2Jb\u202e""#);
/// ```
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    // Outside of strings JSON has plain characters and ends of lines alone.
    let is_kept = |c: char| c == '\n' || is_plain(c);
    if text.chars().all(is_kept) {
        return text.into();
    }
    let mut made = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_kept(c) {
            made.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(made, "\\u{unit:04x}");
            }
        }
    }
    made.into()
}

/// Whether a character is shown as it is, and moves nothing but the place behind it.
#[must_use]
pub fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            // Separators of lines and paragraphs.
            '\u{2028}' | '\u{2029}'
            // Marks, embeddings, overrides and isolates of the direction of reading.
            | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // What is not seen at all: the mark of byte order, annotations, tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
            // What no XML may hold.
            | '\u{fffe}' | '\u{ffff}')
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&is_kept) {
        return text.into();
    }
    let mut made = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_kept(c) { made.push(c) } else { made.extend(c.escape_default()) }
    }
    made.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All characters that a terminal, a reader of lines or of XML might take for more than text.
    fn strange() -> impl Iterator<Item = char> {
        [
            '\u{0}'..='\u{1f}',
            '\u{7f}'..='\u{9f}',
            '\u{2028}'..='\u{202e}',
            '\u{2066}'..='\u{2069}',
            '\u{fffe}'..='\u{ffff}',
        ]
        .into_iter()
        .flatten()
        .chain(['\u{200e}', '\u{200f}', '\u{61c}', '\u{feff}', '\u{e0001}'])
    }

    #[test]
    fn strange_characters_are_escaped_and_others_stay() {
        for c in strange() {
            let own = format!("a{c}b");
            for made in [name(&own).into_owned(), xml(&own)] {
                assert_eq!(made, format!("a{}b", c.escape_default()));
            }
            assert_eq!(text(&own) == own, c == '\n', "{c:?}");
            let quoted = serde_json::to_string(&own).expect("a string");
            let made = json(&quoted);
            assert!(made.chars().all(is_plain), "{c:?}: {made}");
            assert_eq!(serde_json::from_str::<String>(&made).expect("JSON"), own);
        }
        for plain in ["layers.0.weight", "größe", "重み", "a b\\n", "😀"] {
            assert!(matches!(name(plain), Cow::Borrowed(same) if same == plain));
            assert!(matches!(json(plain), Cow::Borrowed(same) if same == plain));
        }
    }
}

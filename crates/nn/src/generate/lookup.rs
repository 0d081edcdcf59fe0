//! A draft by prompt lookup: what followed the last tokens where they stand earlier in the text.

use tacit_core::{Error, Result};

use super::{Draft, Drawing, GenerateOptions, Proposal};

/// Drafts for [`speculate`](super::speculate()) from the text so far, without a second model: prompt lookup decoding (Saxena 2023).
///
/// Where the last tokens of the text stand in it a second time, those that followed there are proposed. Answers that repeat parts of
/// their prompt, such as a changed program or a summary with quotations, take fewer steps by it. For the turns of a conversation give
/// the same lookup, by `&mut`, to the generation of each: it searches all of them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Result;
/// use tacit_nn::generate::{GenerateOptions, Lookup, speculate};
///
/// // After each token comes the next of three.
/// let table = Array::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], &[3, 3]);
/// let step = |tokens: &Array, _: &mut ()| -> Result<Array> { Ok(table.take_axis(tokens, 0)?) };
/// let options = GenerateOptions { max_tokens: 9, ..GenerateOptions::default() };
/// let mut state = ();
/// let mut tokens = speculate(step, &mut state, Lookup::new(8), &[0, 1, 2, 0, 1], &options)?;
/// let ids = tokens.by_ref().map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
/// assert_eq!(ids, [2, 0, 1, 2, 0, 1, 2, 0, 1]);
/// // All but one in one step.
/// assert_eq!(tokens.stats().accepted, 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Lookup {
    max_draft_tokens: usize,
    matching: usize,
    text: Vec<u32>,
}

/// The longest match that is looked for: between two places, more equal tokens do not tell which is better.
const LONGEST: usize = 16;

impl Lookup {
    /// A draft that proposes `tokens` at a time, where the last 2 tokens stand in the text a second time.
    #[must_use]
    pub fn new(tokens: usize) -> Self {
        Self { max_draft_tokens: tokens, matching: 2, text: Vec::new() }
    }

    /// The same for that many last tokens.
    ///
    /// Of several places the one is taken before which most tokens are equal, and of these the last.
    #[must_use]
    pub fn matching(self, tokens: usize) -> Self {
        Self { matching: tokens, ..self }
    }

    /// The same behind a text that is searched, too, such as one that was read back with its caches.
    #[must_use]
    pub fn after(mut self, text: &[u32]) -> Self {
        self.text.extend_from_slice(text);
        self
    }

    /// The place whose token followed what the text ends with.
    fn matched_place(&self) -> Option<usize> {
        let longest = self.matching.max(LONGEST);
        let (mut place, mut most) = (None, self.matching.saturating_sub(1));
        // The end of the text itself is no such place.
        for end in (self.matching..self.text.len()).rev() {
            let pairs = self.text[..end].iter().rev().zip(self.text.iter().rev());
            let equal = pairs.take(longest).take_while(|(one, other)| one == other).count();
            if equal > most {
                (place, most) = (Some(end), equal);
                if equal == longest {
                    break;
                }
            }
        }
        place
    }
}

impl Draft for Lookup {
    fn max_draft_tokens(&self) -> usize {
        self.max_draft_tokens
    }

    fn start(&mut self, prompt: &[u32], _: &GenerateOptions) -> Result<()> {
        if self.matching == 0 {
            return Err(Error::invalid(
                "a lookup of the last 0 tokens finds every place of a text",
                "let at least 1 match, such as the last 2",
            ));
        }
        self.text.extend_from_slice(prompt);
        Ok(())
    }

    fn propose(&mut self, count: usize, _: &Drawing<'_>) -> Result<Option<Proposal>> {
        // What stands near the end is proposed again and again.
        let copied = |place| {
            let followed: &[u32] = &self.text[place..];
            followed.iter().copied().cycle().take(count).collect::<Vec<u32>>()
        };
        Ok(self.matched_place().map(|place| Proposal::certain(&copied(place))))
    }

    fn follow(&mut self, tokens: &[u32]) -> Result<()> {
        self.text.extend_from_slice(tokens);
        Ok(())
    }

    fn end(&mut self, unread: usize) -> Result<()> {
        self.text.truncate(self.text.len().saturating_sub(unread));
        Ok(())
    }

    fn fail(&mut self) {
        // Whoever goes on gives the last token again, which the model has not seen.
        self.text.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text of letters is followed by.
    fn proposed(text: &str, matching: usize) -> Option<String> {
        let lookup = Lookup::new(4).matching(matching).after(&text.chars().map(u32::from).collect::<Vec<_>>());
        let place = lookup.matched_place()?;
        Some(text[place..].to_owned())
    }

    #[test]
    fn the_end_of_a_text_finds_no_end_but_another() {
        assert_eq!(proposed("", 1), None);
        assert_eq!(proposed("a", 1), None);
        assert_eq!(proposed("ab", 1), None);
        assert_eq!(proposed("aa", 1).as_deref(), Some("a"));
        assert_eq!(proposed("aa", 2), None);
        assert_eq!(proposed("aaa", 2).as_deref(), Some("a"));
        assert_eq!(proposed("abcab", 1).as_deref(), Some("cab"));
        assert_eq!(proposed("abcab", 2).as_deref(), Some("cab"));
        assert_eq!(proposed("abcab", 3), None);
    }

    #[test]
    fn the_longest_match_is_taken_and_of_equal_ones_the_last() {
        assert_eq!(proposed("xab1 ab2 xab", 2).as_deref(), Some("1 ab2 xab"));
        assert_eq!(proposed("ab1 ab2 xab", 2).as_deref(), Some("2 xab"));
        // Beyond the longest that are compared the last is taken.
        let long = "abcdefghijklmnop";
        assert_eq!(proposed(&format!("x{long}1 y{long}2 x{long}"), 1), Some(format!("2 x{long}")));
        assert_eq!(proposed(&format!("x{long}1 y{long}2 x{long}"), 17), Some(format!("1 y{long}2 x{long}")));
    }
}

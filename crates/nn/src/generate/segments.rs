//! Text up to the first stop string, while it comes in.
//!
//! The first stop string is the one that is complete first; of several that the same character completes, it is the
//! longest. So the result does not depend on the pieces in which the text comes.

/// Text that comes in pieces, of which what may be the beginning of a stop is held back.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments {
    pending: String,
    /// Whether a stop has come.
    pub(super) stopped: bool,
}

impl Segments {
    /// The text that follows what came out before, up to the first of `stops`; nothing comes after one.
    pub(super) fn push(&mut self, text: &str, stops: &[String]) -> String {
        if self.stopped {
            return String::new();
        }
        self.pending.push_str(text);
        let complete = stops.iter().filter_map(|stop| self.pending.find(stop.as_str()).map(|at| (at + stop.len(), at)));
        if let Some((_, begin)) = complete.min() {
            self.stopped = true;
            self.pending.truncate(begin);
            return std::mem::take(&mut self.pending);
        }
        let begins = |at: &usize| stops.iter().any(|stop| stop.starts_with(&self.pending[*at..]));
        let places = self.pending.char_indices().map(|(at, _)| at);
        let keep = places.clone().find(begins).unwrap_or(self.pending.len());
        let held_back = self.pending.split_off(keep);
        std::mem::replace(&mut self.pending, held_back)
    }

    /// What was held back, as nothing follows.
    pub(super) fn flush(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that come out, and whether a stop came.
    fn pieces(parts: &[&str], stops: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut segments = Segments::default();
        let mut out: Vec<String> = parts.iter().map(|part| segments.push(part, &stops)).collect();
        out.push(segments.flush());
        (out, segments.stopped)
    }

    #[test]
    fn what_may_begin_a_stop_is_held_back_until_it_cannot() {
        assert_eq!(
            pieces(&["a E", "N", "X"], &["END"]),
            (vec!["a ".into(), String::new(), "ENX".into(), String::new()], false)
        );
        assert_eq!(pieces(&["a E", "N"], &["END"]), (vec!["a ".into(), String::new(), "EN".into()], false));
    }

    #[test]
    fn nothing_comes_from_a_stop_on() {
        assert_eq!(
            pieces(&["a E", "ND b", "c"], &["END"]),
            (vec!["a ".into(), String::new(), String::new(), String::new()], true)
        );
        assert_eq!(pieces(&["abcd"], &["cd", "bc"]), (vec!["a".into(), String::new()], true));
    }

    #[test]
    fn a_stop_that_begins_within_a_part_of_itself_is_found() {
        assert_eq!(pieces(&["aa", "b"], &["ab"]), (vec!["a".into(), String::new(), String::new()], true));
        assert_eq!(pieces(&["ää", "ö"], &["äö"]), (vec!["ä".into(), String::new(), String::new()], true));
    }

    #[test]
    fn every_split_of_a_text_gives_the_same() {
        // Wherever the pieces of a text end, also between all of its characters.
        let every = |text: &str, stops: &[&str]| {
            let (whole, stopped) = pieces(&[text], stops);
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            let (split, also) = pieces(&letters, stops);
            assert_eq!((split.concat(), also), (whole.concat(), stopped), "{text:?} {stops:?}");
            for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
                let (split, also) = pieces(&[&text[..at], &text[at..]], stops);
                assert_eq!((split.concat(), also), (whole.concat(), stopped), "{text:?} {stops:?} at {at}");
            }
        };
        every("abcd", &["bcd", "c"]);
        every("xabcx", &["bc", "abc", "c"]);
        // All texts of six letters of three, with all pairs of a few stops.
        let stops = ["a", "ab", "ba", "aab", "bcb", "cab", "bb"];
        for number in 0..3usize.pow(6) {
            let text: String = (0..6).map(|at| ['a', 'b', 'c'][number / 3usize.pow(at) % 3]).collect();
            for (at, one) in stops.iter().enumerate() {
                stops[at + 1..].iter().for_each(|other| every(&text, &[one, other]));
            }
        }
        let text = "one stop two stoop stopp";
        let whole = pieces(&[text], &["stopp", "oo"]).0.concat();
        assert_eq!(whole, "one stop two st");
        for at in 0..=text.len() {
            assert_eq!(pieces(&[&text[..at], &text[at..]], &["stopp", "oo"]).0.concat(), whole);
        }
    }
}

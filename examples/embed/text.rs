//! Sentences as batches of one length or nearly so, and their embeddings in the order in which they came.

use std::ops::Range;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use mlx_rs::{Array, ops};
use tokenizers::{Tokenizer, TruncationParams};

use crate::bert::Batch;
use crate::{Outcome, named, optional};

/// Where sentences are cut, unless the model says otherwise.
const MOST_TOKENS: usize = 256;
/// Where it says so, the first that does: sentence-transformers 6.2 writes it into the tokenizer's file alone.
const SAID_IN: [(&str, &str); 2] =
    [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")];

/// The ids of the tokens of a sentence.
pub(crate) type Tokens = Vec<u32>;

pub(crate) struct Text {
    tokenizer: Tokenizer,
    padding: u32,
}

impl Text {
    /// Reads `tokenizer.json`.
    pub(crate) fn open(folder: &Path) -> Outcome<Self> {
        let file = folder.join("tokenizer.json");
        let mut tokenizer = Tokenizer::from_file(&file).map_err(|error| named(&file, &error))?;
        let mut said = None;
        for (file, key) in SAID_IN {
            // A tokenizer without a limit says 1e30, which is no such number.
            said = said.or(optional(folder, file)?.and_then(|(_, json)| json[key].as_u64()));
        }
        let max_length = said.map_or(MOST_TOKENS, |most| most as usize);
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        // The file says to pad each sentence to 128 tokens; a batch is as long as its longest sentence instead.
        tokenizer.with_padding(None).with_truncation(Some(truncation))?;
        let padding = tokenizer.token_to_id("[PAD]").ok_or("the tokenizer has no token [PAD]")?;
        Ok(Self { tokenizer, padding })
    }

    /// The tokens of each sentence.
    pub(crate) fn tokens<S: AsRef<str>>(&self, sentences: &[S]) -> Outcome<Vec<Tokens>> {
        let sentences: Vec<&str> = sentences.iter().map(AsRef::as_ref).collect();
        let encodings = self.tokenizer.encode_batch(sentences, true)?;
        Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    /// One batch of these sentences.
    pub(crate) fn batch(&self, sentences: &[&Tokens]) -> Outcome<Batch> {
        let width = sentences.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
        let mut ids = Vec::with_capacity(sentences.len() * width);
        let mut mask = Vec::with_capacity(ids.capacity());
        for tokens in sentences {
            let padding = width - tokens.len();
            ids.extend(tokens.iter().copied().chain(std::iter::repeat_n(self.padding, padding)));
            mask.extend(tokens.iter().map(|_| 1f32).chain(std::iter::repeat_n(0.0, padding)));
        }
        let shape = [sentences.len() as i32, width as i32];
        Ok(Batch { ids: Array::from_slice(&ids, &shape), mask: Array::from_slice(&mask, &shape) })
    }

    /// Embeds all sentences in batches of about one length: `f32[n,d]` in their own order.
    pub(crate) fn embedded(
        &self,
        sentences: &[Tokens],
        size: usize,
        bar: &ProgressBar,
        mut embed: impl FnMut(&Batch) -> Outcome<Array>,
    ) -> Outcome<Array> {
        let mut order: Vec<u32> = (0..sentences.len() as u32).collect();
        order.sort_by_key(|&place| sentences[place as usize].len());
        let mut parts = Vec::new();
        let lengths: Vec<usize> = order.iter().map(|&place| sentences[place as usize].len()).collect();
        for batch in batches(&lengths, size) {
            let places = &order[batch];
            let chosen: Vec<&Tokens> = places.iter().map(|&place| &sentences[place as usize]).collect();
            let part = embed(&self.batch(&chosen)?)?;
            // Batch by batch, so that the activations of only one are there at a time.
            part.eval()?;
            parts.push(part);
            bar.inc(places.len() as u64);
        }
        let mut own = vec![0u32; order.len()];
        for (sorted, &place) in (0..).zip(&order) {
            own[place as usize] = sorted;
        }
        let own = Array::from_slice(&own, &[own.len() as i32]);
        Ok(ops::concatenate(&parts, 0)?.take_axis(own, 0)?)
    }
}

/// How much of a batch may be padding.
const PADDING: f64 = 0.2;

/// Batches of at most `size` sentences, whose lengths rise: one that is much longer than others has a batch of its own, so that
/// these are not filled up to its length.
fn batches(lengths: &[usize], size: usize) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut tokens = 0;
    for (at, &length) in lengths.iter().enumerate() {
        if let Some(batch) = batches.last_mut() {
            let filled = length * (batch.len() + 1);
            let padding = (filled - tokens - length) as f64;
            if batch.len() < size.max(1) && padding <= PADDING * filled as f64 {
                batch.end += 1;
                tokens += length;
                continue;
            }
        }
        batches.push(at..at + 1);
        tokens = length;
    }
    batches
}

/// A progress bar over `count` of `what`.
pub(crate) fn progress(message: &str, count: usize, what: &str) -> Outcome<ProgressBar> {
    let bar = ProgressBar::new(count as u64);
    bar.set_style(ProgressStyle::with_template(&format!(
        "{{msg:16}} [{{bar:40}}] {{pos}}/{{len}} {what} {{elapsed}}"
    ))?);
    bar.set_message(message.to_owned());
    Ok(bar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sentence_fills_up_no_short_ones() {
        let lengths = [[8; 19].as_slice(), &[200]].concat();
        assert_eq!(batches(&lengths, 32), [0..19, 19..20]);
        assert_eq!(batches(&[8, 9, 10, 10], 3), [0..3, 3..4]);
        assert!(batches(&[], 3).is_empty());
    }
}

//! Tokens as text, up to a stop.

use expect_test::expect;
use tacit_core::{Error, Result};
use tacit_nn::generate;
use tacit_nn::generate::{Detokenizer, Finish, GenerateOptions, Piece, Texts};

use crate::toys::{Seen, bigram, circle, options};

struct Words(Vec<&'static str>);

impl Detokenizer for Words {
    fn push(&mut self, token: u32) -> Result<String> {
        let word = self.0.get(token as usize);
        word.map(|&word| word.to_owned()).ok_or_else(|| Error::invalid("no such word", "use the model's own"))
    }

    fn finish(&mut self) -> Result<String> {
        Ok("!".to_owned())
    }
}

/// What comes of the words from the second on, and why each sequence ended.
fn read(words: &[&'static str], stops: &[&str], end: u32) -> Result<(String, Option<Finish>, Vec<u32>)> {
    let mut seen = Seen::new(1)?;
    let options = GenerateOptions { stop: vec![vec![end]], ..options(2 * words.len()) };
    let tokens = generate(bigram(circle(words.len() as i32)?), &mut seen, &[[0]], &options)?;
    let pieces = Texts::new(tokens, vec![Words(words.to_vec())], stops)?.collect::<Result<Vec<Piece>>>()?;
    let text = pieces.iter().map(|piece| piece.text.as_str()).collect();
    Ok((text, pieces.last().and_then(|piece| piece.finish), seen.tokens()))
}

#[test]
fn text_ends_before_a_stop_and_the_state_with_the_token_that_completed_it() -> Result<()> {
    let words = ["the", " qui", "ck br", "own", " fox", "."];
    let stop = Some(Finish::Stop);
    assert_eq!(read(&words, &["quick"], 99)?, (" ".into(), stop, vec![0, 1, 2]));
    assert_eq!(read(&words, &["never", "own f"], 99)?, (" quick br".into(), stop, vec![0, 1, 2, 3, 4]));
    // The token that ends it is no text, and what was held back comes out with it.
    assert_eq!(read(&words, &["own."], 4)?, (" quick brown!".into(), stop, vec![0, 1, 2, 3, 4]));
    let (text, finish, seen) = read(&words, &["nothing"], 99)?;
    assert_eq!(
        (text.as_str(), finish, seen.len()),
        (" quick brown fox.the quick brown fox.the!", Some(Finish::Length), 13)
    );
    Ok(())
}

#[test]
fn a_word_that_is_none_ends_its_sequence() -> Result<()> {
    let mut seen = Seen::new(1)?;
    let tokens = generate(bigram(circle(5)?), &mut seen, &[[0]], &options(9))?;
    let mut texts = Texts::new(tokens, vec![Words(vec!["a", "b", "c"])], &[] as &[&str])?;
    assert_eq!(texts.by_ref().take(2).map(|piece| Ok(piece?.text)).collect::<Result<String>>()?, "bc");
    assert!(texts.next().is_some_and(|piece| piece.is_err()));
    assert!(texts.next().is_none());
    Ok(())
}

#[test]
fn what_is_no_text_is_said() -> Result<()> {
    let mut states = [Seen::new(1)?, Seen::new(1)?];
    let [one, other] = &mut states;
    let messages = [
        Texts::new(generate(bigram(circle(5)?), one, &[[0]], &options(4))?, Vec::<Words>::new(), &["a"]),
        Texts::new(generate(bigram(circle(5)?), other, &[[0]], &options(4))?, vec![Words(vec![])], &[""]),
    ]
    .map(|texts| texts.err().expect("it cannot").to_string());
    expect![[r#"
        0 detokenizers read 1 sequences
        help: give one a sequence
        a text to stop at is empty
        help: leave it out, or give some text"#]]
    .assert_eq(&messages.join("\n"));
    Ok(())
}

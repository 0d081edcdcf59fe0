//! States that go back to before the tokens of a draft that were refused: whatever they hold is what it would be without it.

use std::cell::Cell;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, ops, random};
use tacit_core::{Error, Result, Tree, tree};
use tacit_nn::generate::{Draft, DraftModel, Drawing, GenerateOptions, Lookup, Mark, Proposal, Trim, speculate};
use tacit_nn::{ArraysCache, Cache, KvCache, Window, generate};

use crate::toys::{circle, ids, options};

const WORDS: i32 = 40;

/// A layer with a state that fades, and one of attention, on random weights.
fn hybrid(tokens: &Array, caches: &mut [Cache], embedding: &Array) -> Result<Array> {
    let count = tokens.dim(1);
    let x = embedding.take_axis(tokens, 0)?;
    let state = caches[0].as_arrays().expect("a state");
    let mut faded = match state.get(0)? {
        Some(state) => state.clone(),
        None => ops::zeros::<f32>(&[1, 32])?,
    };
    let mut read = Vec::new();
    for at in 0..count {
        faded = faded.multiply(Array::from_f32(0.9))?.add(x.try_index((.., at, ..))?)?.sin()?;
        read.push(faded.clone());
    }
    state.set(0, faded)?;
    let x = ops::stack(&read, 1)?.expand_dims(1)?;
    let cache = caches[1].as_kv().expect("keys and values");
    cache.reserve(count)?;
    let rotated = fast::rope_dynamic(&x, 32, false, 100.0, 1.0, cache.offset(), None)?;
    let mask = cache.mask(count)?;
    let y = tacit_core::implicit_with_state(cache, (&rotated, &x, &mask), |cache, (rotated, x, mask)| {
        let (keys, values) = cache.update(&rotated, &x)?;
        Ok::<_, Error>(fast::scaled_dot_product_attention(&rotated, &keys, &values, 0.25, Some((&mask).into()), None)?)
    })?
    .dense()?;
    let head = embedding.multiply(Array::from_f32(5.0))?.sin()?;
    Ok(y.add(x)?.squeeze_axes(&[1])?.matmul(head.t())?)
}

fn embedding() -> Result<Array> {
    Ok(random::normal::<f32>(&[WORDS, 32], None, None, &random::key(8)?)?)
}

fn step() -> Result<impl FnMut(&Array, &mut Vec<Cache>) -> Result<Array>> {
    let embedding = embedding()?;
    Ok(move |tokens: &Array, caches: &mut Vec<Cache>| hybrid(tokens, caches, &embedding))
}

fn caches(window: Window, format: Option<&str>) -> Result<Vec<Cache>> {
    let mut attention = KvCache::new([1, 1, 32], Dtype::Float32)?.with_window(window)?;
    if let Some(format) = format {
        attention = attention.quantized(format, format)?;
    }
    Ok(vec![ArraysCache::new(1).into(), attention.into()])
}

/// What the caches hold, as numbers.
fn held(caches: &mut [Cache]) -> Result<(Vec<f32>, i32, Vec<f32>)> {
    let state = caches[0].as_arrays().expect("a state").get(0)?.expect("it has seen tokens").as_slice::<f32>().to_vec();
    let cache = caches[1].as_kv().expect("keys and values");
    let (keys, _) = cache.clone().dense()?.tokens()?;
    let keys = keys.dense()?.reshape(&[-1])?;
    let keys = keys.try_index(keys.dim(0) - 32..)?.contiguous()?;
    keys.eval()?;
    Ok((state, cache.len(), keys.as_slice::<f32>().to_vec()))
}

fn check(found: &mut [Cache], expected: &mut [Cache], of: &str) -> Result<()> {
    let ((state, len, keys), (its_state, its_len, its_keys)) = (held(found)?, held(expected)?);
    assert_eq!(len, its_len, "{of}");
    for (one, other) in state.iter().chain(&keys).zip(its_state.iter().chain(&its_keys)) {
        assert!((one - other).abs() < 1e-5, "{of}: {one} {other}");
    }
    Ok(())
}

/// Proposes the answer, with an error at some places of it.
struct Guess {
    answer: Vec<u32>,
    at: usize,
    most: usize,
    wrong: fn(usize) -> bool,
}

impl Draft for Guess {
    fn max_draft_tokens(&self) -> usize {
        self.most
    }

    fn propose(&mut self, count: usize, _: &Drawing<'_>) -> Result<Option<Proposal>> {
        let places = (self.at..self.answer.len()).take(count);
        let guess = |at: usize| (self.answer[at] + u32::from((self.wrong)(at))) % WORDS as u32;
        let tokens: Vec<u32> = places.map(guess).collect();
        Ok((tokens.len() == count).then(|| Proposal::certain(&tokens)))
    }

    fn follow(&mut self, tokens: &[u32]) -> Result<()> {
        self.at += tokens.len();
        Ok(())
    }
}

const GUESSES: [fn(usize) -> bool; 5] = [|_| false, |_| true, |at| at % 2 == 1, |at| at % 3 == 2, |at| at % 7 > 4];
const PROMPT: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];

/// Whatever of a draft is right, of states, of rings that were written over and of codes: the tokens are the model's, and so is what
/// the caches hold, at the end and where somebody stops to read.
#[test]
fn caches_of_all_kinds_hold_what_they_would_without_a_draft() -> Result<()> {
    for (window, format) in [
        (Window::Everything, None),
        (Window::Everything, Some("nf4:32")),
        (Window::Sliding { size: 4, sinks: 0 }, None),
        (Window::Sliding { size: 4, sinks: 2 }, Some("nf4:32")),
        (Window::Chunked { size: 4 }, None),
    ] {
        let whole = ids(generate(step()?, &mut caches(window, format)?, &[PROMPT], &options(40))?)?;
        for wrong in GUESSES {
            for (most, take) in [(1, 24), (3, 24), (3, 11), (6, 24), (6, 13), (40, 9)] {
                let of = format!("{window:?} {format:?} {most} {take}");
                let mut own = caches(window, format)?;
                let draft = Guess { answer: whole.clone(), at: 0, most, wrong };
                let options = GenerateOptions { prefill: 2, ..options(24) };
                let (mut run, longest) = (step()?, Cell::new(0));
                let counted = |tokens: &Array, caches: &mut Vec<Cache>| {
                    longest.set(longest.get().max(tokens.dim(1)));
                    run(tokens, caches)
                };
                let tokens = speculate(counted, &mut own, draft, &PROMPT, &options)?;
                let made = ids(tokens.take(take))?;
                assert_eq!(made, whole[..take.min(24)], "{of}");
                // Tokens that are seen again stand where others would be proposed.
                assert!(longest.get() <= 1 + most as i32, "{of}: {}", longest.get());
                let mut alone = caches(window, format)?;
                ids(generate(step()?, &mut alone, &[PROMPT], &self::options(made.len()))?)?;
                check(&mut own, &mut alone, &of)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_draft_may_have_a_state_as_well() -> Result<()> {
    let near = embedding()?
        .add(random::normal::<f32>(&[WORDS, 32], None, None, &random::key(9)?)?.multiply(Array::from_f32(0.05))?)?;
    let other = random::normal::<f32>(&[WORDS, 32], None, None, &random::key(9)?)?;
    let window = Window::Sliding { size: 4, sinks: 0 };
    let whole = ids(generate(step()?, &mut caches(window, None)?, &[PROMPT], &options(40))?)?;
    for draft in [&embedding()?, &near, &other] {
        for (most, take) in [(1, 24), (3, 24), (3, 10), (3, 11), (3, 12), (6, 13)] {
            let (mut own, mut drafted) = (caches(window, None)?, caches(window, None)?);
            let of_draft = |tokens: &Array, caches: &mut Vec<Cache>| hybrid(tokens, caches, draft);
            let of_draft = DraftModel::new(of_draft, &mut drafted, most);
            let tokens = speculate(step()?, &mut own, of_draft, &PROMPT, &options(24))?;
            let made = ids(tokens.take(take))?;
            assert_eq!(made, whole[..take], "{most} {take}");
            let (mut alone, mut draft_alone) = (caches(window, None)?, caches(window, None)?);
            ids(generate(step()?, &mut alone, &[PROMPT], &options(take))?)?;
            check(&mut own, &mut alone, "the model")?;
            // The draft has seen the same tokens: those of the model.
            let text = [&PROMPT[..], &made].concat();
            for token in text {
                hybrid(&Array::from_slice(&[token], &[1, 1]), &mut draft_alone, draft)?;
            }
            check(&mut drafted, &mut draft_alone, "the draft")?;
        }
    }
    Ok(())
}

/// The caches of a step that failed are those of the tokens that were made, but for the last, whichever step it is.
#[test]
fn a_step_that_fails_leaves_the_caches_of_the_text_before_it() -> Result<()> {
    let window = Window::Sliding { size: 4, sinks: 0 };
    let whole = ids(generate(step()?, &mut caches(window, None)?, &[PROMPT], &options(40))?)?;
    for wrong in GUESSES {
        for failing in 1..8 {
            let calls = Cell::new(0);
            let mut run = step()?;
            let fails = |tokens: &Array, caches: &mut Vec<Cache>| {
                let made = run(tokens, caches)?;
                calls.set(calls.get() + 1);
                // One of the prompt, and then one a round.
                if calls.get() == 1 + failing { Err(Error::invalid("not now", "try again")) } else { Ok(made) }
            };
            let mut own = caches(window, None)?;
            let draft = Guess { answer: whole.clone(), at: 0, most: 4, wrong };
            let mut tokens = speculate(fails, &mut own, draft, &PROMPT, &options(40))?;
            let made: Vec<u32> = tokens.by_ref().map_while(|token| token.ok().map(|token| token.id)).collect();
            assert!(tokens.next().is_none() && made.len() < 40);
            drop(tokens);
            let text = [&PROMPT[..], &made].concat();
            let mut alone = caches(window, None)?;
            for &token in &text[..text.len() - 1] {
                hybrid(&Array::from_slice(&[token], &[1, 1]), &mut alone, &embedding()?)?;
            }
            check(&mut own, &mut alone, &format!("step {failing}"))?;
            // It goes on from there.
            let (last, rest) = (text[text.len() - 1], &whole[made.len()..]);
            assert_eq!(ids(generate(step()?, &mut own, &[[last]], &options(rest.len()))?)?, rest);
        }
    }
    Ok(())
}

/// One lookup serves a conversation: what was read of each turn is part of its text.
#[test]
fn a_lookup_goes_on_from_turn_to_turn() -> Result<()> {
    let (mut own, mut alone) = (caches(Window::Everything, None)?, caches(Window::Everything, None)?);
    let mut lookup = Lookup::new(4).matching(1);
    let mut text = Vec::new();
    for (turn, take) in [([3u32, 1, 4, 1], 9), ([5, 3, 1, 4], 1), ([9, 5, 3, 1], 5), ([3, 1, 4, 1], 9)] {
        let tokens = speculate(step()?, &mut own, &mut lookup, &turn, &options(9))?;
        let made = ids(tokens.take(take))?;
        assert_eq!(made, ids(generate(step()?, &mut alone, &[turn], &options(take))?)?);
        check(&mut own, &mut alone, "a turn")?;
        text.extend_from_slice(&turn);
        text.extend(made);
        assert_eq!(format!("{lookup:?}"), format!("{:?}", Lookup::new(4).matching(1).after(&text)));
    }
    Ok(())
}

/// A state of one's own that goes back to marks, and is told before by how many tokens.
#[derive(Tree, Clone)]
struct Told {
    seen: Array,
    #[tree(static)]
    reserved: i32,
}

impl Trim for Told {
    fn trim(&mut self, _: i32) -> Result<()> {
        panic!("it goes back to its marks")
    }

    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        self.reserved = tokens;
        Ok(())
    }

    fn mark(&self) -> Option<Mark> {
        let mut before = ArraysCache::new(1);
        before.set(0, self.seen.clone()).ok()?;
        Some(Mark::Arrays(before))
    }

    fn rewind(&mut self, mark: Mark, tokens: i32) -> Result<()> {
        let Mark::Arrays(before) = mark else { panic!("it is the mark of another") };
        let before = before.get(0)?.expect("it was put there");
        assert_eq!(self.seen.dim(1) - before.dim(1), tokens);
        assert!(tokens <= self.reserved, "{tokens} of {}", self.reserved);
        self.seen = before.clone();
        Ok(())
    }
}

#[test]
fn a_state_of_ones_own_goes_back_by_as_many_tokens_as_it_was_told() -> Result<()> {
    let table = circle(9)?;
    let step = |tokens: &Array, told: &mut Told| -> Result<Array> {
        told.seen = ops::concatenate(&[&told.seen, tokens], 1)?;
        Ok(table.take_axis(tokens, 0)?)
    };
    let answer: Vec<u32> = (1..30).map(|id| id % 9).collect();
    for (wrong, count) in GUESSES.into_iter().zip([20, 20, 19, 18, 3]) {
        let mut told = Told { seen: ops::zeros::<u32>(&[1, 0])?, reserved: 0 };
        let draft = Guess { answer: answer.clone(), at: 0, most: 3, wrong };
        assert_eq!(ids(speculate(step, &mut told, draft, &[8, 0], &options(count))?)?, answer[..count]);
        assert_eq!(told.seen.as_slice::<u32>(), [&[8, 0], &answer[..count]].concat());
    }
    Ok(())
}

#[test]
fn marks_go_back_and_are_those_of_their_state() -> Result<()> {
    let run = |caches: &mut Vec<Cache>, tokens: &[u32]| {
        hybrid(&Array::from_slice(tokens, &[1, tokens.len() as i32]), caches, &embedding()?)?;
        tree::eval(&*caches)
    };
    let mut own = caches(Window::Everything, None)?;
    run(&mut own, &PROMPT)?;
    let mut before = own.clone();
    let mark = own.mark().expect("it has a state");
    run(&mut own, &[7, 8, 9])?;
    own.rewind(mark.clone(), 3)?;
    check(&mut own, &mut before, "back")?;
    // A list of caches is one of parts.
    let mut nested = vec![Cache::List(own.clone())];
    let inner = nested.mark().expect("it has a state");
    run(&mut own, &[7])?;
    nested[0] = Cache::List(own.clone());
    nested.rewind(inner, 1)?;
    let Cache::List(inner) = &mut nested[0] else { unreachable!("it is a list") };
    check(inner, &mut before, "of a list")?;
    let mut attention = KvCache::new([1, 1, 32], Dtype::Float32)?;
    assert!(attention.mark().is_none() && vec![attention.clone()].mark().is_none());
    attention.rewind(mark.clone(), 0)?;

    let mut messages = Vec::new();
    let mut refused = |made: Result<()>| messages.push(made.expect_err("it is refused").to_string());
    refused(own.rewind(Mark::Arrays(ArraysCache::new(1)), 1));
    refused(vec![own[0].clone()].rewind(mark.clone(), 1));
    refused(ArraysCache::new(2).rewind(Mark::Arrays(ArraysCache::new(1)), 1));
    refused(ArraysCache::new(1).rewind(Mark::Parts(Vec::new()), 1));
    refused(own[1].clone().rewind(mark.clone(), 1));
    // More than there are: the state stays where it is, too.
    let mut there = own.clone();
    refused(own.rewind(mark, 50));
    check(&mut own, &mut there, "refused")?;
    refused(own.trim(1));
    expect![[r#"
        a state is given the mark of another one
        help: give a mark back to the state that it was taken of
        a state is given the mark of another one
        help: give a mark back to the state that it was taken of
        a state is given the mark of another one
        help: give a mark back to the state that it was taken of
        a state is given the mark of another one
        help: give a mark back to the state that it was taken of
        a state is given the mark of another one
        help: give a mark back to the state that it was taken of
        50 of 8 tokens cannot be taken away
        help: trim at most what came after the prompt
        1 tokens cannot be taken out of the state of a layer without attention
        help: take a `Trim::mark` before the tokens, and go back to it by `Trim::rewind`"#]]
    .assert_eq(&messages.join("\n"));
    Ok(())
}

/// A model may read tokens that it has no logits of, such as those that stand for pictures.
#[test]
fn a_token_of_the_prompt_without_a_logit_is_given_again_as_it_was() -> Result<()> {
    let narrow = || -> Result<_> {
        let mut step = step()?;
        Ok(move |tokens: &Array, caches: &mut Vec<Cache>| -> Result<Array> {
            Ok(step(tokens, caches)?.try_index((.., .., ..WORDS - 4))?)
        })
    };
    let (mut own, mut alone) = (caches(Window::Everything, None)?, caches(Window::Everything, None)?);
    let prompt = [3, 1, WORDS as u32 - 1];
    let answer = ids(generate(narrow()?, &mut alone, &[prompt], &options(6))?)?;
    let draft = Guess { answer: answer.clone(), at: 0, most: 2, wrong: |_| true };
    assert_eq!(ids(speculate(narrow()?, &mut own, draft, &prompt, &options(6))?)?, answer);
    check(&mut own, &mut alone, "beside the model alone")
}

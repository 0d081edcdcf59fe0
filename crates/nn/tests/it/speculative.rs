//! Tokens that a smaller model proposes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::compile::{CompileOptions as Compiling, Constants};
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::generate::{DraftModel, GenerateOptions, GenerateStats, Lookup, Sampler, Token, Trim, speculate};
use tacit_nn::{KvCache, Window, generate};

use crate::toys::{Seen, attend, bigram, circle, eagerly, ids, noise, options};

/// What a draft proposed in vain is forgotten where a window has written over older tokens, too.
#[test]
fn windows_keep_what_they_see_when_a_draft_is_refused() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let other = random::normal::<f32>(&[40, 16], None, None, &random::key(9)?)?;
    let near = embedding.add(other.multiply(Array::from_f32(0.05))?)?;
    let prompt = [3u32, 1, 4, 1, 5, 9, 2];
    for window in [
        Window::Sliding { size: 4, sinks: 0 },
        Window::Sliding { size: 4, sinks: 2 },
        Window::Sliding { size: 1, sinks: 0 },
        Window::Chunked { size: 4 },
    ] {
        let cache = || -> Result<_> { Ok(vec![KvCache::new([1, 1, 16], Dtype::Float32)?.with_window(window)?]) };
        let mut caches = cache()?;
        let alone = ids(generate(eagerly(embedding.clone()), &mut caches, &[prompt], &options(30))?)?;
        for draft in [&other, &near] {
            for (tokens, prefill) in [(1, 512), (3, 2), (9, 1)] {
                let (mut caches, mut drafted) = (cache()?, cache()?);
                let draft = DraftModel::new(eagerly(draft.clone()), &mut drafted, tokens);
                let options = GenerateOptions { prefill, ..options(15) };
                let made = ids(speculate(eagerly(embedding.clone()), &mut caches, draft, &prompt, &options)?)?;
                assert_eq!(made, alone[..15], "{window:?} {tokens}");
                // Caches that are full already can go on with a draft as well.
                let (last, rest) = (made[14], &alone[15..]);
                caches.trim(1)?;
                drafted.trim(1)?;
                let draft = DraftModel::new(eagerly(other.clone()), &mut drafted, tokens);
                let made = ids(speculate(eagerly(embedding.clone()), &mut caches, draft, &[last], &options)?)?;
                assert_eq!(made, rest, "{window:?} {tokens} goes on");
            }
        }
    }
    // What can never hold so much is refused before anything is seen.
    let fixed = || {
        KvCache::new([1, 1, 16], Dtype::Float32)?.with_window(Window::Sliding { size: 4, sinks: 0 })?.with_capacity(6)
    };
    let (mut caches, mut drafted) = (vec![fixed()?], vec![fixed()?]);
    let draft = DraftModel::new(eagerly(other.clone()), &mut drafted, 3);
    let error =
        speculate(eagerly(embedding.clone()), &mut caches, draft, &prompt, &options(4)).expect_err("it is too small");
    expect![[r#"
        to take 3 tokens away, a window of 4 needs 7 slots of a cache with 6
        help: give it a larger capacity, or propose fewer tokens at a time"#]]
    .assert_eq(&error.to_string());
    assert!(caches[0].is_empty() && drafted[0].is_empty());
    // Of one token no more is proposed than that.
    let draft = DraftModel::new(eagerly(near), &mut drafted, 9);
    let options = GenerateOptions { prefill: 1, ..options(1) };
    assert_eq!(ids(speculate(eagerly(embedding), &mut caches, draft, &prompt, &options)?)?.len(), 1);
    Ok(())
}

#[test]
fn caches_forget_what_a_draft_proposed_in_vain() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let other = random::normal::<f32>(&[40, 16], None, None, &random::key(9)?)?;
    let step = |embedding: Array| {
        let mut step = compile_with_state(
            Compiling { constants: Constants::Allow, ..Compiling::default() },
            move |caches: &mut Vec<KvCache>, tokens: Array| attend(&tokens, caches, &embedding),
        );
        move |tokens: &Array, caches: &mut Vec<KvCache>| -> Result<Array> {
            caches[0].reserve(tokens.dim(1))?;
            step.call(caches, &tokens)?.dense()
        }
    };
    let cache = || -> Result<_> { Ok(vec![KvCache::new([1, 1, 16], Dtype::Float32)?]) };
    let prompt = [3u32, 1, 4, 1, 5];
    let mut caches = cache()?;
    let alone = ids(generate(step(embedding.clone()), &mut caches, &[prompt], &options(30))?)?;
    assert_eq!(caches[0].len(), 35);
    let (mut caches, mut drafted) = (cache()?, cache()?);
    let draft = DraftModel::new(step(other), &mut drafted, 3);
    let mut tokens = speculate(step(embedding), &mut caches, draft, &prompt, &options(30))?;
    assert_eq!(ids(&mut tokens)?, alone);
    let GenerateStats { drafted: proposed, accepted, .. } = tokens.stats();
    assert!(accepted < proposed, "{accepted} of {proposed}");
    drop(tokens);
    assert_eq!([caches[0].len(), drafted[0].len()], [35, 35]);
    Ok(())
}

/// What a draft and a model make, and what they have seen of it.
fn with_draft(
    [model, draft]: [&Array; 2],
    [count, take]: [usize; 2],
    options: GenerateOptions,
) -> Result<(Vec<u32>, GenerateStats)> {
    let (mut seen, mut drafts) = (Seen::new(1)?, Seen::new(1)?);
    let draft = DraftModel::new(bigram(draft.clone()), &mut drafts, count);
    let prompt = [2u32, 0, 1];
    let mut tokens = speculate(bigram(model.clone()), &mut seen, draft, &prompt, &options)?;
    let made = ids(tokens.by_ref().take(take))?;
    let stats = tokens.stats();
    drop(tokens);
    let all = [&prompt[..], &made[..]].concat();
    assert_eq!(seen.tokens(), all);
    assert_eq!(drafts.tokens(), all);
    Ok((made, stats))
}

#[test]
fn a_draft_changes_no_token_of_a_greedy_model() -> Result<()> {
    let model = noise(30, 1)?;
    // One that is the model, one that often agrees, one that hardly does.
    let near = model.add(noise(30, 2)?.multiply(Array::from_f32(0.3))?)?;
    for (draft, least, most) in [(&model, 1.0, 1.0), (&near, 0.2, 0.99), (&noise(30, 3)?, 0.0, 0.5)] {
        for penalty in [None, Some(3.0)] {
            let repetition_penalty = penalty.unwrap_or(1.0);
            let sampler = Sampler { repetition_penalty, repetition_window: 5, ..Sampler::default() };
            for stop in [vec![], vec![vec![7]]] {
                let options = GenerateOptions { sampler: sampler.clone(), stop, prefill: 2, ..options(40) };
                let alone = ids(generate(bigram(model.clone()), &mut Seen::new(1)?, &[[2, 0, 1]], &options)?)?;
                for count in [1, 2, 5] {
                    for take in [40, 7] {
                        let (made, stats) = with_draft([&model, draft], [count, take], options.clone())?;
                        assert_eq!(made, alone[..take.min(alone.len())]);
                        let rate = stats.accepted as f64 / stats.drafted as f64;
                        if penalty.is_none() && alone.len() == 40 && take == 40 {
                            assert!((least..=most).contains(&rate), "{count}: {rate}");
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Vocabularies that are filled up to different numbers: what only one of both knows is no token of the text.
#[test]
fn a_draft_may_know_more_tokens_than_the_model_or_fewer() -> Result<()> {
    let model = noise(30, 1)?;
    let near = model.add(noise(30, 2)?.multiply(Array::from_f32(0.3))?)?;
    // One that would like best what the model does not know.
    let more = ops::concatenate(&[&near, &ops::full::<f32>(&[30, 4], Array::from_f32(50.0))?], 1)?;
    let more = ops::concatenate(&[&more, &ops::zeros::<f32>(&[4, 34])?], 0)?;
    let fewer = near.try_index((..21, ..21))?;
    for temperature in [0.0, 0.7] {
        for draft in [&more, &fewer] {
            for prompt in [&[2u32, 0, 1][..], &[2]] {
                let sampler = Sampler { temperature, repetition_penalty: 1.2, ..Sampler::default() };
                let options = GenerateOptions { sampler, ..options(40) };
                let (mut seen, mut drafts) = (Seen::new(1)?, Seen::new(1)?);
                let draft = DraftModel::new(bigram(draft.clone()), &mut drafts, 3);
                let mut tokens = speculate(bigram(model.clone()), &mut seen, draft, prompt, &options)?;
                let made = ids(&mut tokens)?;
                let stats = tokens.stats();
                drop(tokens);
                assert!(stats.accepted > 0 && stats.accepted < stats.drafted, "{stats:?}");
                assert_eq!(seen.tokens(), [prompt, &made].concat());
                if temperature == 0.0 {
                    let alone = ids(generate(bigram(model.clone()), &mut Seen::new(1)?, &[prompt], &options)?)?;
                    assert_eq!(made, alone);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_draft_that_is_the_model_is_accepted_when_tokens_are_drawn() -> Result<()> {
    let model = noise(12, 1)?;
    let sampler = Sampler { temperature: 0.8, top_k: 5, repetition_penalty: 1.4, ..Sampler::default() };
    let options = GenerateOptions { sampler, seed: 3, ..options(50) };
    let (made, stats) = with_draft([&model, &model], [4, 50], options.clone())?;
    assert_eq!(stats.accepted, stats.drafted);
    assert_eq!(with_draft([&model, &model], [4, 50], options.clone())?.0, made);
    assert_ne!(with_draft([&model, &model], [4, 50], GenerateOptions { seed: 4, ..options })?.0, made);
    Ok(())
}

#[test]
fn drawn_tokens_of_a_draft_are_distributed_as_the_models() -> Result<()> {
    let logits = [0.0f32, 1.0, -0.5, 0.7];
    let table = |row: &[f32]| ops::broadcast_to(Array::from_slice(row, &[1, 4]), &[4, 4]);
    let sampler = Sampler { temperature: 1.0, top_k: 3, ..Sampler::default() };
    let expected = sampler.probabilities(&Array::from_slice(&logits, &[1, 4]), &sampler.start(0, &[[0]])?)?;
    let options = GenerateOptions { sampler, seed: 1, ..options(3000) };
    let (made, stats) = with_draft([&table(&logits)?, &table(&[1.0, 0.0, 0.5, 0.1])?], [2, 3000], options)?;
    assert!(stats.accepted < stats.drafted);
    for (token, &expected) in expected.as_slice::<f32>().iter().enumerate() {
        let found = made.iter().filter(|&&id| id as usize == token).count() as f64 / 3000.0;
        let expected = f64::from(expected);
        let deviation = (expected * (1.0 - expected) / 3000.0).sqrt();
        assert!((found - expected).abs() <= 4.5 * deviation, "{token}: {found} {expected}");
    }
    Ok(())
}

/// Whatever came before, the next token of such a model is drawn from the same distribution.
#[test]
fn drawn_tokens_of_a_draft_do_not_tell_of_those_that_follow() -> Result<()> {
    let logits = [0.0f32, 1.0, -0.5, 0.7];
    let table = ops::broadcast_to(Array::from_slice(&logits, &[1, 4]), &[4, 4])?;
    let sampler = Sampler { temperature: 1.0, ..Sampler::default() };
    let expected = sampler.probabilities(&Array::from_slice(&logits, &[1, 4]), &sampler.start(0, &[[0]])?)?;
    let alike: f64 = expected.as_slice::<f32>().iter().map(|&p| f64::from(p * p)).sum();
    let count = 2000;
    // All drafts of the model itself are accepted; of another, some are.
    let other = ops::broadcast_to(Array::from_slice(&[0.4f32, 0.6, 0.0, 0.2], &[1, 4]), &[4, 4])?;
    for draft in [&table, &other] {
        let options = GenerateOptions { sampler: sampler.clone(), seed: 5, ..options(count) };
        let (made, _) = with_draft([&table, draft], [4, count], options)?;
        for apart in 1..=8 {
            let pairs = (made.len() - apart) as f64;
            let found = made.iter().zip(&made[apart..]).filter(|(one, other)| one == other).count() as f64 / pairs;
            let deviation = (alike * (1.0 - alike) / pairs).sqrt();
            assert!((found - alike).abs() <= 4.5 * deviation, "{apart} apart: {found}, not {alike}");
        }
    }
    Ok(())
}

#[test]
fn a_draft_or_a_model_that_fails_leaves_both_states_as_they_were() -> Result<()> {
    for of_draft in [true, false] {
        let calls = Cell::new(0);
        let (mut one, mut other) = (bigram(circle(9)?), bigram(circle(9)?));
        let fails = |here: bool| {
            calls.set(calls.get() + usize::from(here));
            if here && calls.get() == 5 { Err(Error::invalid("not now", "try again")) } else { Ok(()) }
        };
        let model_step = |tokens: &Array, seen: &mut Seen| fails(!of_draft).and_then(|()| one(tokens, seen));
        let draft_step = |tokens: &Array, seen: &mut Seen| fails(of_draft).and_then(|()| other(tokens, seen));
        let (mut seen, mut drafts) = (Seen::new(1)?, Seen::new(1)?);
        let draft = DraftModel::new(draft_step, &mut drafts, 2);
        let mut tokens = speculate(model_step, &mut seen, draft, &[0], &options(100))?;
        let made: Vec<u32> = tokens.by_ref().map_while(|token| token.ok().map(|token| token.id)).collect();
        assert!(tokens.next().is_none());
        drop(tokens);
        assert_eq!(made, (1..=made.len() as u32).map(|id| id % 9).collect::<Vec<_>>());
        assert!(!made.is_empty());
        // All but the last token, of which the draft may not yet know the last that was accepted.
        let all: Vec<u32> = (0..made.len() as u32).map(|id| id % 9).collect();
        assert_eq!(seen.tokens(), all);
        assert!(all.starts_with(&drafts.tokens()) && drafts.tokens().len() + 1 >= all.len());
    }
    Ok(())
}

/// A draft changes nothing at the end of caches that hold no more: fewer tokens are proposed there, and at last none.
#[test]
fn caches_of_fixed_capacity_end_as_without_a_draft() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let other = random::normal::<f32>(&[40, 16], None, None, &random::key(9)?)?;
    let cache =
        |capacity| -> Result<_> { Ok(vec![KvCache::new([1, 1, 16], Dtype::Float32)?.with_capacity(capacity)?]) };
    let prompt = [3u32, 1, 4, 1, 5];
    let ended = |tokens: &mut dyn Iterator<Item = Result<Token>>| {
        let (mut made, mut error) = (Vec::new(), None);
        for token in tokens {
            match token {
                Ok(token) => made.push(token.id),
                Err(failure) => error = Some(failure.to_string()),
            }
        }
        (made, error.is_some())
    };
    for (capacity, most) in [(12, 100), (16, 12), (16, 11), (16, 13), (40, 12)] {
        let mut caches = cache(capacity)?;
        let alone = ended(&mut generate(eagerly(embedding.clone()), &mut caches, &[prompt], &options(most))?);
        let seen = caches[0].len();
        for draft in [&embedding, &other] {
            for tokens in [1, 4, 9] {
                for of_draft in [capacity, 64, 8] {
                    let (mut caches, mut drafted) = (cache(capacity)?, cache(of_draft)?);
                    let draft = DraftModel::new(eagerly(draft.clone()), &mut drafted, tokens);
                    let found =
                        ended(&mut speculate(eagerly(embedding.clone()), &mut caches, draft, &prompt, &options(most))?);
                    assert_eq!(found, alone, "{capacity} {most} {tokens} {of_draft}");
                    assert_eq!(caches[0].len(), seen, "{capacity} {most} {tokens} {of_draft}");
                }
            }
        }
    }
    Ok(())
}

/// A round of the model fails, and the same draft goes on with the last token: it has seen what the model has.
#[test]
fn a_draft_goes_on_after_a_failure_with_all_that_was_accepted() -> Result<()> {
    for tokens in [1, 2, 3] {
        let calls = Cell::new(0);
        let mut one = bigram(circle(9)?);
        let model_step = |tokens: &Array, seen: &mut Seen| {
            calls.set(calls.get() + 1);
            if calls.get() == 5 { Err(Error::invalid("not now", "try again")) } else { one(tokens, seen) }
        };
        let (mut seen, mut drafts) = (Seen::new(1)?, Seen::new(1)?);
        let mut draft = DraftModel::new(bigram(circle(9)?), &mut drafts, tokens);
        let mut first = speculate(model_step, &mut seen, &mut draft, &[0], &options(100))?;
        let made: Vec<u32> = first.by_ref().map_while(|token| token.ok().map(|token| token.id)).collect();
        drop(first);
        let last = made[made.len() - 1];
        let mut next = speculate(bigram(circle(9)?), &mut seen, &mut draft, &[last], &options(12))?;
        let more = ids(&mut next)?;
        let stats = next.stats();
        drop(next);
        drop(draft);
        let all = [&[0], &made[..], &more[..]].concat();
        assert_eq!(all, (0..all.len() as u32).map(|id| id % 9).collect::<Vec<_>>());
        assert_eq!(seen.tokens(), all, "{tokens}");
        assert_eq!(drafts.tokens(), all, "{tokens}");
        assert_eq!(stats.drafted, stats.accepted, "{tokens}");
    }
    Ok(())
}

/// As of the model itself: see `nan_is_an_error_where_it_is_behind_the_text_alone`.
#[test]
fn nan_of_a_draft_behind_a_token_that_is_refused_is_nobodys_concern() -> Result<()> {
    let places = ops::arange::<_, i32>(0, 9, None)?.expand_dims(1)?;
    let seven = ops::arange::<_, i32>(0, 9, None)?.eq(Array::from_int(7))?.as_dtype(Dtype::Float32)?;
    // After 2 comes 7, and after that NaN.
    let table = ops::select(places.eq(Array::from_int(2))?, seven, circle(9)?)?;
    let table = ops::select(places.eq(Array::from_int(7))?, Array::from_f32(f32::NAN), table)?;
    for temperature in [0.0, 1e-3] {
        let run = |prompt: &[u32]| -> Result<Vec<u32>> {
            let sampler = Sampler { temperature, ..Sampler::default() };
            let options = GenerateOptions { sampler, ..options(3) };
            let (mut seen, mut drafts) = (Seen::new(1)?, Seen::new(1)?);
            let draft = DraftModel::new(bigram(table.clone()), &mut drafts, 2);
            ids(speculate(bigram(circle(9)?), &mut seen, draft, prompt, &options)?)
        };
        assert_eq!(run(&[1, 2])?, [3, 4, 5]);
        // A token that was itself drawn from NaN is an error.
        let error = run(&[6, 7]).expect_err("it is NaN").to_string();
        assert!(error.starts_with("the logits of sequence 0 are no distribution"), "{error}");
    }
    Ok(())
}

/// A second panic, of the step that is given the rest of the text, would end the process.
#[test]
fn a_step_that_panics_is_not_called_while_that_unwinds() {
    let calls = Cell::new(0);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut seen = Seen::new(1).expect("a state");
        let mut own = bigram(circle(9).expect("a table"));
        let step = |tokens: &Array, seen: &mut Seen| {
            calls.set(calls.get() + 1);
            assert!(calls.get() < 3, "on purpose");
            own(tokens, seen)
        };
        let tokens = speculate(step, &mut seen, Lookup::new(2), &[0, 1], &options(9)).expect("begins");
        tokens.for_each(drop);
    }));
    assert!(panicked.is_err());
    assert_eq!(calls.get(), 3);
}

#[test]
fn drafts_that_cannot_be_judged_are_refused() -> Result<()> {
    let last =
        |tokens: &Array, _: &mut Seen| -> Result<Array> { Ok(circle(5)?.take_axis(tokens.try_index((.., -1))?, 0)?) };
    let all = |tokens: &Array, _: &mut Seen| -> Result<Array> { Ok(circle(5)?.take_axis(tokens, 0)?) };
    let of_draft = |model: &dyn Fn(&Array, &mut Seen) -> Result<Array>, count| {
        let (mut seen, mut drafts) = (Seen::new(1).expect("a state"), Seen::new(1).expect("a state"));
        let draft = DraftModel::new(bigram(circle(5).expect("a table")), &mut drafts, count);
        match speculate(model, &mut seen, draft, &[3, 4], &options(4)) {
            Ok(mut tokens) => tokens.next().expect("an error").expect_err("it cannot").to_string(),
            Err(error) => error.to_string(),
        }
    };
    expect![[r#"
        a step that judges a draft gives the logits of its last token alone
        help: return those of all its tokens, [batch, tokens, vocabulary]
        a draft proposes 18446744073709551615 tokens at a time
        help: let it propose a few, such as 3
        a draft of 0 tokens proposes nothing
        help: let it propose at least 1, or use `generate`"#]]
    .assert_eq(&[of_draft(&last, 2), of_draft(&all, usize::MAX), of_draft(&all, 0)].join("\n"));
    Ok(())
}

#[test]
fn layers_forget_all_or_none() -> Result<()> {
    #[derive(Clone)]
    struct Layer(i32);

    impl Trim for Layer {
        fn trim(&mut self, tokens: i32) -> Result<()> {
            if tokens > self.0 {
                return Err(Error::invalid("it is gone", "trim less"));
            }
            self.0 -= tokens;
            Ok(())
        }
    }

    let mut layers = vec![Layer(5), Layer(2)];
    assert!(layers.trim(3).is_err());
    assert_eq!(layers.iter().map(|layer| layer.0).collect::<Vec<_>>(), [5, 2]);
    layers.trim(2)?;
    assert_eq!(layers.iter().map(|layer| layer.0).collect::<Vec<_>>(), [3, 0]);
    Ok(())
}

/// Only what was made may be unknown to a draft: a prompt is what the model says of it, and nothing of another one.
#[test]
fn a_token_of_the_prompt_that_a_model_does_not_know_is_shown_to_it() -> Result<()> {
    let known = |table: Array| {
        let mut step = bigram(table.clone());
        move |tokens: &Array, seen: &mut Seen| {
            if tokens.max(None)?.item_cast::<i32>() < table.dim(0) {
                return step(tokens, seen);
            }
            Err(Error::invalid("an unknown token", "give known ones"))
        }
    };
    let prompt = [0u32, 1, 7];
    let mut drafts = Seen::new(1)?;
    let draft = DraftModel::new(bigram(noise(9, 2)?), &mut drafts, 3);
    let found = speculate(known(noise(3, 1)?), &mut Seen::new(1)?, draft, &prompt, &options(3)).and_then(ids);
    assert!(found.is_err_and(|error| error.to_string().contains("an unknown token")));
    Ok(())
}

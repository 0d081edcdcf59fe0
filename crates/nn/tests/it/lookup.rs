//! Tokens that the text so far proposes.

use std::cell::Cell;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::compile::{CompileOptions, Constants};
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::generate::{
    Draft, Drawing, Finish, GenerateOptions, GenerateStats, Lookup, Proposal, Sampler, speculate,
};
use tacit_nn::{KvCache, generate};

use crate::toys::{Seen, attend, bigram, circle, ids, noise, options};

/// What a model makes with a lookup, of which so many tokens are read; it is what the model makes alone, and its state has seen
/// just that.
fn looked_up(
    table: &Array,
    lookup: Lookup,
    prompt: &[u32],
    take: usize,
    options: &GenerateOptions,
) -> Result<(Vec<u32>, GenerateStats)> {
    let alone = ids(generate(bigram(table.clone()), &mut Seen::new(1)?, &[prompt], options)?)?;
    let mut seen = Seen::new(1)?;
    let mut tokens = speculate(bigram(table.clone()), &mut seen, lookup, prompt, options)?;
    let made = ids(tokens.by_ref().take(take))?;
    let stats = tokens.stats();
    drop(tokens);
    assert_eq!(made, alone[..take.min(alone.len())]);
    assert_eq!(seen.tokens(), [prompt, &made[..]].concat());
    Ok((made, stats))
}

#[test]
fn a_text_that_repeats_nothing_has_no_drafts() -> Result<()> {
    let (made, stats) = looked_up(&circle(50)?, Lookup::new(4), &[3, 4, 5], 40, &options(40))?;
    assert_eq!((made.len(), stats.drafted), (40, 0));
    // One token before the text has none to follow it.
    let (_, stats) = looked_up(&circle(50)?, Lookup::new(4).matching(1), &[3], 40, &options(40))?;
    assert_eq!(stats.drafted, 0);
    Ok(())
}

#[test]
fn a_text_that_repeats_itself_is_made_in_few_steps() -> Result<()> {
    // The prompt repeats itself: what follows comes at once.
    let (_, stats) = looked_up(&circle(5)?, Lookup::new(9), &[0, 1, 2, 3, 4, 0, 1], 20, &options(20))?;
    assert_eq!((stats.drafted, stats.accepted), (18, 18));
    // The last tokens that match are of the prompt and of what was made.
    let (_, stats) = looked_up(&circle(5)?, Lookup::new(9).matching(3), &[0, 1, 2, 3, 4, 0], 12, &options(12))?;
    assert_eq!((stats.drafted, stats.accepted), (9, 9));
    // The prompt has nothing twice, and what was made repeats it.
    let (_, stats) = looked_up(&circle(5)?, Lookup::new(2), &[0, 1], 20, &options(20))?;
    assert_eq!((stats.drafted, stats.accepted), (10, 10));
    Ok(())
}

#[test]
fn earlier_turns_are_searched_and_their_unknown_tokens_are_no_harm() -> Result<()> {
    let said = [7, 3, 4, 5, 6, 7, 8, 0, 1, 99];
    let (_, stats) = looked_up(&circle(9)?, Lookup::new(3).after(&said), &[3, 4], 4, &options(4))?;
    assert_eq!((stats.drafted, stats.accepted), (3, 3));
    // What no model has a row for stands for its last token.
    let (_, stats) = looked_up(&circle(9)?, Lookup::new(3).after(&said), &[0, 1], 4, &options(4))?;
    assert_eq!((stats.drafted, stats.accepted), (3, 0));
    Ok(())
}

#[test]
fn greedy_tokens_are_the_models_for_any_lookup() -> Result<()> {
    // A greedy model of this kind comes into a circle after some tokens that do not repeat.
    let table = noise(30, 1)?;
    let prompt = [2, 0, 1, 17, 2, 0, 1, 3, 2, 0];
    let mut accepted = 0;
    for penalty in [1.0, 3.0] {
        let sampler = Sampler { repetition_penalty: penalty, repetition_window: 5, ..Sampler::default() };
        let free = GenerateOptions { sampler, prefill: 3, ..options(40) };
        let alone = ids(generate(bigram(table.clone()), &mut Seen::new(1)?, &[prompt], &free)?)?;
        // The text ends by itself at any place, at one of several tokens, or after as many as may be.
        let stops = [vec![], vec![vec![alone[7]]], vec![alone[20..22].to_vec()]];
        for stop in stops {
            for max_tokens in [1, 2, 3, 7, 40] {
                let options = GenerateOptions { stop: stop.clone(), max_tokens, ..free.clone() };
                for (count, matching) in [(1, 1), (2, 1), (3, 2), (8, 2), (8, 3), (100, 1)] {
                    for take in [1, 5, 23, 40] {
                        let lookup = Lookup::new(count).matching(matching);
                        let (_, stats) = looked_up(&table, lookup, &prompt, take, &options)?;
                        assert!(stats.accepted <= stats.drafted);
                        accepted += stats.accepted;
                    }
                }
            }
        }
    }
    assert!(accepted > 400, "{accepted}");
    Ok(())
}

#[test]
fn a_text_ends_within_a_draft_at_its_stop() -> Result<()> {
    let options = GenerateOptions { stop: vec![vec![3]], ..options(20) };
    let mut seen = Seen::new(1)?;
    let prompt = [0, 1, 2, 3, 4, 0, 1];
    let mut tokens = speculate(bigram(circle(5)?), &mut seen, Lookup::new(6), &prompt, &options)?;
    let made = tokens.by_ref().collect::<Result<Vec<_>>>()?;
    assert_eq!(
        made.iter().map(|token| (token.id, token.finish)).collect::<Vec<_>>(),
        [(2, None), (3, Some(Finish::Stop))]
    );
    assert_eq!(tokens.stats().accepted, 6);
    drop(tokens);
    assert_eq!(seen.tokens(), [0, 1, 2, 3, 4, 0, 1, 2, 3]);
    Ok(())
}

/// What a model says behind a token that it refuses is nobody's concern; behind others it has to be a distribution.
#[test]
fn nan_is_an_error_where_it_is_behind_the_text_alone() -> Result<()> {
    let places = ops::arange::<_, i32>(0, 9, None)?.expand_dims(1)?;
    for temperature in [0.0, 1e-3] {
        let sampler = Sampler { temperature, ..Sampler::default() };
        let options = GenerateOptions { sampler, ..options(3) };
        let run = |broken: i32| -> Result<Vec<u32>> {
            let table = ops::select(places.eq(Array::from_int(broken))?, Array::from_f32(f32::NAN), circle(9)?)?;
            // After the tokens 1 and 2 came 7, and now comes 3.
            let prompt = [1, 2, 7, 5, 1, 2];
            let mut seen = Seen::new(1)?;
            ids(speculate(bigram(table), &mut seen, Lookup::new(2), &prompt, &options)?)
        };
        assert_eq!(run(7)?, [3, 4, 5]);
        let error = run(3).expect_err("it is NaN").to_string();
        assert!(error.starts_with("the logits of sequence 0 are no distribution"), "{error}");
    }
    Ok(())
}

/// A round of the model fails, and the same lookup goes on with the last token, which its text has once.
#[test]
fn a_lookup_goes_on_after_a_failure_with_the_text_that_there_is() -> Result<()> {
    // While nothing was made, while nothing is proposed, and while two tokens are.
    for fails in [2, 5, 8] {
        let calls = Cell::new(0);
        let mut one = bigram(circle(5)?);
        let step = |tokens: &Array, seen: &mut Seen| {
            calls.set(calls.get() + 1);
            if calls.get() == fails { Err(Error::invalid("not now", "try again")) } else { one(tokens, seen) }
        };
        let (mut seen, mut lookup) = (Seen::new(1)?, Lookup::new(2));
        let mut first = speculate(step, &mut seen, &mut lookup, &[0, 1], &options(100))?;
        let made: Vec<u32> = first.by_ref().map_while(|token| token.ok().map(|token| token.id)).collect();
        drop(first);
        let text = [&[0, 1], &made[..]].concat();
        let last = text[text.len() - 1];
        let more = ids(speculate(bigram(circle(5)?), &mut seen, &mut lookup, &[last], &options(12))?)?;
        let all = [text, more].concat();
        assert_eq!(all, (0..all.len() as u32).map(|id| id % 5).collect::<Vec<_>>(), "{fails}");
        assert_eq!(seen.tokens(), all, "{fails}");
        assert_eq!(format!("{lookup:?}"), format!("{:?}", Lookup::new(2).after(&all)), "{fails}");
    }
    Ok(())
}

/// Each other number of tokens is a trace: there are few.
#[test]
fn a_compiled_step_is_traced_for_few_numbers_of_tokens() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let prompt = [3u32, 1, 4, 1, 5, 9, 2, 6];
    let cache = || -> Result<_> { Ok(vec![KvCache::new([1, 1, 16], Dtype::Float32)?]) };
    let mut step = compile_with_state(
        CompileOptions { constants: Constants::Allow, ..CompileOptions::default() },
        |caches: &mut Vec<KvCache>, tokens: Array| attend(&tokens, caches, &embedding),
    );
    let mut run = |tokens: &Array, caches: &mut Vec<KvCache>| -> Result<Array> {
        caches[0].reserve(tokens.dim(1))?;
        step.call(caches, &tokens)?.dense()
    };
    let alone = ids(generate(&mut run, &mut cache()?, &[prompt], &options(60))?)?;
    let mut caches = cache()?;
    let mut tokens = speculate(&mut run, &mut caches, Lookup::new(4).matching(1), &prompt, &options(60))?;
    assert_eq!(ids(tokens.by_ref())?, alone);
    let GenerateStats { drafted, accepted, .. } = tokens.stats();
    assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted}");
    drop(tokens);
    assert_eq!(caches[0].len(), 68);
    // The prompt, one token, and five; and fewer at the end, behind which none may come.
    assert!((3..=6).contains(&step.stats().traces), "{}", step.stats().traces);
    Ok(())
}

/// How far counts are from the numbers expected: chi-square.
fn chi_square(pairs: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    pairs.into_iter().map(|(found, expected)| (found - expected).powi(2) / expected).sum()
}

/// Drawn tokens have the law of the sampler after each two tokens, of which the penalty is, with a lookup and without.
#[test]
fn drawn_tokens_keep_the_law_of_the_sampler() -> Result<()> {
    const COUNT: usize = 4000;
    let table = noise(4, 5)?;
    let sampler = Sampler { temperature: 0.9, repetition_penalty: 1.3, repetition_window: 2, ..Sampler::default() };
    let free = GenerateOptions { sampler: sampler.clone(), seed: 11, ..options(COUNT) };
    let prompt = [0u32, 1];
    let alone = ids(generate(bigram(table.clone()), &mut Seen::new(1)?, &[prompt], &free)?)?;
    let mut seen = Seen::new(1)?;
    let mut tokens = speculate(bigram(table.clone()), &mut seen, Lookup::new(3).matching(1), &prompt, &free)?;
    let drafted = ids(tokens.by_ref())?;
    let stats = tokens.stats();
    assert!(stats.accepted * 6 > stats.drafted && stats.accepted < stats.drafted, "{stats:?}");
    drop(tokens);
    for made in [alone, drafted] {
        let text = [&prompt[..], &made].concat();
        let mut found = vec![[0f64; 4]; 16];
        for three in text.windows(3) {
            found[(4 * three[0] + three[1]) as usize][three[2] as usize] += 1.0;
        }
        let mut total = 0.0;
        for (context, found) in found.iter().enumerate() {
            let (one, other) = (context as u32 / 4, context as u32 % 4);
            let logits = table.take_axis(Array::from_slice(&[other], &[1]), 0)?;
            let law = sampler.probabilities(&logits, &sampler.start(0, &[[one, other]])?)?;
            let count: f64 = found.iter().sum();
            total += chi_square(found.iter().copied().zip(law.as_slice::<f32>().iter().map(|&p| f64::from(p) * count)));
        }
        // Of 48 degrees of freedom one in ten thousand is above 92.
        assert!((10.0..92.0).contains(&total), "{total}");
    }
    Ok(())
}

#[test]
fn a_seed_gives_the_same_tokens_with_a_lookup() -> Result<()> {
    let run = |seed| -> Result<Vec<u32>> {
        let sampler = Sampler { temperature: 1.0, top_p: 0.9, ..Sampler::default() };
        let options = GenerateOptions { sampler, seed, ..options(60) };
        let mut seen = Seen::new(1)?;
        let made = ids(speculate(bigram(noise(9, 1)?), &mut seen, Lookup::new(3).matching(1), &[1, 2], &options)?)?;
        assert_eq!(seen.tokens(), [&[1, 2], &made[..]].concat());
        Ok(made)
    };
    assert_eq!(run(1)?, run(1)?);
    assert_ne!(run(1)?, run(2)?);
    Ok(())
}

/// A draft that proposes whatever it is told to.
struct Says(fn(i32) -> Result<Proposal>);

impl Draft for Says {
    fn max_draft_tokens(&self) -> usize {
        2
    }

    fn propose(&mut self, _: usize, drawing: &Drawing<'_>) -> Result<Option<Proposal>> {
        self.0(drawing.vocabulary).map(Some)
    }

    fn follow(&mut self, _: &[u32]) -> Result<()> {
        Ok(())
    }
}

#[test]
fn drafts_and_lookups_that_cannot_be_are_refused() -> Result<()> {
    fn refused(draft: impl Draft) -> Result<String> {
        let mut seen = Seen::new(1)?;
        let made = speculate(bigram(circle(5)?), &mut seen, draft, &[0, 1], &options(4));
        let error = made.and_then(|mut tokens| tokens.next().transpose()).expect_err("it cannot be");
        Ok(error.to_string())
    }
    let messages = [
        refused(Lookup::new(0))?,
        refused(Lookup::new(3).matching(0))?,
        refused(Says(|_| Ok(Proposal::certain(&[]))))?,
        refused(Says(|_| Ok(Proposal::certain(&[2, 3, 4]))))?,
        refused(Says(|_| Ok(Proposal { tokens: Array::from_slice(&[2i32], &[1]), ..Proposal::certain(&[2]) })))?,
        refused(Says(|_| Ok(Proposal { law: Some(ops::ones::<f32>(&[2, 3])?), ..Proposal::certain(&[2, 3]) })))?,
        refused(Says(|_| Ok(Proposal { valid: Some(ops::ones::<f32>(&[2])?), ..Proposal::certain(&[2, 3]) })))?,
    ];
    expect![[r#"
        a draft of 0 tokens proposes nothing
        help: let it propose at least 1, or use `generate`
        a lookup of the last 0 tokens finds every place of a text
        help: let at least 1 match, such as the last 2
        a draft that is asked for 2 tokens proposes u32[0]
        help: give one axis of tokens, u32, at least one and no more than were asked for
        a draft that is asked for 2 tokens proposes u32[3]
        help: give one axis of tokens, u32, at least one and no more than were asked for
        a draft that is asked for 2 tokens proposes i32[1]
        help: give one axis of tokens, u32, at least one and no more than were asked for
        a draft that is asked for 2 tokens proposes f32[2,3]
        help: give probabilities, f32, of all tokens that the model knows, a row for each proposed one
        a draft that is asked for 2 tokens proposes f32[2]
        help: say by a bool of each token whether it was drawn from a distribution"#]]
    .assert_eq(&messages.join("\n"));
    // Nothing was seen where the draft cannot begin.
    let mut seen = Seen::new(1)?;
    assert!(speculate(bigram(circle(5)?), &mut seen, Lookup::new(3).matching(0), &[0, 1], &options(4)).is_err());
    assert!(seen.tokens().is_empty());
    Ok(())
}

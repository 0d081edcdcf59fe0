//! Tokens one after the other, of models whose tokens are known.

use std::cell::Cell;
use std::collections::BTreeSet;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::generate::{DraftModel, Finish, GenerateOptions, GenerateStats, Sampler, Sequences, Token, speculate};
use tacit_nn::{ArraysCache, Cache, KvCache, Window, generate};

use crate::toys::{NOTHING, Seen, attend, bigram, circle, eagerly, ids, noise, options};
use crate::traced::denied;
use crate::types::error;

#[test]
fn the_state_has_seen_the_prompt_and_every_token() -> Result<()> {
    for lookahead in [true, false] {
        for prefill in [1, 2, 3, 100] {
            let mut seen = Seen::new(1)?;
            let options = GenerateOptions { lookahead, prefill, ..options(4) };
            let made = ids(generate(bigram(circle(5)?), &mut seen, &[[7, 7, 0, 1, 2].map(|id| id % 5)], &options)?)?;
            assert_eq!(made, [3, 4, 0, 1]);
            assert_eq!(seen.tokens(), [2, 2, 0, 1, 2, 3, 4, 0, 1]);
            // It goes on from there.
            let options = GenerateOptions {
                lookahead,
                prefill,
                ..GenerateOptions { max_tokens: 2, ..GenerateOptions::default() }
            };
            assert_eq!(ids(generate(bigram(circle(5)?), &mut seen, &[[4]], &options)?)?, [0, 1]);
        }
    }
    Ok(())
}

#[test]
fn who_drops_the_iterator_leaves_the_state_with_what_was_given() -> Result<()> {
    for lookahead in [true, false] {
        let mut seen = Seen::new(1)?;
        let mut tokens =
            generate(bigram(circle(5)?), &mut seen, &[[0]], &GenerateOptions { lookahead, ..options(100) })?;
        assert_eq!(ids(tokens.by_ref().take(3))?, [1, 2, 3]);
        drop(tokens);
        assert_eq!(seen.tokens(), [0, 1, 2, 3]);
    }
    Ok(())
}

/// As after any other generation, so that another one may go on.
#[test]
fn the_state_has_seen_the_prompt_where_no_token_is_made() -> Result<()> {
    let mut seen = Seen::new(1)?;
    assert_eq!(ids(generate(bigram(circle(5)?), &mut seen, &[[0, 1]], &options(0))?)?, [0u32; 0]);
    let (mut model, mut drafts) = (Seen::new(1)?, Seen::new(1)?);
    let draft = DraftModel::new(bigram(circle(5)?), &mut drafts, 2);
    assert_eq!(ids(speculate(bigram(circle(5)?), &mut model, draft, &[0, 1], &options(0))?)?, [0u32; 0]);
    for seen in [seen, model, drafts] {
        assert_eq!(seen.tokens(), [0, 1]);
    }
    Ok(())
}

#[test]
fn it_stops_after_a_token_or_a_sequence_of_them() -> Result<()> {
    let run = |stop: &[&[u32]]| -> Result<(Vec<u32>, Option<Finish>)> {
        let mut seen = Seen::new(1)?;
        let stop = stop.iter().map(|stop| stop.to_vec()).collect();
        let tokens = generate(bigram(circle(9)?), &mut seen, &[[1]], &GenerateOptions { stop, ..options(6) })?;
        let tokens = tokens.collect::<Result<Vec<_>>>()?;
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        assert!(tokens[..tokens.len() - 1].iter().all(|token| token.finish.is_none()));
        assert_eq!(seen.tokens()[1..], ids);
        Ok((ids, tokens.last().and_then(|token| token.finish)))
    };
    assert_eq!(run(&[&[4]])?, (vec![2, 3, 4], Some(Finish::Stop)));
    assert_eq!(run(&[&[5, 6], &[4, 5]])?, (vec![2, 3, 4, 5], Some(Finish::Stop)));
    // The prompt is not what it made.
    assert_eq!(run(&[&[1, 2]])?, (vec![2, 3, 4, 5, 6, 7], Some(Finish::Length)));
    assert_eq!(run(&[&[6, 7]])?, (vec![2, 3, 4, 5, 6, 7], Some(Finish::Stop)));
    Ok(())
}

#[test]
fn sequences_of_a_batch_end_by_themselves() -> Result<()> {
    let mut seen = Seen::new(3)?;
    let options = GenerateOptions { stop: vec![vec![4]], padding: Some(0), ..options(5) };
    let prompts: [&[u32]; 3] = [&[1, 2], &[5], &[3]];
    let mut tokens = generate(bigram(circle(9)?), &mut seen, &prompts, &options)?;
    let mut rows = vec![Vec::new(); 3];
    for token in &mut tokens {
        let token = token?;
        rows[token.sequence].push((token.id, token.finish));
    }
    let ids: Vec<Vec<u32>> = rows.iter().map(|row| row.iter().map(|token| token.0).collect()).collect();
    assert_eq!(ids, [vec![3, 4], vec![6, 7, 8, 0, 1], vec![4]]);
    let last: Vec<_> = rows.iter().map(|row| row.last().and_then(|token| token.1)).collect();
    assert_eq!(last, [Some(Finish::Stop), Some(Finish::Length), Some(Finish::Stop)]);
    let GenerateStats { prompt_tokens, tokens: made, first_tokens, .. } = tokens.stats();
    assert_eq!((prompt_tokens, made, first_tokens), (4, 8, 3));
    drop(tokens);
    // Each has seen its prompt behind the padding, and its own tokens alone.
    let rows: Vec<&[u32]> = seen.0.as_slice::<u32>().chunks(7).collect();
    assert_eq!(rows[0], [NOTHING, NOTHING, NOTHING, 1, 2, 3, 4]);
    assert_eq!(rows[1], [0, 5, 6, 7, 8, 0, 1]);
    assert_eq!(rows[2], [NOTHING, NOTHING, NOTHING, NOTHING, 0, 3, 4]);
    Ok(())
}

#[test]
fn what_follows_a_sequence_that_ended_ends_no_other() -> Result<()> {
    let places = ops::arange::<_, i32>(0, 9, None)?.expand_dims(1)?;
    let table = ops::select(places.eq(Array::from_int(4))?, Array::from_f32(f32::NAN), circle(9)?)?;
    for lookahead in [true, false] {
        let mut seen = Seen::new(2)?;
        let options = GenerateOptions { stop: vec![vec![4]], lookahead, ..options(5) };
        let made = generate(bigram(table.clone()), &mut seen, &[[3], [5]], &options)?;
        let made = made.map(|token| token.map(|token| (token.sequence, token.id))).collect::<Result<Vec<_>>>()?;
        assert_eq!(made, [(0, 4), (1, 6), (1, 7), (1, 8), (1, 0), (1, 1)]);
        assert_eq!(seen.0.try_index(0)?.as_slice::<u32>()[4..], [3, 4]);
    }
    Ok(())
}

#[test]
fn a_state_that_knows_no_sequences_is_given_one_prompt_at_a_time() -> Result<()> {
    let table = circle(5)?;
    let step = |tokens: &Array, _: &mut Array| -> Result<Array> { Ok(table.take_axis(tokens, 0)?) };
    let mut state = Array::from_int(0);
    assert_eq!(ids(generate(step, &mut state, &[[0]], &options(2))?)?, [1, 2]);
    let error = generate(step, &mut state, &[[0], [1]], &options(2)).expect_err("it knows none").to_string();
    expect![[r#"
        the state of 2 sequences does not know which of its tokens are whose
        help: implement the methods of `Sequences` for it, or give one prompt at a time"#]]
    .assert_eq(&error);
    // One without tokens has nothing to know.
    let step = |tokens: &Array, (): &mut ()| -> Result<Array> { Ok(table.take_axis(tokens, 0)?) };
    assert_eq!(ids(generate(step, &mut (), &[[0], [1]], &options(1))?)?, [1, 2]);
    Ok(())
}

#[test]
fn a_seed_gives_the_same_tokens_and_another_gives_others() -> Result<()> {
    let run = |seed: u64, lookahead: bool| -> Result<Vec<u32>> {
        let sampler = Sampler { temperature: 1.0, top_p: 0.9, repetition_penalty: 1.1, ..Sampler::default() };
        let options = GenerateOptions { sampler, seed, lookahead, ..options(30) };
        ids(generate(bigram(noise(20, 1)?), &mut Seen::new(1)?, &[[3]], &options)?)
    };
    assert_eq!(run(1, true)?, run(1, true)?);
    assert_eq!(run(1, true)?, run(1, false)?);
    assert_ne!(run(1, true)?, run(2, true)?);
    Ok(())
}

#[test]
fn a_penalty_sees_the_tokens_that_were_made() -> Result<()> {
    // Token 0 is a little likelier than 1, and that than 2, after every token.
    let table = ops::broadcast_to(Array::from_slice(&[3.0f32, 2.9, 2.8, 2.7], &[1, 4]), &[4, 4])?;
    let run = |repetition_window| -> Result<Vec<u32>> {
        let sampler = Sampler { repetition_penalty: 2.0, repetition_window, ..Sampler::default() };
        ids(generate(bigram(table.clone()), &mut Seen::new(1)?, &[[3]], &GenerateOptions { sampler, ..options(6) })?)
    };
    assert_eq!(run(1)?, [0, 1, 0, 1, 0, 1]);
    assert_eq!(run(2)?, [0, 1, 2, 0, 1, 2]);
    // With all of them recent it is as if none were.
    assert_eq!(run(20)?, [0, 1, 2, 0, 0, 0]);
    assert_eq!(run(usize::MAX)?, [0, 1, 2, 0, 0, 0]);
    let sampler = Sampler { repetition_penalty: 2.0, repetition_window: usize::MAX, ..Sampler::default() };
    let options = GenerateOptions { sampler, ..options(usize::MAX) };
    let error = generate(bigram(table), &mut Seen::new(1)?, &[[3]], &options).expect_err("no memory is so large");
    expect![[r#"
        a repetition penalty looks at 18446744073709551615 tokens, and each step at as many
        help: give a `repetition_window` of at most 16777216, or no more than there will be tokens"#]]
    .assert_eq(&error.to_string());
    Ok(())
}

#[test]
fn a_step_that_fails_leaves_the_state_as_it_was() -> Result<()> {
    for lookahead in [true, false] {
        let calls = Cell::new(0);
        let mut step = bigram(circle(9)?);
        let failing = |tokens: &Array, seen: &mut Seen| {
            calls.set(calls.get() + 1);
            let made = step(tokens, seen)?;
            if calls.get() == 5 { Err(Error::invalid("not now", "try again")) } else { Ok(made) }
        };
        let mut seen = Seen::new(1)?;
        let mut tokens = generate(failing, &mut seen, &[[0, 1]], &GenerateOptions { lookahead, ..options(8) })?;
        // Two for the prompt, and two for two tokens of three.
        assert_eq!(ids(tokens.by_ref().take(3))?, [2, 3, 4]);
        assert_eq!(
            tokens.next().map(|token| token.expect_err("it fails").to_string()).as_deref(),
            Some("not now\nhelp: try again")
        );
        assert!(tokens.next().is_none());
        drop(tokens);
        assert_eq!(seen.tokens(), [0, 1, 2, 3]);
        assert_eq!(ids(generate(bigram(circle(9)?), &mut seen, &[[4]], &options(2))?)?, [5, 6]);
    }
    Ok(())
}

#[test]
fn a_prompt_that_fails_leaves_the_pieces_before_it() -> Result<()> {
    let mut step = bigram(circle(9)?);
    let failing = |tokens: &Array, seen: &mut Seen| {
        let made = step(tokens, seen)?;
        if seen.0.dim(1) > 4 { Err(Error::invalid("too long", "say less")) } else { Ok(made) }
    };
    let mut seen = Seen::new(1)?;
    let options = GenerateOptions { prefill: 2, ..options(3) };
    assert!(error(generate(failing, &mut seen, &[[0, 1, 2, 3, 4, 5]], &options)).to_string().contains("too long"));
    assert_eq!(seen.tokens(), [0, 1, 2, 3]);
    Ok(())
}

#[test]
fn a_bias_of_no_token_leaves_the_last_of_the_prompt_to_be_seen() -> Result<()> {
    let mut seen = Seen::new(1)?;
    let sampler = Sampler { bias: [(9, 1.0)].into(), ..Sampler::default() };
    let biased = GenerateOptions { sampler, ..options(3) };
    let said = error(generate(bigram(circle(9)?), &mut seen, &[[0, 1, 2]], &biased)).to_string();
    assert!(said.contains("token 9 has a bias"), "{said}");
    assert_eq!(seen.tokens(), [0, 1]);
    assert_eq!(ids(generate(bigram(circle(9)?), &mut seen, &[[2]], &options(2))?)?, [3, 4]);
    Ok(())
}

#[test]
fn nan_is_an_error_and_no_token() -> Result<()> {
    let broken = circle(5)?.put_along_axis(Array::from_slice(&[2u32], &[1, 1]), Array::from_f32(f32::NAN), 1)?;
    let places = ops::arange::<_, i32>(0, 5, None)?.expand_dims(1)?;
    let table = ops::select(places.eq(Array::from_int(3))?, broken, circle(5)?)?;
    let mut errors = BTreeSet::new();
    for temperature in [0.0, 1e-3] {
        for lookahead in [true, false] {
            let sampler = Sampler { temperature, ..Sampler::default() };
            let mut seen = Seen::new(1)?;
            let options = GenerateOptions { lookahead, sampler, ..options(8) };
            let mut tokens = generate(bigram(table.clone()), &mut seen, &[[0]], &options)?;
            assert_eq!(ids(tokens.by_ref().take(3))?, [1, 2, 3]);
            let error = tokens.next().expect("there is an error").expect_err("it is NaN").to_string();
            errors.insert(error);
            assert!(tokens.next().is_none());
        }
    }
    expect![[r#"
        the logits of sequence 0 are no distribution: one is NaN or infinity, or all are minus infinity
        help: look for NaN in the weights, or for half floats that overflow; begin again with new caches"#]]
    .assert_eq(&errors.into_iter().collect::<String>());
    Ok(())
}

#[test]
fn caches_in_a_compiled_step_give_the_tokens_of_the_whole_prefix() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let prompt = [3u32, 1, 4, 1, 5, 9, 2, 6];
    // Each token from all before it, without a cache.
    let mut whole = prompt.to_vec();
    for _ in 0..20 {
        let mut caches = vec![KvCache::new([1, 1, 16], Dtype::Float32)?];
        caches[0].reserve(whole.len() as i32)?;
        let tokens = Array::from_slice(&whole, &[1, whole.len() as i32]);
        let logits = attend(&tokens, &mut caches, &embedding)?.try_index((.., -1, ..))?;
        whole.push(mlx_rs::ops::indexing::argmax(&logits, None)?.item_exact::<u32>());
    }
    for prefill in [3, 512] {
        let mut step =
            compile_with_state(denied(), |(caches, embedding): &mut (Vec<KvCache>, Array), tokens: Array| {
                attend(&tokens, caches, embedding)
            });
        let run = |tokens: &Array, state: &mut (Vec<KvCache>, Array)| -> Result<Array> {
            state.0[0].reserve(tokens.dim(1))?;
            step.call(state, &tokens)?.dense()
        };
        let mut state = (vec![KvCache::new([1, 1, 16], Dtype::Float32)?], embedding.clone());
        let made = ids(generate(run, &mut state, &[prompt], &GenerateOptions { prefill, ..options(20) })?)?;
        assert_eq!(made, whole[8..]);
        // Pieces of the prompt, and single tokens.
        assert_eq!(step.stats().traces, 2);
    }
    Ok(())
}

/// The tokens of each sequence.
fn rows(tokens: impl Iterator<Item = Result<Token>>, sequences: usize) -> Result<Vec<Vec<u32>>> {
    let mut rows = vec![Vec::new(); sequences];
    for token in tokens {
        let token = token?;
        rows[token.sequence].push(token.id);
    }
    Ok(rows)
}

/// Prompts of any lengths in one batch, whose sequences end at different times, and then others: what each gives alone.
#[test]
fn sequences_of_a_batch_are_as_each_alone_and_go_on() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let ragged: [&[u32]; 3] = [&[3, 1, 4, 1, 5, 9, 2, 6], &[7, 7], &[30, 2, 17, 11, 23]];
    let even: [&[u32]; 3] = [&[3, 1, 4, 1, 5, 9], &[7, 7, 12, 5, 8, 20], &[30, 2, 17, 11, 23, 36]];
    let cases = [
        (Window::Everything, ragged),
        (Window::Sliding { size: 6, sinks: 0 }, ragged),
        (Window::Chunked { size: 5 }, ragged),
        // Sinks are slots that all sequences share, so that padding cannot stand there.
        (Window::Sliding { size: 5, sinks: 2 }, even),
    ];
    for (window, prompts) in cases {
        let cache =
            |batch| -> Result<_> { Ok(vec![KvCache::new([batch, 1, 16], Dtype::Float32)?.with_window(window)?]) };
        // Of the first sequence, one that comes late enough.
        let free = ids(generate(eagerly(embedding.clone()), &mut cache(1)?, &prompts[..1], &options(12))?)?;
        let stop = vec![vec![free[4]]];
        for (lookahead, prefill) in [(true, 512), (false, 3)] {
            let options = GenerateOptions { stop: stop.clone(), padding: Some(0), lookahead, prefill, ..options(12) };
            let mut alone = Vec::new();
            for prompt in prompts {
                let mut own = cache(1)?;
                let first = ids(generate(eagerly(embedding.clone()), &mut own, &[prompt], &options)?)?;
                let then = ids(generate(eagerly(embedding.clone()), &mut own, &[[5, 6]], &options)?)?;
                alone.push((first, then));
            }
            let (first, then): (Vec<_>, Vec<_>) = alone.into_iter().unzip();
            let lengths: BTreeSet<usize> = first.iter().map(Vec::len).collect();
            assert!(lengths.len() > 1, "{window:?}: all end together");
            let mut all = cache(3)?;
            assert_eq!(
                rows(generate(eagerly(embedding.clone()), &mut all, &prompts, &options)?, 3)?,
                first,
                "{window:?}"
            );
            let again = generate(eagerly(embedding.clone()), &mut all, &[[5, 6]; 3], &options)?;
            assert_eq!(rows(again, 3)?, then, "{window:?} goes on");
        }
    }
    Ok(())
}

/// Sequences that end at different times are merged again, which sinks that are not full do not allow.
#[test]
fn a_batch_that_could_not_be_joined_again_is_refused_before_it_begins() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let window = Window::Sliding { size: 6, sinks: 3 };
    let mut caches = vec![KvCache::new([2, 1, 16], Dtype::Float32)?.with_window(window)?];
    let refused = generate(eagerly(embedding.clone()), &mut caches, &[[3], [7]], &options(10));
    expect![[r#"
        prompts of 1 tokens behind 0 do not fill the 3 sinks that a batch shares
        help: give longer prompts, or each by itself"#]]
    .assert_eq(&refused.expect_err("the sinks are not full").to_string());
    assert!(caches[0].is_empty());
    // One is stopped before its first token.
    let mut tokens = generate(eagerly(embedding), &mut caches, &[[3, 1, 4], [7, 7, 7]], &options(10))?;
    tokens.stop(0);
    assert_eq!(ids(tokens)?.len(), 10);
    assert_eq!(caches[0].offset().as_slice::<i32>(), [3, 13]);
    Ok(())
}

/// A prompt that fails leaves no padding behind that the state was told of.
#[test]
fn padding_of_a_prompt_that_fails_is_not_padding_of_the_next() -> Result<()> {
    let embedding = random::normal::<f32>(&[40, 16], None, None, &random::key(8)?)?;
    let options = GenerateOptions { padding: Some(0), prefill: 2, ..options(5) };
    let prompts: [&[u32]; 2] = [&[3, 1, 4, 1, 5], &[7, 7]];
    let mut caches = vec![KvCache::new([2, 1, 16], Dtype::Float32)?];
    let mut step = eagerly(embedding.clone());
    let failing = |tokens: &Array, caches: &mut Vec<KvCache>| {
        let made = step(tokens, caches)?;
        if caches[0].len() > 2 { Err(Error::invalid("not now", "try again")) } else { Ok(made) }
    };
    assert!(error(generate(failing, &mut caches, &prompts, &options)).to_string().contains("not now"));
    assert!(caches[0].is_empty());
    let made = rows(generate(eagerly(embedding.clone()), &mut caches, &prompts, &options)?, 2)?;
    let mut own = vec![KvCache::new([1, 1, 16], Dtype::Float32)?];
    assert_eq!(made[1], ids(generate(eagerly(embedding), &mut own, &prompts[1..], &options)?)?);
    Ok(())
}

#[test]
fn states_of_several_parts_know_the_sequences_of_each() -> Result<()> {
    let attention = || KvCache::new([2, 1, 16], Dtype::Float32);
    let arrays = || -> Result<ArraysCache> {
        let mut cache = ArraysCache::new(1);
        cache.set(0, Array::from_slice(&[1.0f32, 2.0], &[2, 1]))?;
        Ok(cache)
    };
    let mut state = (
        vec![Cache::List(vec![attention()?.into(), ArraysCache::new(1).into()]), attention()?.into()],
        (),
        attention()?,
    );
    state.pad_left(3, &[3, 1])?;
    let Cache::List(parts) = &mut state.0[0] else { unreachable!("a list was made") };
    assert_eq!(
        parts[1].as_arrays().and_then(|cache| cache.left_padding()).map(|own| own.as_slice::<i32>().to_vec()),
        Some(vec![0, 2])
    );
    assert!(parts[0].as_kv().is_some_and(|cache| cache.prepare(3, &[1, 3], tacit_nn::PaddingSide::Left).is_err()));
    // All layers are padded, or none is.
    assert!(state.pad_left(3, &[3]).is_err());
    assert!(state.2.prepare(3, &[1, 3], tacit_nn::PaddingSide::Left).is_err(), "it is padded");
    let chosen = <(ArraysCache, (), ArraysCache)>::merge(&[(arrays()?, (), arrays()?)])?.select(&[1])?;
    assert_eq!(chosen.2.get(0)?.expect("it is there").as_slice::<f32>(), [2.0]);
    let merged = Sequences::merge(&[vec![Cache::from(arrays()?)], vec![arrays()?.into()]])?;
    let mut chosen = merged.select(&[3, 0])?;
    let held = chosen[0].as_arrays().expect("arrays").get(0)?.expect("it is there").as_slice::<f32>().to_vec();
    assert_eq!(held, [2.0, 1.0]);
    assert!(<Cache as Sequences>::merge(&[attention()?.into(), arrays()?.into()]).is_err());
    Ok(())
}

#[test]
fn what_cannot_be_generated_is_said() -> Result<()> {
    let fails = |prompts: &[&[u32]], options: GenerateOptions| {
        let mut seen = Seen::new(prompts.len() as i32).expect("a state");
        let table = circle(5).expect("a table");
        let made = generate(bigram(table), &mut seen, prompts, &options);
        made.expect_err("it cannot").to_string()
    };
    let wrong = |tokens: &Array, _: &mut Seen| -> Result<Array> { Ok(circle(5)?.take_axis(tokens.try_index(0)?, 0)?) };
    let mut seen = Seen::new(1)?;
    let messages = [
        fails(&[], options(4)),
        fails(&[&[0], &[]], options(4)),
        fails(&[&[0], &[1, 2]], options(4)),
        fails(&[&[0]], GenerateOptions { prefill: 0, ..options(4) }),
        fails(&[&[0]], GenerateOptions { stop: vec![vec![]], ..options(4) }),
        generate(wrong, &mut seen, &[[0, 1, 2]], &options(4)).expect_err("it has another shape").to_string(),
    ];
    expect![[r#"
        there are no prompts
        help: give at least one
        a prompt is empty
        help: give at least one token, such as the one that begins a text
        prompts of [1, 2] tokens are one batch
        help: say by `padding` what they are filled up with
        prompts are given in pieces of 0 tokens
        help: give a `prefill` of at least 1
        a sequence to stop after is empty
        help: leave it out, or give its tokens
        a step on 2 tokens of 1 sequences gives logits of [2, 5]
        help: return [batch, tokens, vocabulary], or [batch, 1, vocabulary] or [batch, vocabulary] of the last token"#]]
    .assert_eq(&messages.join("\n"));
    Ok(())
}

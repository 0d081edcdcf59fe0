//! Draws of tokens, against the filters written out on the host.

#![allow(clippy::float_cmp, reason = "what a filter leaves out is exactly zero")]

use std::collections::{BTreeMap, BTreeSet};

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::{Policy, Result, compile_with_state};
use tacit_nn::generate::{Sampler, SamplerState};

use crate::traced::denied;

fn rows(rows: &[&[f32]]) -> Array {
    Array::from_slice(&rows.concat(), &[rows.len() as i32, rows[0].len() as i32])
}

/// The probabilities of one row, one filter after the other as mlx-lm has them.
fn oracle(sampler: &Sampler, logits: &[f32], recent: &[u32]) -> Vec<f64> {
    let mut logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    for (&token, &bias) in &sampler.bias {
        logits[token as usize] += f64::from(bias);
    }
    let penalty = f64::from(sampler.repetition_penalty);
    if penalty != 0.0 && penalty != 1.0 {
        let set: BTreeSet<u32> = recent.iter().copied().collect();
        for token in set {
            let x = &mut logits[token as usize];
            *x = if *x < 0.0 { *x * penalty } else { *x / penalty };
        }
    }
    let total: f64 = logits.iter().map(|x| x.exp()).sum();
    let log: Vec<f64> = logits.iter().map(|x| x - total.ln()).collect();
    let mut order: Vec<usize> = (0..log.len()).collect();
    if sampler.temperature == 0.0 {
        let best = order.into_iter().rev().max_by(|&a, &b| log[a].total_cmp(&log[b])).expect("there are tokens");
        return (0..log.len()).map(|token| f64::from(u8::from(token == best))).collect();
    }
    let mut kept = vec![true; log.len()];
    order.sort_by(|&a, &b| log[a].total_cmp(&log[b]));
    let p = f64::from(sampler.top_p);
    if 0.0 < p && p < 1.0 {
        let mut sum = 0.0;
        for &token in &order {
            sum += log[token].exp();
            kept[token] = sum > 1.0 - p;
        }
    }
    if sampler.min_p > 0.0 {
        let best = log[order[log.len() - 1]];
        for token in 0..log.len() {
            kept[token] &= log[token] >= best + f64::from(sampler.min_p).ln();
        }
    }
    if sampler.top_k > 0 && sampler.top_k < log.len() {
        for &token in &order[..log.len() - sampler.top_k] {
            kept[token] = false;
        }
    }
    let weight = |token: usize| if kept[token] { (log[token] / f64::from(sampler.temperature)).exp() } else { 0.0 };
    let sum: f64 = (0..log.len()).map(weight).sum();
    (0..log.len()).map(|token| weight(token) / sum).collect()
}

fn check(sampler: &Sampler, logits: &Array, prompts: &[Vec<u32>]) -> Result<()> {
    let state = sampler.start(0, prompts)?;
    let made = sampler.probabilities(logits, &state)?;
    let width = logits.dim(1) as usize;
    for (row, made) in made.as_slice::<f32>().chunks(width).enumerate() {
        let given = logits.as_dtype(Dtype::Float32)?;
        let prompt = &prompts[row];
        let recent = &prompt[prompt.len().saturating_sub(sampler.repetition_window)..];
        let expected = oracle(sampler, &given.as_slice::<f32>()[row * width..(row + 1) * width], recent);
        for (token, (&a, &b)) in made.iter().zip(&expected).enumerate() {
            assert!((f64::from(a) - b).abs() < 1e-5, "{sampler:?}, row {row}, token {token}: {a} {b}");
            assert_eq!(a == 0.0, b == 0.0, "{sampler:?}, row {row}, token {token}: {a} {b}");
        }
    }
    Ok(())
}

#[test]
fn filters_leave_what_they_leave_one_after_the_other() -> Result<()> {
    let prompts = [vec![1, 2, 3], vec![5]];
    for (width, seed) in [(7, 1), (64, 2), (1000, 3)] {
        let logits = random::normal::<f32>(&[2, width], None, None, &random::key(seed)?)?;
        let logits = logits.multiply(Array::from_f32(3.0))?;
        for temperature in [0.0, 0.7, 2.0] {
            for top_k in [0, 1, 3, 6, 7, 5000] {
                for (top_p, min_p) in [(0.0, 0.0), (0.9, 0.0), (1.0, 0.05), (0.5, 0.2), (0.01, 1.0)] {
                    let sampler = Sampler { temperature, top_k, top_p, min_p, ..Sampler::default() };
                    check(&sampler, &logits, &prompts)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn bias_and_penalty_come_before_the_filters() -> Result<()> {
    let logits = rows(&[&[2.0, -1.0, 0.5, 0.0, 3.0, -2.0], &[0.1, 0.2, 0.3, -0.4, -0.5, 0.6]]);
    let bias = BTreeMap::from([(0, -1.5), (4, f32::NEG_INFINITY), (5, 4.0)]);
    for temperature in [0.0, 1.0] {
        for repetition_penalty in [0.0, 0.5, 1.0, 1.3] {
            for repetition_window in [1, 3, 20] {
                let bias = bias.clone();
                let sampler = Sampler {
                    temperature,
                    top_k: 4,
                    repetition_penalty,
                    repetition_window,
                    bias,
                    ..Sampler::default()
                };
                check(&sampler, &logits, &[vec![0, 0, 1, 5, 5], vec![2]])?;
            }
        }
    }
    Ok(())
}

/// A token that only the tokenizer knows changes the logits of no other.
#[test]
fn tokens_beyond_the_vocabulary_are_penalized_for_nobody() -> Result<()> {
    let logits = rows(&[&[1.0, 2.0, -0.5, 0.3, 4.0]]);
    let sampler = Sampler { temperature: 1.0, repetition_penalty: 2.0, repetition_window: 4, ..Sampler::default() };
    let law = |prompt: &[u32]| -> Result<Vec<f32>> {
        let state = sampler.start(0, &[prompt])?;
        Ok(sampler.probabilities(&logits, &state)?.as_slice::<f32>().to_vec())
    };
    let free = Sampler { temperature: 1.0, ..Sampler::default() };
    let free = free.probabilities(&logits, &free.start(0, &[[0u32]])?)?.as_slice::<f32>().to_vec();
    assert_eq!(law(&[5, 900, u32::MAX])?, free);
    assert_eq!(law(&[1, 900, 1, 2])?, law(&[1, 2])?);
    assert_eq!(law(&[900, 0])?, law(&[0])?);
    assert_ne!(law(&[900, 0])?, free);
    Ok(())
}

#[test]
fn half_logits_are_those_in_single_precision() -> Result<()> {
    let logits = random::normal::<f32>(&[3, 50], None, None, &random::key(3)?)?;
    let sampler = Sampler { temperature: 0.8, top_p: 0.7, ..Sampler::default() };
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        check(&sampler, &logits.as_dtype(dtype)?, &[vec![0], vec![0], vec![0]])?;
    }
    Ok(())
}

#[test]
fn draws_are_distributed_by_the_probabilities() -> Result<()> {
    let one = [0.3f32, 2.0, -1.0, 1.1, 0.0, 0.9];
    let count = 20_000;
    let logits = ops::broadcast_to(rows(&[&one]), &[count, 6])?;
    let prompts = vec![[1u32]; count as usize];
    for sampler in [
        Sampler { temperature: 1.5, ..Sampler::default() },
        Sampler { temperature: 0.9, top_k: 3, ..Sampler::default() },
        Sampler { temperature: 1.0, top_p: 0.8, repetition_penalty: 1.7, ..Sampler::default() },
    ] {
        let mut state = sampler.start(11, &prompts)?;
        let drawn = sampler.sample(&logits, &mut state)?.tokens;
        let expected = oracle(&sampler, &one, &[1]);
        for (token, expected) in expected.into_iter().enumerate() {
            let found = drawn.as_slice::<u32>().iter().filter(|&&drawn| drawn as usize == token).count();
            let deviation = (expected * (1.0 - expected) / f64::from(count)).sqrt();
            let found = found as f64 / f64::from(count);
            assert!((found - expected).abs() <= 4.5 * deviation, "{sampler:?}, token {token}: {found} {expected}");
        }
    }
    Ok(())
}

#[test]
fn equal_logits_are_cut_to_as_many_as_asked_for() -> Result<()> {
    let logits = ops::full::<f32>(&[1, 8], Array::from_f32(-3.0))?;
    let left = |sampler: Sampler| -> Result<usize> {
        let state = sampler.start(0, &[[0]])?;
        let made = sampler.probabilities(&logits, &state)?;
        let left: Vec<f32> = made.as_slice::<f32>().iter().copied().filter(|&p| p > 0.0).collect();
        assert!(left.iter().all(|&p| (p * left.len() as f32 - 1.0).abs() < 1e-6), "{left:?}");
        Ok(left.len())
    };
    let warm = Sampler { temperature: 1.0, ..Sampler::default() };
    assert_eq!(left(Sampler { top_k: 3, ..warm.clone() })?, 3);
    assert_eq!(left(Sampler { top_p: 0.49, ..warm.clone() })?, 4);
    assert_eq!(left(Sampler { min_p: 1.0, ..warm.clone() })?, 8);
    assert_eq!(left(Sampler { top_k: 9, ..warm })?, 8);
    assert_eq!(left(Sampler::default())?, 1);
    Ok(())
}

#[test]
fn forbidden_tokens_are_never_drawn() -> Result<()> {
    let logits = ops::broadcast_to(rows(&[&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 0.0]]), &[500, 4])?;
    for top_k in [0, 3] {
        for top_p in [0.0, 0.999] {
            let sampler = Sampler { temperature: 50.0, top_k, top_p, ..Sampler::default() };
            let mut state = sampler.start(1, &[[0u32]; 500])?;
            let drawn = sampler.sample(&logits, &mut state)?;
            assert!(drawn.tokens.as_slice::<u32>().iter().all(|token| token % 2 == 1), "{sampler:?}");
            assert!(drawn.valid.as_slice::<bool>().iter().all(|&valid| valid));
        }
    }
    Ok(())
}

#[test]
fn the_coldest_temperature_draws_the_likeliest() -> Result<()> {
    let logits = random::normal::<f32>(&[40, 30], None, None, &random::key(5)?)?;
    let prompts = [[0u32]; 40];
    let cold = Sampler { temperature: f32::MIN_POSITIVE, ..Sampler::default() };
    let drawn = cold.sample(&logits, &mut cold.start(0, &prompts)?)?.tokens;
    let greedy = Sampler::default();
    let best = greedy.sample(&logits, &mut greedy.start(0, &prompts)?)?.tokens;
    assert_eq!(drawn.as_slice::<u32>(), best.as_slice::<u32>());
    Ok(())
}

#[test]
fn what_is_no_distribution_is_said_to_be_none() -> Result<()> {
    let (nan, less, more) = (f32::NAN, f32::NEG_INFINITY, f32::INFINITY);
    let logits = rows(&[&[0.0, nan, 1.0], &[less, less, less], &[0.0, 1.0, 2.0], &[less, 0.0, more], &[nan, nan, nan]]);
    let valid = [false, false, true, false, false];
    for temperature in [0.0, 1.0] {
        for (top_k, top_p, repetition_penalty) in [(0, 0.0, 1.0), (2, 0.0, 1.0), (0, 0.9, 2.0)] {
            let sampler = Sampler { temperature, top_k, top_p, repetition_penalty, ..Sampler::default() };
            let mut state = sampler.start(0, &[[1]; 5])?;
            let probabilities = sampler.probabilities(&logits, &state)?;
            let drawn = sampler.sample(&logits, &mut state)?;
            assert_eq!(drawn.valid.as_slice::<bool>(), valid, "{sampler:?}");
            assert!(drawn.tokens.as_slice::<u32>().iter().all(|&token| token < 3), "{sampler:?}");
            for (row, valid) in probabilities.as_slice::<f32>().chunks(3).zip(valid) {
                assert_eq!(row.iter().all(|p| p.is_nan()), !valid, "{sampler:?}: {row:?}");
            }
        }
    }
    // The largest of many is looked for in vectors.
    let mut long = vec![0.0f32; 1001];
    for at in [0, 7, 500, 1000] {
        long[at] = nan;
        let logits = Array::from_slice(&long, &[1, 1001]);
        let sampler = Sampler::default();
        let drawn = sampler.sample(&logits, &mut sampler.start(0, &[[0]])?)?;
        assert_eq!(drawn.valid.as_slice::<bool>(), [false]);
        long[at] = 0.0;
    }
    Ok(())
}

#[test]
fn a_compiled_step_draws_as_an_eager_one_and_is_traced_once() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let sampler = Sampler {
        temperature: 0.9,
        top_k: 20,
        top_p: 0.95,
        repetition_penalty: 1.2,
        repetition_window: 4,
        ..Sampler::default()
    };
    let mut draw = compile_with_state(denied(), |state: &mut SamplerState, logits: Array| {
        sampler.sample(&logits, state).map(|drawn| drawn.tokens)
    });
    let prompts = [[1u32, 2], [3, 4]];
    let (mut eager, mut compiled) = (sampler.start(5, &prompts)?, sampler.start(5, &prompts)?);
    let mut all = Vec::new();
    for seed in 0..8 {
        let logits = random::normal::<f32>(&[2, 40], None, None, &random::key(seed)?)?;
        let expected = sampler.sample(&logits, &mut eager)?.tokens;
        let made = draw.call(&mut compiled, &logits)?.dense()?;
        assert_eq!(made.as_slice::<u32>(), expected.as_slice::<u32>());
        all.extend_from_slice(made.as_slice::<u32>());
    }
    assert_eq!(draw.stats().traces, 1);
    let distinct: BTreeSet<u32> = all.iter().copied().collect();
    assert!(distinct.len() > 8, "{all:?}");
    Ok(())
}

#[test]
fn what_is_out_of_bounds_is_said() {
    let plain = Sampler::default;
    let messages: Vec<String> = [
        Sampler { temperature: -1.0, ..plain() },
        Sampler { temperature: f32::NAN, ..plain() },
        Sampler { top_p: 1.5, ..plain() },
        Sampler { min_p: -0.1, ..plain() },
        Sampler { repetition_penalty: -2.0, ..plain() },
        Sampler { repetition_penalty: 2.0, repetition_window: 0, ..plain() },
        Sampler { bias: BTreeMap::from([(3, f32::NAN)]), ..plain() },
    ]
    .into_iter()
    .map(|sampler| sampler.check().expect_err("it is out of bounds").to_string())
    .collect();
    expect![[r#"
        the temperature is -1
        help: give 0 for the likeliest token, or a positive number
        the temperature is NaN
        help: give 0 for the likeliest token, or a positive number
        top-p is 1.5
        help: give a probability, from 0 to 1
        min-p is -0.1
        help: give a probability, from 0 to 1
        the repetition penalty is -2
        help: give a positive number; 1 changes nothing
        a repetition penalty of 2 looks at no tokens
        help: give a `repetition_window` of at least 1, or a penalty of 1, which changes nothing
        the bias of token 3 is NaN
        help: give a number, or minus infinity to forbid the token"#]]
    .assert_eq(&messages.join("\n"));

    let (logits, long) = (rows(&[&[0.0, 1.0]]), Sampler { repetition_penalty: 2.0, ..plain() });
    let biased = Sampler { bias: BTreeMap::from([(2, 1.0)]), ..plain() };
    let of = |sampler: &Sampler, logits: &Array, prompts: &[[u32; 1]]| {
        let mut state = long.start(0, prompts).expect("a state");
        if sampler != &long {
            state = sampler.start(0, prompts).expect("a state");
        }
        sampler.sample(logits, &mut state).expect_err("it does not fit").to_string()
    };
    let one = Array::from_slice(&[0.0f32, 1.0], &[2]);
    let messages = [
        long.start(0, &[&[] as &[u32]]).expect_err("the prompt is empty").to_string(),
        of(&plain(), &one, &[[0]]),
        of(&biased, &logits, &[[0]]),
        of(&long, &logits, &[[0], [1]]),
    ];
    expect![[r#"
        a prompt is empty
        help: give at least one token, such as the one that begins a text
        tokens are drawn from logits of shape [2]
        help: give those of one position of each sequence, of shape [batch, vocabulary]
        token 2 has a bias, and the vocabulary has 2 tokens
        help: leave it out, or use the tokenizer of this model
        the state of a sampler is not that of 1 sequences with these options
        help: make it with `Sampler::start` of the same sampler, with as many prompts as there are sequences"#]]
    .assert_eq(&messages.join("\n"));
}

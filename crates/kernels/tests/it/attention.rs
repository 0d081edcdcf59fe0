//! Attention against its formula in `f64`, and products with groups against the products one by one.

use half::{bf16, f16};
use tacit_kernels::{
    Attention, Codes, Floats, Isa, KernelError, Mask, MaskValues, Matrix, Orientation, Scales, attention, dequantize,
    grouped_matmul, matmul, threads,
};

use crate::{
    random::Random,
    stored::{KINDS, Kind, SCALINGS, Scaling, Stored},
};

const HEAD: usize = 64;
const VALUE: usize = 96;

/// Some entries, which share keys and values, and what they attend to.
struct Case {
    of: Vec<usize>,
    queries: usize,
    tokens: usize,
    q: Vec<f32>,
    keys: Stored,
    values: Stored,
}

impl Case {
    fn new(kinds: [Kind; 2], scaling: Scaling, of: &[usize], queries: usize, tokens: usize) -> Self {
        let groups = of.iter().max().map_or(1, |most| most + 1);
        let stored = |kind, k| Stored::new(kind, scaling, true, 32, groups * tokens, k);
        let mut case = Self {
            of: of.to_vec(),
            queries,
            tokens,
            q: Random::new(5).normal(of.len() * queries * HEAD),
            keys: stored(kinds[0], HEAD),
            values: stored(kinds[1], VALUE),
        };
        // Scores of some units, whatever the format's codes stand for.
        let most = case.scores().into_iter().fold(0.0_f64, |most, score| most.max(score.abs()));
        case.q.iter_mut().for_each(|q| *q *= (8.0 / most) as f32);
        case
    }

    fn rows(&self) -> usize {
        self.of.len() * self.queries
    }

    fn scores(&self) -> Vec<f64> {
        let keys = dense(&self.keys.matrix());
        let mut scores = Vec::new();
        for row in 0..self.rows() {
            let q = &self.q[row * HEAD..][..HEAD];
            for token in 0..self.tokens {
                let key = &keys[(self.of[row / self.queries] * self.tokens + token) * HEAD..][..HEAD];
                scores.push(q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum());
            }
        }
        scores
    }

    /// By the formula: each result, and the sum of its terms' magnitudes. `masked` makes what the softmax sees of a score.
    fn expected(&self, masked: impl Fn(usize, usize, f64) -> f64) -> Vec<(f64, f64)> {
        let values = dense(&self.values.matrix());
        let scores = self.scores();
        let mut expected = Vec::new();
        for row in 0..self.rows() {
            let seen: Vec<f64> = (0..self.tokens).map(|t| masked(row, t, scores[row * self.tokens + t])).collect();
            let most = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = seen.iter().map(|score| (score - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for column in 0..VALUE {
                let terms = weights.iter().enumerate().map(|(token, weight)| {
                    let at = (self.of[row / self.queries] * self.tokens + token) * VALUE + column;
                    if *weight == 0.0 { 0.0 } else { weight / sum * f64::from(values[at]) }
                });
                let (mut total, mut size) = (0.0, 0.0);
                terms.for_each(|term| {
                    total += term;
                    size += term.abs();
                });
                expected.push((total, size));
            }
        }
        expected
    }

    fn run(&self, isa: Isa, mask: Option<Mask>) -> Vec<f32> {
        let mut out = vec![7.0; self.rows() * VALUE];
        isa.with(|| attention(&self.attention(mask), &mut out[..])).expect("runs");
        out
    }

    fn attention<'a>(&'a self, mask: Option<Mask<'a>>) -> Attention<'a> {
        Attention {
            q: Floats::F32(&self.q),
            queries: self.queries,
            indices: &self.of,
            keys: self.keys.matrix(),
            values: self.values.matrix(),
            tokens: self.tokens,
            mask,
        }
    }

    fn check(&self, mask: Option<Mask>, masked: impl Fn(usize, usize, f64) -> f64) {
        let expected = self.expected(masked);
        for isa in Isa::available() {
            for (at, (ours, (exact, size))) in self.run(isa, mask).iter().zip(&expected).enumerate() {
                let near = (f64::from(*ours) - exact).abs() <= 2e-5 * size + 1e-30;
                assert!(
                    near || (ours.is_nan() && exact.is_nan()),
                    "{isa:?} {:?} {} tokens {} at {at}: {ours} against {exact}",
                    self.of,
                    self.keys.describe(),
                    self.tokens
                );
            }
        }
    }
}

fn dense(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0.0; matrix.n * matrix.k];
    dequantize(matrix, &mut values[..]).expect("decodes");
    values
}

const NONE: fn(usize, usize, f64) -> f64 = |_, _, score| score;

#[test]
fn every_format_is_right() {
    for (i, kind) in KINDS.into_iter().enumerate() {
        let other = KINDS[(i + 3) % KINDS.len()];
        for scaling in SCALINGS {
            for (queries, tokens) in [(1, 40), (9, 5)] {
                Case::new([kind, other], scaling, &[0, 0, 1], queries, tokens).check(None, NONE);
            }
        }
    }
}

#[test]
fn every_number_of_tokens_and_queries_is_right() {
    for (of, queries, tokens) in [
        (&[0][..], 1, 1),
        (&[1, 0, 1], 2, 17),
        (&[0, 0, 1, 1], 1, 3000),
        (&[0, 0], 1, 5000),
        (&[0], 33, 700),
        (&[0, 0, 1, 1, 2, 2], 110, 530),
    ] {
        Case::new([KINDS[0], Kind::Unsigned(8)], Scaling::F32, of, queries, tokens).check(None, NONE);
    }
}

#[test]
fn masks_are_put_on_the_scores() {
    for (queries, tokens) in [(1, 2600), (3, 40), (30, 600)] {
        let case = Case::new([KINDS[0], Kind::Unsigned(4)], Scaling::Bf16, &[0, 0, 1, 1], queries, tokens);
        // The last query sees all tokens but the end, and each before it one less.
        let end = tokens - tokens / 3;
        let sees = |query: usize, token: usize| token + queries <= end + query;
        let visible: Vec<u8> = (0..queries * tokens).map(|i| u8::from(sees(i / tokens, i % tokens))).collect();
        let entries = [0; 4];
        for hidden in [f32::MIN, f32::NEG_INFINITY, -3.0] {
            let values = MaskValues::Visible { visible: &visible, hidden };
            let mask = Mask { values, entries: &entries, row: tokens, column: 1 };
            case.check(
                Some(mask),
                |row, token, score| {
                    if sees(row % queries, token) { score } else { f64::from(hidden) }
                },
            );
        }
        let one =
            [end.min(tokens) - 1, 0].map(|from| (0..tokens).map(|t| u8::from(t >= from)).collect::<Vec<_>>()).concat();
        let values = MaskValues::Visible { visible: &one, hidden: f32::MIN };
        let mask = Mask { values, entries: &[0, 0, tokens, tokens], row: 0, column: 1 };
        case.check(
            Some(mask),
            |row, token, score| {
                if row / queries > 1 || token + 1 >= end { score } else { f64::from(f32::MIN) }
            },
        );

        let added: Vec<f32> = Random::new(6).normal(4 * tokens);
        let values = MaskValues::Added(Floats::F32(&added));
        let places = [0, 1, 2, 3].map(|entry| entry * tokens);
        let mask = Mask { values, entries: &places, row: 0, column: 1 };
        case.check(Some(mask), |row, token, score| score + f64::from(added[row / queries * tokens + token]));

        let halves: Vec<f16> = visible.iter().map(|&v| if v == 1 { f16::ZERO } else { f16::NEG_INFINITY }).collect();
        let values = MaskValues::Added(Floats::F16(&halves));
        let mask = Mask { values, entries: &entries, row: tokens, column: 1 };
        case.check(Some(mask), |row, token, score| score + halves[row % queries * tokens + token].to_f64());

        // One number for all tokens of a query changes nothing.
        let each: Vec<bf16> = (0..queries).map(|i| bf16::from_f32(i as f32)).collect();
        let mask = Mask { values: MaskValues::Added(Floats::Bf16(&each)), entries: &entries, row: 1, column: 0 };
        case.check(Some(mask), NONE);
    }
}

/// A softmax of equal numbers is uniform, one of minus infinities NaN.
#[test]
fn a_query_that_sees_nothing_has_the_mean_of_all_values() {
    let case = Case::new([KINDS[0], KINDS[0]], Scaling::F32, &[0, 1], 3, 700);
    let mut visible = vec![0; 3 * 700];
    visible[..5].fill(1);
    for hidden in [f32::MIN, -65504.0, f32::NEG_INFINITY] {
        let values = MaskValues::Visible { visible: &visible, hidden };
        let mask = Mask { values, entries: &[0, 0], row: 700, column: 1 };
        case.check(Some(mask), |row, token, score| if row % 3 == 0 && token < 5 { score } else { f64::from(hidden) });
        if hidden > -1e5 {
            continue;
        }
        // Beside such numbers a score is rounded away.
        let added: Vec<f32> = visible.iter().map(|visible| if *visible == 1 { 0.0 } else { hidden }).collect();
        let mask = Mask { values: MaskValues::Added(Floats::F32(&added)), ..mask };
        case.check(Some(mask), |row, token, score| if row % 3 == 0 && token < 5 { score } else { f64::from(hidden) });
    }
}

#[test]
fn what_is_hidden_is_not_read() {
    let case = Case::new([KINDS[0], KINDS[0]], Scaling::F32, &[0], 2, 2000);
    let mut visible = vec![0; 2000];
    visible[700..900].fill(1);
    let values = MaskValues::Visible { visible: &visible, hidden: f32::MIN };
    let mask = Mask { values, entries: &[0], row: 0, column: 1 };
    let clean = case.run(Isa::detect(), Some(mask));
    let mut broken = case;
    for stored in [&mut broken.keys, &mut broken.values] {
        let per_token = stored.k / 32;
        let floats = &mut stored.scales.floats;
        floats[..700 * per_token].fill(f32::NAN);
        floats[900 * per_token..].fill(f32::NAN);
    }
    for isa in Isa::available() {
        let ours = broken.run(isa, Some(mask));
        assert!(ours.iter().zip(&clean).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs() + 1e-4), "{isa:?}");
    }
}

#[test]
fn nan_poisons_its_row_and_nothing_else() {
    for (queries, tokens) in [(2, 40), (2, 2500), (40, 600)] {
        let mut case = Case::new([KINDS[0], Kind::Signed], Scaling::F32, &[0, 0, 1], queries, tokens);
        case.q[HEAD + 3] = f32::NAN;
        for isa in Isa::available() {
            for (at, value) in case.run(isa, None).into_iter().enumerate() {
                assert_eq!(value.is_nan(), at / VALUE == 1, "{isa:?} {queries} {tokens} at {at}: {value}");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for (of, queries, tokens) in [(&[0, 0, 1][..], 1, 6000), (&[0, 1, 1], 210, 700), (&[0; 1], 4, 4200)] {
        let case = Case::new([KINDS[0], Kind::Unsigned(6)], Scaling::F16, of, queries, tokens);
        for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let one = threads::with_count(1, || case.run(isa, None));
            for count in [2, 3, 5] {
                assert!(one == threads::with_count(count, || case.run(isa, None)), "{isa:?} {queries} {tokens}");
            }
        }
    }
}

#[test]
fn half_queries_and_results_are_rounded_once() {
    let mut case = Case::new([KINDS[0], KINDS[0]], Scaling::F32, &[0, 1], 3, 50);
    let q: Vec<f16> = case.q.iter().map(|q| f16::from_f32(*q)).collect();
    case.q = q.iter().map(|q| q.to_f32()).collect();
    let expected = case.run(Isa::detect(), None);
    let mut out = vec![bf16::NAN; expected.len()];
    attention(&Attention { q: Floats::F16(&q), ..case.attention(None) }, &mut out[..]).expect("runs");
    assert!(out.iter().zip(&expected).all(|(out, value)| *out == bf16::from_f32(*value)));
}

#[test]
fn products_with_groups_are_those_with_each() {
    for (kind, scaling) in
        [(KINDS[0], Scaling::F32), (Kind::Unsigned(3), Scaling::Nested), (Kind::Signed, Scaling::F16)]
    {
        let (rows, k, of) = (40, 96, [2, 0, 0, 1, 2]);
        let stored = Stored::new(kind, scaling, true, 32, 3 * rows, k);
        let matrix = stored.matrix();
        let all = dense(&matrix);
        for m in [1, 3, 20] {
            for isa in Isa::available() {
                for (orientation, depth, columns) in [(Orientation::Transposed, k, rows), (Orientation::Plain, rows, k)]
                {
                    let x = Random::new(8).normal(of.len() * m * depth);
                    let mut out = vec![f32::NAN; of.len() * m * columns];
                    isa.with(|| grouped_matmul(&x[..], m, &of, &matrix, rows, orientation, &mut out[..]))
                        .expect("runs");
                    for (e, of) in of.into_iter().enumerate() {
                        let part = &all[of * rows * k..][..rows * k];
                        let codes: Vec<i8> = vec![1; rows * k];
                        let part = Matrix {
                            n: rows,
                            k,
                            codes: Codes::Signed { codes: &codes },
                            scales: Scales::F32(part),
                            biases: None,
                            block: 1,
                        };
                        let mut expected = vec![f32::NAN; m * columns];
                        matmul(&x[e * m * depth..][..m * depth], m, &part, orientation, &mut expected[..])
                            .expect("runs");
                        for (ours, exact) in out[e * m * columns..].iter().zip(&expected) {
                            assert!((ours - exact).abs() <= 1e-3 + 1e-4 * exact.abs(), "{isa:?} {m} {ours} {exact}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let case = Case::new([KINDS[0], KINDS[0]], Scaling::F32, &[0, 1], 1, 4);
    let mut out = vec![0.0; 2 * VALUE];
    let refused = |attention_: Attention, out: &mut [f32]| attention(&attention_, out).expect_err("does not fit");
    let given = case.attention(None);
    assert!(matches!(refused(Attention { tokens: 3, ..given }, &mut out), KernelError::Groups { .. }));
    assert!(matches!(refused(Attention { indices: &[0, 2], ..given }, &mut out), KernelError::RowRange { .. }));
    assert!(matches!(
        refused(Attention { q: Floats::F32(&case.q[1..]), ..given }, &mut out),
        KernelError::Length { .. }
    ));
    assert!(matches!(refused(given, &mut out[1..]), KernelError::Length { .. }));
    let values = MaskValues::Visible { visible: &[1; 3], hidden: 0.0 };
    let mask = Some(Mask { values, entries: &[0, 0], row: 0, column: 1 });
    assert!(matches!(refused(Attention { mask, ..given }, &mut out), KernelError::Length { .. }));
}

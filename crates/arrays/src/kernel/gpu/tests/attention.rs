//! Attention in every format, with every mask, by each of its methods.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::GpuBackend;

use super::{Sample, check, is_full, normal, on_cpu};
use crate::format::mx::ScaleRule;
use crate::format::{Affine, Bf16, E4m3, F16, Fp4, Granularity, Int8, Mxfp4, Mxfp8, Nf4, Nvfp4};
use crate::kernel::gpu::attention;
use crate::kernel::gpu::checks::avals;
use crate::kernel::gpu::source::Target;
use crate::kernel::tests::{Case, case};
use crate::kernel::{Attend, Groups, Hiding, StoredTokens};

/// Sequences of the samples.
const BATCH: i32 = 2;
const HEADS: i32 = 2;

/// Rows of queries that share keys: a head of keys has so many heads of queries, of so many queries each.
const ROWS: [[i32; 2]; 4] = [[1, 1], [4, 1], [3, 5], [2, 40]];

const TOKENS: [i32; 5] = [300, 1, 31, 32, 33];

type Made = fn(usize, usize) -> Case;

/// Formats of keys and values, and how long these are.
const FORMATS: [(Made, Made, usize, usize); 10] = [
    (|n, k| case(&Nf4::from(64), n, k), |n, k| case(&Affine { bits: 8, group: 64 }, n, k), 64, 128),
    (|n, k| case(&Affine { bits: 4, group: 32 }, n, k), |n, k| case(&Nf4::from(64), n, k), 128, 64),
    (|n, k| case(&F16, n, k), |n, k| case(&Bf16, n, k), 80, 80),
    (|n, k| case(&Bf16, n, k), |n, k| case(&F16, n, k), 64, 64),
    (|n, k| case(&Int8 { granularity: Granularity::Block(k) }, n, k), |n, k| case(&E4m3 { block: k }, n, k), 80, 80),
    (|n, k| case(&Mxfp8 { rule: ScaleRule::Ceil }, n, k), |n, k| case(&Mxfp4 { rule: ScaleRule::Ceil }, n, k), 96, 32),
    (|n, k| case(&Nvfp4::default(), n, k), |n, k| case(&Fp4::from(32), n, k), 128, 288),
    (|n, k| case(&Affine { bits: 3, group: 32 }, n, k), |n, k| case(&Affine { bits: 6, group: 32 }, n, k), 64, 96),
    (|n, k| case(&F16, n, k), |n, k| case(&Bf16, n, k), 37, 21),
    (|n, k| case(&E4m3 { block: k }, n, k), |n, k| case(&Mxfp8 { rule: ScaleRule::Ceil }, n, k), 512, 512),
];

/// Types of the queries, and what a product may be rounded to.
const DTYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

#[derive(Clone, Copy, Debug)]
enum Mask {
    Nothing,
    /// Which tokens are visible to each query; what is hidden has a finite score.
    Causal,
    /// A window with a sink, in which what is hidden has minus infinity.
    Window,
    /// What each sequence has; nothing at all for the last one.
    Padding {
        hidden: f32,
    },
    /// Numbers for each query and token.
    Added(Dtype),
    /// The same for every head, with tokens that are hidden by minus infinity, or by a finite number from all.
    Biases {
        hidden: f32,
    },
    /// One number for each query.
    Column,
}

const MASKS: [Mask; 11] = [
    Mask::Causal,
    Mask::Nothing,
    Mask::Window,
    Mask::Added(Dtype::Float32),
    Mask::Padding { hidden: -1e30 },
    Mask::Added(Dtype::Float16),
    Mask::Padding { hidden: f32::NEG_INFINITY },
    Mask::Biases { hidden: f32::NEG_INFINITY },
    Mask::Added(Dtype::Bfloat16),
    Mask::Biases { hidden: -3e38 },
    Mask::Column,
];

impl Mask {
    /// The inputs, and what they are.
    fn inputs(self, [batch, heads, m, tokens]: [i32; 4]) -> (Option<Hiding>, Vec<Array>) {
        let last = tokens - m;
        let visible = |sees: &dyn Fn(i32, i32) -> bool| {
            let bits: Vec<bool> =
                (0..m).flat_map(|q| (0..tokens).map(move |t| (q, t))).map(|(q, t)| sees(q, t)).collect();
            Array::from_slice(&bits, &[1, 1, m, tokens])
        };
        let replaced = |visible: Array, hidden: f32| (true, vec![visible, Array::from_f32(hidden)]);
        let (replaces, inputs) = match self {
            Self::Nothing => return (None, Vec::new()),
            Self::Causal => replaced(visible(&|q, t| t <= last + q), -1e30),
            Self::Window => replaced(visible(&|q, t| t <= last + q && (t > last + q - 7 || t < 2)), f32::NEG_INFINITY),
            Self::Padding { hidden } => {
                let bits: Vec<bool> = (0..batch * tokens).map(|at| at < tokens && at > tokens / 3).collect();
                replaced(Array::from_slice(&bits, &[batch, 1, 1, tokens]), hidden)
            }
            Self::Added(dtype) => {
                (false, vec![normal(8, &[batch, heads, m, tokens]).as_dtype(dtype).expect("a float type")])
            }
            Self::Biases { hidden } => {
                let all_hidden = hidden.is_finite();
                let of = |at: i32| if all_hidden || at % 3 == 0 { hidden } else { (at as f32).sin() };
                (false, vec![Array::from_iter((0..tokens).map(of), &[1, 1, 1, tokens])])
            }
            Self::Column => (false, vec![normal(9, &[1, heads, m, 1])]),
        };
        let hiding = Hiding { replaces, shape: inputs[0].shape().to_vec(), scores: vec![batch, heads, m, tokens] };
        (Some(hiding), inputs)
    }
}

/// What sums may differ by, as in the tests of the CPU's attention.
fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Bfloat16 => 3e-2,
        Dtype::Float16 => 6e-3,
        _ => 2e-5,
    }
}

#[derive(Clone, Copy)]
struct Spec {
    batch: i32,
    format: usize,
    rows: usize,
    types: usize,
    tokens: i32,
    mask: Mask,
}

fn sample(spec: Spec, target: Target) -> Sample {
    let Spec { batch, format, rows, types, tokens, mask } = spec;
    let (keys, values, head, width) = FORMATS[format];
    let ([repeats, m], dtype) = (ROWS[rows], DTYPES[types]);
    let matrices = batch * HEADS;
    let [keys, values] =
        [keys(matrices as usize * tokens as usize, head), values(matrices as usize * tokens as usize, width)];
    let heads = HEADS * repeats;
    let scale = Array::from_f32((head as f32).sqrt().recip());
    let q =
        normal(7, &[batch * heads * m, head as i32]).multiply(scale).and_then(|q| q.as_dtype(dtype)).expect("queries");
    let (hiding, hidden) = mask.inputs([batch, heads, m, tokens]);
    let attend = Attend {
        keys: StoredTokens { layout: keys.layout, children: keys.children.len() },
        values: StoredTokens { layout: values.layout, children: values.children.len() },
        groups: Groups {
            matrices: (0..batch * heads).map(|entry| (entry / repeats) as usize).collect(),
            rows: tokens as usize,
        },
        hiding,
    };
    let inputs = [vec![q], hidden, keys.children, values.children].concat();
    let parts = attention(&attend, &avals(&inputs), target).expect("has a source");
    let tolerance = tolerance(dtype);
    Sample { parts, inputs, dtype, tolerance, expected: Box::new(move |inputs| on_cpu(attend.clone(), inputs)) }
}

/// Each way and mask once for all numbers of tokens, and each format and type with each way; `TACIT_SWEEP=full` asks for all.
pub(super) fn samples(is_full: bool, target: Target) -> Vec<Sample> {
    let mut all = Vec::new();
    for rows in 0..ROWS.len() {
        for (at, mask) in MASKS.into_iter().enumerate() {
            let tokens =
                TOKENS.into_iter().enumerate().filter(|(turn, _)| is_full || *turn == 0 || at % 4 + 1 == *turn);
            let spec = |tokens| Spec { batch: BATCH, format: 0, rows, types: at % 2, tokens, mask };
            all.extend(tokens.map(|(_, tokens)| sample(spec(tokens), target)));
        }
        for format in 1..FORMATS.len() {
            for types in (0..DTYPES.len()).filter(|types| is_full || *types == (format + rows) % DTYPES.len()) {
                let mask = MASKS[(format * 5 + rows * 3 + types) % MASKS.len()];
                let spec = |tokens| Spec { batch: BATCH, format, rows, types, tokens, mask };
                all.extend([TOKENS[0], TOKENS[1 + format % 4]].map(|tokens| sample(spec(tokens), target)));
            }
        }
    }
    all
}

/// Samples of which a GPU has so many that a group takes several rows.
pub(super) fn large_samples(target: Target) -> Vec<Sample> {
    let spec = |rows, format| Spec { batch: 64, format, rows, types: 1, tokens: 1, mask: MASKS[format] };
    [(1, 0), (1, 9), (2, 0), (2, 2), (2, 6)].map(|(rows, format)| sample(spec(rows, format), target)).into()
}

#[test]
fn attention_gives_what_that_of_a_cpu_gives() {
    check("attention", |target| samples(is_full(), target));
}

/// Queries of which none sees the last 30 of 100 tokens, whose keys and values are NaN.
fn sample_with_nan(m: i32, replaces: bool, hidden: f32, target: Target) -> Sample {
    let (tokens, seen, head) = (100, 70, 64);
    let Case { layout, children } = case(&F16, tokens, head);
    children[0].eval().expect("evaluates");
    let mut codes = children[0].as_slice::<u16>().to_vec();
    codes[seen * head..].fill(half::f16::NAN.to_bits());
    let stored = Array::from_slice(&codes, &[tokens as i32, head as i32]);
    let shape = [1, 1, 1, tokens as i32];
    let mask = if replaces {
        let visible: Vec<bool> = (0..tokens).map(|token| token < seen).collect();
        vec![Array::from_slice(&visible, &shape), Array::from_f32(hidden)]
    } else {
        let added: Vec<f32> = (0..tokens).map(|token| if token < seen { 0.0 } else { hidden }).collect();
        vec![Array::from_slice(&added, &shape)]
    };
    let side = StoredTokens { layout, children: 1 };
    let attend = Attend {
        keys: side.clone(),
        values: side,
        groups: Groups { matrices: vec![0], rows: tokens },
        hiding: Some(Hiding { replaces, shape: shape.to_vec(), scores: vec![1, 1, m, tokens as i32] }),
    };
    let q = normal(7, &[m, head as i32]).multiply(Array::from_f32(0.125)).expect("queries");
    let inputs = [vec![q], mask, vec![stored.clone(), stored]].concat();
    let parts = attention(&attend, &avals(&inputs), target).expect("has a source");
    let (dtype, expected) = (Dtype::Float32, Box::new(move |inputs: &[Array]| on_cpu(attend.clone(), inputs)));
    Sample { parts, inputs, dtype, tolerance: tolerance(dtype), expected }
}

#[test]
fn what_no_query_sees_may_hold_nan() {
    let hiding = [(true, -1e30), (true, f32::NEG_INFINITY), (false, -1e31), (false, f32::NEG_INFINITY)];
    check("attention_hidden", |target| {
        // One row of queries at a time, four, and a tile of them.
        let rows = [1, 16, 40].into_iter();
        rows.flat_map(|m| hiding.map(|(replaces, hidden)| sample_with_nan(m, replaces, hidden, target))).collect()
    });
}

#[test]
fn a_group_of_metal_takes_fewer_rows_of_wide_heads() {
    let spec = Spec { batch: 64, format: 9, rows: 1, types: 1, tokens: 1, mask: Mask::Nothing };
    let [cuda, metal] = [GpuBackend::Cuda, GpuBackend::Metal].map(|backend| sample(spec, backend.into()).parts.label);
    assert!(cuda.ends_with("few4") && metal.ends_with("few2"), "{cuda} {metal}");
}

#[test]
fn what_no_group_has_room_for_has_no_source() {
    let target = Target::Host;
    let of = |tokens: usize, width: usize| {
        let Case { layout, children } = case(&F16, tokens, width);
        let side = StoredTokens { layout, children: 1 };
        let groups = Groups { matrices: vec![0], rows: tokens };
        let attend = Attend { keys: side.clone(), values: side, groups, hiding: None };
        let q = ops::ones::<f32>(&[1, width as i32]).expect("ones");
        attention(&attend, &avals(&[vec![q], children.clone(), children].concat()), target).is_some()
    };
    assert!(of(3, 512));
    assert!(!of(3, 520));
}

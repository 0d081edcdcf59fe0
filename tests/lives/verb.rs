//! What may happen to a model.

use mlx_rs::Dtype;
use proptest::prelude::*;
use proptest::sample::select;
use tacit::model::{Method, ParameterFilter};

#[derive(Clone, Debug)]
pub(crate) enum Verb {
    Quantize { pattern: &'static str, format: &'static str },
    Prepare { pattern: &'static str, format: &'static str, scales: bool, int8: bool },
    Convert,
    Switch(bool),
    Lora { pattern: &'static str, method: Method, stored: Option<&'static str>, dropout: bool },
    Merge(Option<&'static str>),
    MergeAndBack(Option<&'static str>),
    Without,
    Sets { chosen: u32 },
    Freeze(bool),
    Cast { pattern: &'static str, dtype: Dtype },
    Hold,
    Int8(&'static str),
    Set { path: &'static str, good: bool },
    Replace { fails_at: usize },
    Fail,
    Step { trained: Trained, compiled: bool },
    Observe { pattern: &'static str, format: &'static str, awq: bool },
    Leaves { good: bool },
    Saved,
    SavedRun(Trained),
    TornRun(Trained),
    Tie,
    Training(bool),
    Thread,
    Compile,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Trained {
    Default,
    All,
    Dense,
    Lora,
    Scales,
    Masters,
}

impl Trained {
    pub(crate) fn filter(self) -> ParameterFilter {
        match self {
            Self::Default => ParameterFilter::default(),
            Self::All => ParameterFilter::All,
            Self::Dense => ParameterFilter::Dense,
            Self::Lora => ParameterFilter::Lora,
            Self::Scales => ParameterFilter::Scales,
            Self::Masters => ParameterFilter::Masters,
        }
    }
}

const PATTERNS: &[&str] =
    &["*", "*.weight", "up.*", "down.weight", "embedding.weight", "head.weight", "up.bias", "no.*"];
const FORMATS: &[&str] = &[
    "nf4:64",
    "nf4:32+double",
    "affine:4:64",
    "affine:8:32",
    "affine:2:64",
    "int8:64",
    "fp4:64",
    "mxfp4",
    "nvfp4",
    "binary:64",
    "bf16",
    "nf4:100",
    "f4",
];

fn trained() -> impl Strategy<Value = Trained> {
    select(&[Trained::Default, Trained::All, Trained::Dense, Trained::Lora, Trained::Scales, Trained::Masters][..])
}

pub(crate) fn verb() -> impl Strategy<Value = Verb> {
    let (pattern, format) = (|| select(PATTERNS), || select(FORMATS));
    let stored = || proptest::option::of(format());
    let method = select(&[Method::Lora, Method::Dora, Method::QaLora][..]);
    let dtype = select(&[Dtype::Bfloat16, Dtype::Float16, Dtype::Float32][..]);
    let path = select(&["up.weight", "down.weight", "norm.weight", "head.weight", "no"][..]);
    prop_oneof![
        3 => (pattern(), format()).prop_map(|(pattern, format)| Verb::Quantize { pattern, format }),
        3 => (pattern(), format(), any::<bool>(), any::<bool>())
            .prop_map(|(pattern, format, scales, int8)| Verb::Prepare { pattern, format, scales, int8 }),
        2 => Just(Verb::Convert),
        1 => any::<bool>().prop_map(Verb::Switch),
        4 => (pattern(), method, stored(), any::<bool>())
            .prop_map(|(pattern, method, stored, dropout)| Verb::Lora { pattern, method, stored, dropout }),
        2 => stored().prop_map(Verb::Merge),
        2 => stored().prop_map(Verb::MergeAndBack),
        1 => Just(Verb::Without),
        1 => (0u32..4).prop_map(|chosen| Verb::Sets { chosen }),
        1 => any::<bool>().prop_map(Verb::Freeze),
        1 => (pattern(), dtype).prop_map(|(pattern, dtype)| Verb::Cast { pattern, dtype }),
        1 => Just(Verb::Hold),
        1 => pattern().prop_map(Verb::Int8),
        1 => (path, any::<bool>()).prop_map(|(path, good)| Verb::Set { path, good }),
        1 => (0usize..4).prop_map(|fails_at| Verb::Replace { fails_at }),
        1 => Just(Verb::Fail),
        3 => (trained(), any::<bool>()).prop_map(|(trained, compiled)| Verb::Step { trained, compiled }),
        2 => (pattern(), format(), any::<bool>()).prop_map(|(pattern, format, awq)| Verb::Observe { pattern, format, awq }),
        1 => any::<bool>().prop_map(|good| Verb::Leaves { good }),
        2 => Just(Verb::Saved),
        2 => trained().prop_map(Verb::SavedRun),
        1 => trained().prop_map(Verb::TornRun),
        1 => Just(Verb::Tie),
        1 => any::<bool>().prop_map(Verb::Training),
        1 => Just(Verb::Thread),
        1 => Just(Verb::Compile),
    ]
}

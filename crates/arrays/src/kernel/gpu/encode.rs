//! Floats to codes, on a GPU: by scales of their own or by given ones, to nearest or at random.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::rule::Rule;
use super::source::{Parts, Target, float, size};
use super::sum::Sum;
use super::weight::{short, word};
use crate::kernel::sum::Read;
use crate::kernel::{Encoding, Scheme};

pub(super) const THREADS: usize = 256;

/// Elements of a group, unless a block has more: eight for each thread.
pub(super) const CHUNK: usize = 8 * THREADS;

/// Blocks of a group at most, as `encode.h` has it.
pub(super) const MOST_BLOCKS: usize = 128;

/// A longer block is one group's alone, which would take longer than the plain ops of all of them.
pub(super) const LONGEST: usize = 1 << 20;

/// The same of a block whose mean is summed: in the order of the CPU, which 16 threads follow.
const LONGEST_SUM: usize = 1 << 14;

/// The launch of [`quantize`](crate::kernel::quantize), of `x`, and of what NVFP4's scales are relative to.
///
/// Codes, scales and biases are bit for bit those of the CPU's kernel, which refuses NaN and infinities: a GPU codes them as the
/// decomposition does. Metal may take a subnormal number for zero. None where there is nothing to code, where the decomposition
/// says what is wrong, and for blocks so long that the decomposition is faster.
pub(crate) fn quantize(scheme: &Scheme, block: usize, inputs: &[Aval], target: Target) -> Option<Parts> {
    if matches!(scheme.encoding, Encoding::Rounded) {
        return halves(scheme, inputs, target);
    }
    let names = ["x", "global"].get(..inputs.len())?;
    let shape = &inputs.first()?.shape;
    Encode { scheme, block, shape, inputs, names, results: results(scheme), sum: None }.parts("quantize", target)
}

/// The launch of the kernel that quantizes a sum without building it, of what makes up the sum and, before its base, of what
/// NVFP4's scales are relative to. As [`quantize`].
pub(crate) fn quantize_sum(
    scheme: &Scheme,
    block: usize,
    read: &Read,
    inputs: &[Aval],
    target: Target,
) -> Option<Parts> {
    let names: &[_] = if scheme.is_relative() { &["global"] } else { &[] };
    let sum = Sum::new(read, names, inputs)?;
    let shape = &[size(read.n)?, size(read.k)?];
    let names = sum.names.clone();
    Encode { scheme, block, shape, inputs, names: &names, results: results(scheme), sum: Some(sum) }
        .parts("quantize_sum", target)
}

fn results(scheme: &Scheme) -> &'static [&'static str] {
    &["codes", "scales", "biases"][..if scheme.biased { 3 } else { 2 }]
}

/// The launch of [`encode_by`](crate::kernel::encode_by), of `x` and what its blocks store. As [`quantize`]; blocks may be of any
/// length.
pub(crate) fn encode_by(scheme: &Scheme, block: usize, inputs: &[Aval], target: Target) -> Option<Parts> {
    let names = if scheme.is_relative() { ["x", "scales", "global"] } else { ["x", "scales", "biases"] };
    let names = names.get(..inputs.len())?;
    let shape = &inputs.first()?.shape;
    Encode { scheme, block, shape, inputs, names, results: &["codes"], sum: None }.parts("encode_by", target)
}

/// The launch of [`draw`](crate::kernel::draw), of `x`, the key, and the scales and biases of its blocks in `f32`. As
/// [`encode_by`].
pub(crate) fn draw(scheme: &Scheme, block: usize, inputs: &[Aval], target: Target) -> Option<Parts> {
    if scheme.half().is_some() {
        return halves(scheme, inputs, target);
    }
    let names = ["x", "key", "scales", "biases"].get(..inputs.len()).filter(|names| names.len() > 2)?;
    let shape = &inputs.first()?.shape;
    Encode { scheme, block, shape, inputs, names, results: &["codes"], sum: None }.parts("draw", target)
}

/// Half floats that are stored as they are: the nearest ones, or such as a key draws.
fn halves(scheme: &Scheme, inputs: &[Aval], target: Target) -> Option<Parts> {
    let (x, key) = inputs.split_first()?;
    let (kind, half) = (float(x.dtype)?, float(scheme.half()?)?);
    let x_at = format!("(const TACIT_DEVICE {kind}*)x");
    let (what, call) = match key {
        [] => ("quantize", format!("round_to_halves<{half}>({x_at}, (TACIT_DEVICE {half}*)codes")),
        [key] if is_key(key) => {
            let key = "(const TACIT_DEVICE tacit::u32*)key";
            ("draw", format!("draw_halves<{half}>({x_at}, {key}, (TACIT_DEVICE tacit::u16*)codes"))
        }
        _ => return None,
    };
    let groups = x.size().div_ceil(CHUNK);
    if groups == 0 {
        return None;
    }
    Some(Parts {
        label: format!("{what}_{}_{}", word(scheme.label), short(x.dtype)),
        common: if key.is_empty() { TEXTS.to_vec() } else { [&TEXTS[..], &[DRAW]].concat() },
        description: String::new(),
        body: format!("  tacit::{call}, (tacit::u64)sizes_shape[0] * 8 + sizes_shape[1], at, {THREADS});\n"),
        inputs: ["x", "key"][..inputs.len()].iter().map(|&name| name.to_owned()).collect(),
        outputs: vec!["codes".to_owned()],
        sizes: vec![size(x.size() / 8)?, size(x.size() % 8)?],
        groups: [groups, 1, 1],
        threads: THREADS,
        memory: 0,
        target,
    })
}

fn is_key(aval: &Aval) -> bool {
    (aval.dtype, aval.size()) == (Dtype::Uint32, 2)
}

const TEXTS: [&str; 3] =
    [include_str!("source/wide_sum.h"), include_str!("source/encode_rules.h"), include_str!("source/encode.h")];

const DRAW: &str = include_str!("source/draw.h");

struct Encode<'a> {
    scheme: &'a Scheme,
    block: usize,
    shape: &'a [i32],
    inputs: &'a [Aval],
    /// The names of the first inputs, which those of a stored base follow.
    names: &'a [&'static str],
    results: &'a [&'static str],
    sum: Option<Sum<'a>>,
}

impl Encode<'_> {
    fn is_given(&self) -> bool {
        self.names.contains(&"scales")
    }

    fn is_drawn(&self) -> bool {
        self.names.contains(&"key")
    }

    fn sums(&self) -> bool {
        matches!(self.scheme.encoding, Encoding::Ternary | Encoding::Binary) && !self.is_given()
    }

    /// Where the kernel of a CPU would find the blocks.
    fn fits(&self, elements: usize) -> bool {
        let whole = self.shape.last().is_some_and(|&last| (last as usize).is_multiple_of(self.block));
        let longest = if self.sums() { LONGEST_SUM } else { LONGEST };
        let is_short = self.is_given() || self.block.min(elements) <= longest;
        (!self.scheme.is_grouped() || whole) && is_short
    }

    fn parts(&self, what: &str, target: Target) -> Option<Parts> {
        let elements: usize = self.shape.iter().map(|&extent| extent as usize).product();
        let x = self.inputs.first()?;
        if self.block == 0 || elements == 0 || !self.fits(elements) {
            return None;
        }
        let block = if self.block > LONGEST { self.block.min(elements) } else { self.block };
        let blocks = elements.div_ceil(block);
        let each = self.blocks_of_a_group(block);
        let groups = blocks.div_ceil(each);
        size(groups * THREADS)?;
        // A block of another length would make one text for each shape: the kernel is told of it when it runs.
        let known = if block.is_power_of_two() { block } else { 0 };
        let has_biases = self.names.contains(&"biases");
        let mut rule = if self.is_drawn() { Rule::drawn(self.scheme, has_biases) } else { Rule::nearest(self.scheme) }?;
        for (name, value) in [
            ("IS_GIVEN", usize::from(self.is_given())),
            ("IS_SUM", usize::from(self.sum.is_some())),
            ("BLOCK", known),
            ("EIGHTS", usize::from(block.is_multiple_of(8))),
            ("TEAM", team(block)),
        ] {
            let _ = writeln!(rule.fields, "  TACIT_STATIC {name} = {};", size(value)?);
        }
        self.pointers(&mut rule, blocks)?;
        let sum = self.sum.as_ref();
        let meeting = if self.sums() { ("tacit::u64", 16 * MOST_BLOCKS) } else { ("float", 2 * THREADS / 32) };
        let body = format!(
            "  enum {{ THREADS = {THREADS} }};\n{}  Encode e;\n{}  e.blocks = sizes_shape[0];\n  e.block = sizes_shape[1];\n  \
             e.each = sizes_shape[2];\n  e.last = sizes_shape[3];\n  \
             TACIT_GROUP_ARRAY(float, tacit_coders, 2 * tacit::MOST_BLOCKS);\n  \
             TACIT_GROUP_ARRAY({}, tacit_meeting, {});\n  tacit::encode(e, at, THREADS, tacit_meeting, tacit_coders);\n",
            sum.map_or("", Sum::bind),
            rule.statements,
            meeting.0,
            meeting.1
        );
        let named = || self.names.iter().map(|&name| name.to_owned()).collect();
        let [k, rank] = sum.map_or([0, 0], Sum::sizes);
        let sizes = [blocks, block, each, elements - (blocks - 1) * block, k, rank];
        Some(Parts {
            label: format!(
                "{what}_{}_b{known}_{}",
                word(self.scheme.label),
                sum.map_or(short(x.dtype), |sum| &sum.label)
            ),
            common: TEXTS
                .into_iter()
                .chain(sum.map(|_| include_str!("source/sum.h")))
                .chain(self.is_drawn().then_some(DRAW))
                .collect(),
            description: format!("{}{}struct Encode {{\n{}}};\n", sum.map_or("", Sum::text), rule.tables, rule.fields),
            body,
            inputs: sum.map_or_else(named, Sum::inputs),
            outputs: self.results.iter().map(|&name| name.to_owned()).collect(),
            sizes: sizes.into_iter().map(size).collect::<Option<_>>()?,
            groups: [groups, 1, 1],
            threads: THREADS,
            memory: 0,
            target,
        })
    }

    /// Whole blocks with codes in whole bytes.
    fn blocks_of_a_group(&self, block: usize) -> usize {
        let least = if block.is_multiple_of(8) || self.scheme.bits() == 8 { 1 } else { 8 };
        ((CHUNK / block).min(MOST_BLOCKS) / least * least).max(least)
    }

    /// What is read and written of so many blocks.
    fn pointers(&self, rule: &mut Rule, blocks: usize) -> Option<()> {
        for (&name, aval) in self.names.iter().zip(self.inputs) {
            match name {
                "x" => rule.pointer("const ", float(aval.dtype)?, name),
                "left" | "right" | "factors" | "base" => {}
                "key" if is_key(aval) => rule.pointer("const ", "tacit::u32", name),
                "key" => return None,
                _ => rule.coding_input(name, aval, blocks)?,
            }
        }
        let given_biases = !self.is_given() || self.names.contains(&"biases");
        if self.scheme.biased && !given_biases {
            return None;
        }
        for &name in self.results {
            let kind = if name == "codes" { "tacit::u8" } else { rule.stored() };
            rule.pointer("", kind, name);
        }
        match &self.sum {
            Some(sum) => {
                rule.fields += &sum.fields;
                rule.statements += &sum.statements;
            }
            None => rule.statements += "  e.aligned = Encode::EIGHTS && tacit::is_aligned(e.x);\n",
        }
        rule.fields += "  bool aligned;\n  tacit::u32 blocks, block, each, last;\n";
        Some(())
    }
}

/// Threads that find together what a block stores.
pub(super) fn team(block: usize) -> usize {
    if block > CHUNK / 2 { THREADS } else { block.div_ceil(8).next_power_of_two().min(32) }
}

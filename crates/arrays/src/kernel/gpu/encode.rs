//! Floats as codes, on a GPU: by the scales that their blocks get, or by scales that are there.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_kernels::{ScaleRule, fp4, nearest::Table, nf4, ternary};

use super::source::{Parts, Target, float, size};
use super::sum::Sum;
use super::weight::{short, word};
use crate::kernel::sum::Read;
use crate::kernel::{Encoding, Scheme};

pub(super) const THREADS: usize = 256;

/// Elements of a group, unless a block has more: eight for each thread.
const CHUNK: usize = 8 * THREADS;

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
        return rounded(scheme, inputs, target);
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
    let own: &[_] = if scheme.is_relative() { &["global"] } else { &[] };
    let sum = Sum::new(read, own, inputs)?;
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

/// Half floats that are stored as they are.
fn rounded(scheme: &Scheme, inputs: &[Aval], target: Target) -> Option<Parts> {
    let [x] = inputs else { return None };
    let (kind, half) = (float(x.dtype)?, float(scheme.half()?)?);
    let groups = x.size().div_ceil(CHUNK);
    if groups == 0 {
        return None;
    }
    Some(Parts {
        label: format!("quantize_{}_{}", word(scheme.label), short(x.dtype)),
        common: TEXTS.to_vec(),
        description: String::new(),
        body: format!(
            "  tacit::round_to_halves<{half}>((const TACIT_DEVICE {kind}*)x, (TACIT_DEVICE {half}*)codes, \
             (tacit::u64)sizes_shape[0] * 8 + sizes_shape[1], at, {THREADS});\n"
        ),
        inputs: vec!["x".to_owned()],
        outputs: vec!["codes".to_owned()],
        sizes: vec![size(x.size() / 8)?, size(x.size() % 8)?],
        groups: [groups, 1, 1],
        threads: THREADS,
        memory: 0,
        target,
    })
}

const TEXTS: [&str; 3] =
    [include_str!("source/wide_sum.h"), include_str!("source/encode_rules.h"), include_str!("source/encode.h")];

/// What is coded.
struct Encode<'a> {
    scheme: &'a Scheme,
    block: usize,
    /// The shape of the elements.
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
        let mut text = Text::of(self.scheme)?;
        for (name, value) in [
            ("BITS", self.scheme.bits()),
            ("IS_GIVEN", usize::from(self.is_given())),
            ("IS_SUM", usize::from(self.sum.is_some())),
            ("BLOCK", known),
            ("EIGHTS", usize::from(block.is_multiple_of(8))),
            ("TEAM", team(block)),
        ] {
            let _ = writeln!(text.fields, "  TACIT_STATIC {name} = {};", size(value)?);
        }
        self.pointers(&mut text, blocks)?;
        let sum = self.sum.as_ref();
        let meeting = if self.sums() { ("tacit::u64", 16 * MOST_BLOCKS) } else { ("float", 2 * THREADS / 32) };
        let body = format!(
            "  enum {{ THREADS = {THREADS} }};\n{}  Encode e;\n{}  e.blocks = sizes_shape[0];\n  e.block = sizes_shape[1];\n  \
             e.each = sizes_shape[2];\n  e.last = sizes_shape[3];\n  \
             TACIT_GROUP_ARRAY(float, tacit_coders, 2 * tacit::MOST_BLOCKS);\n  \
             TACIT_GROUP_ARRAY({}, tacit_meeting, {});\n  tacit::encode(e, at, THREADS, tacit_meeting, tacit_coders);\n",
            sum.map_or("", Sum::bind),
            text.statements,
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
            common: TEXTS.into_iter().chain(sum.map(|_| include_str!("source/sum.h"))).collect(),
            description: format!("{}{}struct Encode {{\n{}}};\n", sum.map_or("", Sum::text), text.tables, text.fields),
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

    /// What is read and written of so many blocks, and the factor of NVFP4's scales.
    fn pointers(&self, text: &mut Text, blocks: usize) -> Option<()> {
        let bytes = text.storage == "BYTES";
        let stored = if bytes { "tacit::u8" } else { "float" };
        let needed = if bytes { Dtype::Uint8 } else { Dtype::Float32 };
        for (&name, aval) in self.names.iter().zip(self.inputs) {
            match name {
                "x" => text.pointer("const ", float(aval.dtype)?, name),
                "left" | "right" | "factors" | "base" => {}
                "global" if aval.dtype != Dtype::Float32 || aval.size() == 0 => return None,
                "global" => {
                    text.statements +=
                        "  e.factor = global[0] == 0.0f ? 0.0f : tacit::exact_div(2688.0f, global[0]);\n";
                }
                _ if (aval.dtype, aval.size()) == (needed, blocks) => text.pointer("const ", stored, name),
                _ => return None,
            }
        }
        if !self.names.contains(&"global") {
            text.statements += "  e.factor = 1.0f;\n";
        }
        let given_biases = !self.is_given() || self.names.contains(&"biases");
        if self.scheme.biased && !given_biases {
            return None;
        }
        for &name in self.results {
            text.pointer("", if name == "codes" { "tacit::u8" } else { stored }, name);
        }
        match &self.sum {
            Some(sum) => {
                text.fields += &sum.fields;
                text.statements += &sum.statements;
            }
            None => text.statements += "  e.aligned = Encode::EIGHTS && tacit::is_aligned(e.x);\n",
        }
        text.fields += "  bool aligned;\n  tacit::u32 blocks, block, each, last;\n  float factor;\n";
        Some(())
    }
}

/// Threads that find together what a block stores.
pub(super) fn team(block: usize) -> usize {
    if block > CHUNK / 2 { THREADS } else { block.div_ceil(8).next_power_of_two().min(32) }
}

/// The rule of a format as the text has it.
struct Text {
    tables: String,
    fields: String,
    statements: String,
    storage: &'static str,
}

impl Text {
    fn of(scheme: &Scheme) -> Option<Self> {
        let mut text =
            Self { tables: String::new(), fields: String::new(), statements: String::new(), storage: "FLOATS" };
        let (mut powers, mut is_high_first, mut padding) = ("CEIL_POWERS", false, 0);
        let powers_of = |rule| match rule {
            ScaleRule::Ceil => "CEIL_POWERS",
            ScaleRule::Round => "ROUND_POWERS",
            ScaleRule::Floor => "FLOOR_POWERS",
        };
        let rule = match scheme.encoding {
            Encoding::Nearest => {
                let table = Table::new(scheme.table()?).ok()?;
                text.nearest(table.thresholds(), table.by_rank(), table.top());
                "NEAREST_RULE"
            }
            Encoding::Nf4 => {
                text.nearest(&nf4::THRESHOLDS, &std::array::from_fn::<u8, 16, _>(|rank| rank as u8), 1.0);
                (is_high_first, padding) = (true, nf4::PADDING);
                "NEAREST_RULE"
            }
            Encoding::Fp4 => {
                let table = Table::new(&fp4::CODEBOOK).ok()?;
                text.nearest(table.thresholds(), table.by_rank(), 1.0);
                is_high_first = true;
                "NEAREST_RULE"
            }
            Encoding::Affine => {
                text.storage = "LINES";
                "AFFINE_RULE"
            }
            Encoding::Symmetric => "SYMMETRIC_RULE",
            Encoding::Int8 => "INT8_RULE",
            Encoding::Mxfp4(rule) => {
                (text.storage, powers) = ("BYTES", powers_of(rule));
                "MXFP4_RULE"
            }
            Encoding::Mxfp8(rule) => {
                (text.storage, powers) = ("BYTES", powers_of(rule));
                "MXFP8_RULE"
            }
            Encoding::Nvfp4 { .. } => {
                text.storage = "BYTES";
                "NVFP4_RULE"
            }
            Encoding::Ternary => {
                padding = ternary::PADDING;
                "TERNARY_RULE"
            }
            Encoding::Binary => "BINARY_RULE",
            Encoding::Rounded => return None,
        };
        for (name, value) in [("RULE", rule), ("STORAGE", text.storage), ("POWERS", powers)] {
            let _ = writeln!(text.fields, "  TACIT_STATIC {name} = tacit::{value};");
        }
        for (name, value) in [("HIGH_FIRST", u8::from(is_high_first)), ("PADDING", padding)] {
            let _ = writeln!(text.fields, "  TACIT_STATIC {name} = {value};");
        }
        Some(text)
    }

    fn pointer(&mut self, access: &str, kind: &str, name: &str) {
        let _ = writeln!(self.fields, "  {access}TACIT_DEVICE {kind}* {name};");
        let _ = writeln!(self.statements, "  e.{name} = ({access}TACIT_DEVICE {kind}*){name};");
    }

    /// The method that finds the code of the nearest value. Up to sixteen are compared with one after the other, by thresholds in
    /// the text; of more, thresholds are halved in the memory of the group.
    fn nearest(&mut self, thresholds: &[f32], by_rank: &[u8], top: f32) {
        let bits = |value: &f32| format!("0x{:08x}u", value.to_bits());
        let _ = writeln!(self.fields, "  TACIT_FN float top() const {{ return tacit::from_bits({}); }}", bits(&top));
        let body = if by_rank.len() <= 16 {
            let above: Vec<String> =
                thresholds.iter().map(|at| format!("(x > tacit::from_bits({}))", bits(at))).collect();
            let codes = by_rank.iter().rev().fold(0_u64, |codes, &code| codes << 4 | u64::from(code));
            format!(
                "tacit::u32 rank = {}; return (tacit::u32)((tacit::u64)0x{codes:x} >> (4 * rank)) & 15;",
                above.join(" + ")
            )
        } else {
            let mut all = [f32::INFINITY; 255];
            all[..thresholds.len()].copy_from_slice(thresholds);
            let thresholds: Vec<String> = all.iter().map(bits).collect();
            let codes: Vec<String> = by_rank.iter().map(u8::to_string).collect();
            for (name, values) in [("tacit_thresholds", thresholds), ("tacit_by_rank", codes)] {
                let _ = writeln!(self.tables, "TACIT_TABLE({name}, {}) = {{{}}};", values.len(), values.join(", "));
            }
            self.fields += "  const TACIT_GROUP float* thresholds;\n";
            self.statements += "  TACIT_GROUP_ARRAY(float, tacit_far, 255);\n  \
                                for (tacit::u32 i = at.id; i < 255; i += THREADS) tacit_far[i] = \
                                tacit::from_bits(tacit_thresholds[i]);\n  e.thresholds = tacit_far;\n";
            "return tacit_by_rank[tacit::far_rank(thresholds, x)];".to_owned()
        };
        let _ = writeln!(self.fields, "  TACIT_FN tacit::u32 nearest(float x) const {{ {body} }}");
    }
}

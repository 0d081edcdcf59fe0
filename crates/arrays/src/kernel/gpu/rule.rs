//! How elements become codes, in the text of a kernel.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_kernels::{Order, ScaleRule, nf4};

use crate::kernel::{Encoding, Scheme};

/// The rule of a format as the text has it: members of what codes elements, and statements that fill those of `e` in.
pub(super) struct Rule {
    pub tables: String,
    pub fields: String,
    pub statements: String,
    storage: &'static str,
}

impl Rule {
    /// To the nearest value. None where codes are half floats.
    pub(super) fn nearest(scheme: &Scheme) -> Option<Self> {
        let powers_of = |rule| match rule {
            ScaleRule::Ceil => "CEIL_POWERS",
            ScaleRule::Round => "ROUND_POWERS",
            ScaleRule::Floor => "FLOOR_POWERS",
        };
        let (name, storage, powers) = match scheme.encoding {
            Encoding::Nearest | Encoding::Nf4 | Encoding::Fp4 => ("NEAREST_RULE", "FLOATS", None),
            Encoding::Reaching => ("REACH_RULE", "FLOATS", None),
            Encoding::Affine => ("AFFINE_RULE", "LINES", None),
            Encoding::Symmetric => ("SYMMETRIC_RULE", "FLOATS", None),
            Encoding::Int8 => ("INT8_RULE", "FLOATS", None),
            Encoding::Mxfp4(rule) => ("MXFP4_RULE", "BYTES", Some(powers_of(rule))),
            Encoding::Mxfp8(rule) => ("MXFP8_RULE", "BYTES", Some(powers_of(rule))),
            Encoding::Nvfp4 { .. } => ("NVFP4_RULE", "BYTES", None),
            Encoding::Ternary => ("TERNARY_RULE", "FLOATS", None),
            Encoding::Binary => ("BINARY_RULE", "FLOATS", None),
            Encoding::Rounded => return None,
        };
        let mut rule = Self::new(name, storage, scheme);
        let _ = writeln!(rule.fields, "  TACIT_STATIC POWERS = tacit::{};", powers.unwrap_or("CEIL_POWERS"));
        match scheme.encoding {
            Encoding::Nearest | Encoding::Reaching | Encoding::Fp4 => {
                let table = scheme.nearest().ok()?;
                rule.looks_up(table.thresholds(), table.by_rank(), table.ends());
            }
            Encoding::Nf4 => {
                rule.looks_up(&nf4::THRESHOLDS, &std::array::from_fn::<u8, 16, _>(|rank| rank as u8), [-1.0, 1.0]);
            }
            _ => {}
        }
        Some(rule)
    }

    /// To one of the two values around an element, in units of a float for each block, with a bias or without one.
    pub(super) fn drawn(scheme: &Scheme, is_biased: bool) -> Option<Self> {
        let levels = scheme.levels().ok()?;
        let mut rule = Self::new("DRAWN_RULE", if is_biased { "LINES" } else { "FLOATS" }, scheme);
        rule.ranks(levels.thresholds(), levels.codes());
        rule.values(scheme)?;
        Some(rule)
    }

    fn new(name: &str, storage: &'static str, scheme: &Scheme) -> Self {
        let mut fields = format!("  TACIT_STATIC RULE = tacit::{name};\n  TACIT_STATIC STORAGE = tacit::{storage};\n");
        let is_high_first = scheme.order() == Order::HighFirst;
        for (name, value) in
            [("BITS", scheme.bits()), ("HIGH_FIRST", usize::from(is_high_first)), ("PADDING", scheme.padding().into())]
        {
            let _ = writeln!(fields, "  TACIT_STATIC {name} = {value};");
        }
        fields += "  float factor;\n";
        Self { tables: String::new(), fields, statements: "  e.factor = 1.0f;\n".to_owned(), storage }
    }

    pub(super) fn is_of_bytes(&self) -> bool {
        self.storage == "BYTES"
    }

    /// The type of what a block stores.
    pub(super) fn stored(&self) -> &'static str {
        if self.is_of_bytes() { "tacit::u8" } else { "float" }
    }

    pub(super) fn pointer(&mut self, access: &str, kind: &str, name: &str) {
        let _ = writeln!(self.fields, "  {access}TACIT_DEVICE {kind}* {name};");
        let _ = writeln!(self.statements, "  e.{name} = ({access}TACIT_DEVICE {kind}*){name};");
    }

    /// An input by which elements are coded: so many `scales` or `biases`, or `global`, what NVFP4's scales are relative to. None
    /// where it has another length or dtype.
    pub(super) fn coding_input(&mut self, name: &str, aval: &Aval, count: usize) -> Option<()> {
        if name == "global" {
            self.statements += "  e.factor = global[0] == 0.0f ? 0.0f : tacit::exact_div(2688.0f, global[0]);\n";
            return (aval.dtype == Dtype::Float32 && aval.size() > 0).then_some(());
        }
        let dtype = if self.is_of_bytes() { Dtype::Uint8 } else { Dtype::Float32 };
        self.pointer("const ", self.stored(), name);
        ((aval.dtype, aval.size()) == (dtype, count)).then_some(())
    }

    /// The method that gives the value of a code, in units of the scale.
    pub(super) fn values(&mut self, scheme: &Scheme) -> Option<()> {
        let values = scheme.values()?;
        self.table("tacit_by_code", &values.into_iter().map(bits).collect::<Vec<_>>());
        self.fields +=
            "  TACIT_FN float decoded(tacit::u32 code) const { return tacit::from_bits(tacit_by_code[code]); }\n";
        Some(())
    }

    /// The methods that find the code of the nearest value, and the values of the outermost elements.
    fn looks_up(&mut self, thresholds: &[f32], by_rank: &[u8], ends: [f32; 2]) {
        self.ranks(thresholds, by_rank);
        for (name, end) in ["bottom", "top"].into_iter().zip(ends) {
            let _ =
                writeln!(self.fields, "  TACIT_FN float {name}() const {{ return tacit::from_bits({}); }}", bits(end));
        }
        self.fields += "  TACIT_FN tacit::u32 nearest(float x) const { return code_of(rank_of(x)); }\n";
    }

    /// The methods that find how many thresholds a number is greater than, and the code of that rank. Up to fifteen are compared
    /// with one after the other, by thresholds in the text; of more, thresholds are halved in the memory of the group.
    fn ranks(&mut self, thresholds: &[f32], by_rank: &[u8]) {
        let rank = if thresholds.len() < 16 {
            let above = thresholds.iter().map(|&at| format!("(tacit::u32)(x > tacit::from_bits({}))", bits(at)));
            std::iter::once("0u".to_owned()).chain(above).collect::<Vec<_>>().join(" + ")
        } else {
            let mut padded = [f32::INFINITY; 255];
            padded[..thresholds.len()].copy_from_slice(thresholds);
            self.table("tacit_thresholds", &padded.map(bits));
            self.fields += "  const TACIT_GROUP float* thresholds;\n";
            self.statements += "  TACIT_GROUP_ARRAY(float, tacit_far, 255);\n  \
                                for (tacit::u32 i = at.id; i < 255; i += THREADS) tacit_far[i] = \
                                tacit::from_bits(tacit_thresholds[i]);\n  e.thresholds = tacit_far;\n";
            "tacit::far_rank(thresholds, x)".to_owned()
        };
        let code = if by_rank.len() <= 16 && by_rank.iter().all(|&code| code < 16) {
            let codes = by_rank.iter().rev().fold(0_u64, |codes, &code| codes << 4 | u64::from(code));
            format!("(tacit::u32)((tacit::u64)0x{codes:x} >> (4 * rank)) & 15")
        } else {
            self.table("tacit_by_rank", &by_rank.iter().map(u8::to_string).collect::<Vec<_>>());
            "tacit_by_rank[rank]".to_owned()
        };
        let _ = writeln!(
            self.fields,
            "  TACIT_FN tacit::u32 rank_of(float x) const {{ return {rank}; }}\n  TACIT_FN tacit::u32 code_of(tacit::u32 rank) const {{ \
             return {code}; }}"
        );
    }

    fn table(&mut self, name: &str, entries: &[String]) {
        let _ = writeln!(self.tables, "TACIT_TABLE({name}, {}) = {{{}}};", entries.len(), entries.join(", "));
    }
}

/// A float by its bits, since text has no infinities.
fn bits(value: f32) -> String {
    format!("0x{:08x}u", value.to_bits())
}

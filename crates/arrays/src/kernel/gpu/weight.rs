//! The description of a stored matrix in the text of a kernel.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_kernels::{Order, dynamic8};

use super::source::{float, size};
use crate::kernel::{Coding, Layout, Scaling};

/// A stored matrix as the text has it.
pub(super) struct Weight {
    /// `struct Weight` and its tables.
    pub text: String,
    /// Statements that make `w` of the parameters, with the table in the memory of the group.
    pub bind: String,
    /// The names of the children's parameters.
    pub inputs: Vec<String>,
    /// What it is, for a name.
    pub label: String,
    /// Elements of a block, which the kernel is told of.
    pub block: usize,
    /// Elements that share a scale, counted from a multiple of them: 64 at most.
    pub span: usize,
}

impl Weight {
    /// The description for these children. None where the kernels would refuse them, or a length does not fit 32 bits; the
    /// decomposition says what is wrong then.
    pub(super) fn new(layout: &Layout, children: &[Aval]) -> Option<Self> {
        let (scheme, numbers) = (&layout.scheme, children.get(1..)?);
        let block = if scheme.is_scaled() { layout.block } else { UNSCALED };
        let table = Table::of(&scheme.coding);
        let mut writer = Writer { label: format!("{}_b{}", word(scheme.label), layout.block), ..Writer::default() };
        if let Some(values) = &table.values {
            writer.table("tacit_values", "entry_bits", values);
        }
        writer.field("codes", "tacit::u8");
        let numbers = writer.scales(scheme.scaling, numbers)?;
        if writer.names.len() != children.len() {
            return None;
        }
        let span = [64, 32, 16, 8].into_iter().find(|span| block.is_multiple_of(*span)).unwrap_or(1);
        // A block of another length would make one text for each shape: the kernel is told of it when it runs.
        let known = if block.is_power_of_two() { block } else { 0 };
        for (name, value) in [
            ("BITS", scheme.bits()),
            ("HIGH_FIRST", usize::from(table.is_high_first)),
            ("BLOCK", known),
            ("SPAN", span),
            ("NESTED", numbers.nested),
            ("BIASED", usize::from(numbers.is_biased)),
            ("ENTRIES", table.entries),
            ("REPLICAS", table.replicas),
        ] {
            let _ = writeln!(writer.fields, "  TACIT_STATIC {name} = {};", size(value)?);
        }
        let _ = writeln!(writer.fields, "  TACIT_STATIC CODING = tacit::{};", table.coding);
        let _ = writeln!(writer.fields, "  TACIT_STATIC SCALING = tacit::{};", numbers.scaling);
        writer.fields += "  tacit::u32 block, lane;\n  const TACIT_GROUP float* table;\n";
        let Writer { tables, fields, statements, names, label } = writer;
        let staged = match table.entries * table.replicas {
            0 => "  w.table = 0;\n  w.lane = 0;\n".to_owned(),
            staged => format!(
                "  TACIT_GROUP_ARRAY(float, tacit_staged, {staged});\n  w.table = tacit_staged;\n  w.lane = at.lane % {} * 4;\n  \
                 tacit::stage_table(w, tacit_staged, at.id, THREADS);\n  TACIT_BARRIER();\n",
                table.replicas
            ),
        };
        Some(Self {
            text: format!("{tables}struct Weight {{\n{fields}}};\n"),
            bind: format!("  Weight w;\n{statements}  w.block = sizes_shape[7];\n{staged}"),
            inputs: names.into_iter().map(str::to_owned).collect(),
            label,
            block,
            span,
        })
    }
}

/// The length of a block where no scales are stored: any will do.
const UNSCALED: usize = 1 << 15;

/// What the text is put together from.
#[derive(Default)]
struct Writer {
    tables: String,
    fields: String,
    statements: String,
    names: Vec<&'static str>,
    label: String,
}

/// What a block's numbers are, as the text has it.
struct Numbers {
    scaling: &'static str,
    is_biased: bool,
    /// Scales that share a scale.
    nested: usize,
}

impl Writer {
    /// A child that is read element by element.
    fn field(&mut self, name: &'static str, kind: &str) {
        self.names.push(name);
        let _ = writeln!(self.fields, "  const TACIT_DEVICE {kind}* {name};");
        let _ = writeln!(self.statements, "  w.{name} = (const TACIT_DEVICE {kind}*){name};");
    }

    /// A number that all blocks share.
    fn scalar(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.fields, "  float {name};");
        let _ = writeln!(self.statements, "  w.{name} = {value};");
    }

    /// A table of floats by their bits, since text has no infinities, and the method that reads it.
    fn table(&mut self, name: &str, method: &str, values: &[f32]) {
        let bits: Vec<String> = values.iter().map(|value| format!("0x{:08x}u", value.to_bits())).collect();
        let _ = writeln!(self.tables, "TACIT_TABLE({name}, {}) = {{{}}};", values.len(), bits.join(", "));
        let _ =
            writeln!(self.fields, "  TACIT_FN tacit::u32 {method}(tacit::u32 code) const {{ return {name}[code]; }}");
    }

    /// The children that follow the codes.
    fn scales(&mut self, scaling: Scaling, children: &[Aval]) -> Option<Numbers> {
        let numbers = |scaling| Numbers { scaling, is_biased: false, nested: 1 };
        Some(match (scaling, children) {
            (Scaling::One, []) => numbers("NO_SCALES"),
            (Scaling::Float, [scales, rest @ ..]) => {
                self.field("scales", float(scales.dtype)?);
                if let Some(biases) = rest.first() {
                    self.field("biases", float(biases.dtype)?);
                }
                let _ = write!(self.label, "_{}", short(scales.dtype));
                Numbers { is_biased: !rest.is_empty(), ..numbers("FLOAT_SCALES") }
            }
            (Scaling::E8m0, [_]) => {
                self.field("scales", "tacit::u8");
                numbers("E8M0_SCALES")
            }
            (Scaling::E4m3, [_, rest @ ..]) => {
                self.field("scales", "tacit::u8");
                self.names.extend(rest.first().map(|_| "factor"));
                self.scalar("factor", if rest.is_empty() { "1.0f" } else { "factor[0]" });
                numbers("E4M3_SCALES")
            }
            (Scaling::Nested { block }, [_, _, _]) => {
                self.field("scales", "tacit::u8");
                self.field("absmax", "float");
                self.names.push("offset");
                self.scalar("offset", "offset[0]");
                self.table("tacit_map", "map_bits", dynamic8::map());
                let _ = write!(self.label, "_nested{block}");
                Numbers { nested: block, ..numbers("NESTED_SCALES") }
            }
            (Scaling::Integers { block }, [_, _, _, _]) => {
                for (codes, units) in [("scales", "units"), ("bias_codes", "bias_units")] {
                    self.field(codes, "tacit::i8");
                    self.field(units, "float");
                }
                let _ = write!(self.label, "_integers{block}");
                Numbers { is_biased: true, nested: block, ..numbers("INTEGER_SCALES") }
            }
            _ => return None,
        })
    }
}

/// The codes of a format, and the table that they are looked up in, if there is one.
struct Table {
    coding: &'static str,
    is_high_first: bool,
    values: Option<Vec<f32>>,
    entries: usize,
    replicas: usize,
}

impl Table {
    fn of(coding: &Coding) -> Self {
        let plain = |coding| Self { coding, is_high_first: false, values: None, entries: 0, replicas: 1 };
        match coding {
            Coding::Table { bits, order, values } => {
                let entries = 1 << bits;
                let values = Some(values[..entries].to_vec());
                // Each lane has a bank to itself. Codes of 3 bits are one stream in either order.
                let is_high_first = *order == Order::HighFirst && *bits != 3;
                Self { coding: "TABLE_CODES", is_high_first, values, entries, replicas: 32 }
            }
            Coding::Bytes { values } => {
                Self { values: Some(values.to_vec()), entries: 256, replicas: 4, ..plain("TABLE_CODES") }
            }
            Coding::E4m3 => Self { entries: 256, replicas: 4, ..plain("E4M3_CODES") },
            Coding::Unsigned { .. } => plain("UNSIGNED_CODES"),
            Coding::Signed => plain("SIGNED_CODES"),
            Coding::F16 => plain("F16_CODES"),
            Coding::Bf16 => plain("BF16_CODES"),
        }
    }
}

/// A label as part of a name in the text.
pub(super) fn word(label: &str) -> String {
    label.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

/// A float type as part of a name.
pub(super) fn short(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float16 => "f16",
        Dtype::Bfloat16 => "bf16",
        _ => "f32",
    }
}

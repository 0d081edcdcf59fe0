//! The description of a stored matrix in the text of a kernel.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_kernels::{Order, code_bytes, dynamic8};

use super::source::{float, size};
use crate::kernel::{Coding, Layout, Scaling};

/// How the text calls a matrix.
#[derive(Clone, Copy)]
pub(super) struct Called {
    /// Its type.
    pub kind: &'static str,
    /// The variable.
    pub variable: &'static str,
    /// What its parameters and tables begin with.
    pub prefix: &'static str,
    /// Whether the length of its blocks is part of the text in any case.
    pub is_fixed: bool,
}

const ONLY: Called = Called { kind: "Weight", variable: "w", prefix: "", is_fixed: false };

/// A stored matrix as the text has it.
pub(super) struct Weight {
    /// Its type and its tables.
    pub text: String,
    /// Statements that make its variable of the parameters, with the table in the memory of the group.
    pub bind: String,
    /// The names of the children's parameters.
    pub inputs: Vec<String>,
    /// What it is, for a name.
    pub label: String,
    /// Elements of a block, which the kernel is told of.
    pub block: usize,
    /// Elements that share a scale, counted from a multiple of them: 64 at most.
    pub span: usize,
    /// Bytes of the table that codes are looked up in, in the memory of the group; 0 where there is none.
    pub table: usize,
}

impl Weight {
    /// The description for these children. None where the kernels of a CPU would refuse their lengths or dtypes, since a GPU
    /// would read beyond them, or a length does not fit 32 bits; the decomposition says what is wrong then.
    pub(super) fn new(layout: &Layout, children: &[Aval]) -> Option<Self> {
        Self::called(ONLY, layout, children)
    }

    /// The same by other names.
    pub(super) fn called(called: Called, layout: &Layout, children: &[Aval]) -> Option<Self> {
        let Called { kind, variable, prefix, is_fixed } = called;
        let (scheme, (codes, numbers)) = (&layout.scheme, children.split_first()?);
        let block = if scheme.is_scaled() { layout.block } else { UNSCALED };
        let elements = layout.n.checked_mul(layout.k)?;
        let is_stored = match scheme.coding {
            Coding::Signed => codes.dtype == Dtype::Int8,
            Coding::F16 | Coding::Bf16 => codes.dtype == Dtype::Uint16,
            _ => true,
        };
        if !is_stored || codes.nbytes() != code_bytes(elements, scheme.bits() as u32) {
            return None;
        }
        let table = Table::new(&scheme.coding);
        let label = format!("{}_b{}", word(scheme.label), layout.block);
        let [tables, fields, statements] = [const { String::new() }; 3];
        let mut writer = Writer { called, tables, fields, statements, names: Vec::new(), label };
        if let Some(values) = &table.values {
            writer.table("tacit_values", "entry_bits", values);
        }
        writer.pointer("codes", "tacit::u8");
        let numbers = writer.scales(scheme.scaling, groups(elements, block)?, numbers)?;
        if writer.names.len() != children.len() {
            return None;
        }
        let span = [64, 32, 16, 8].into_iter().find(|span| block.is_multiple_of(*span)).unwrap_or(1);
        // A block of another length would make one text for each shape: the kernel is told of it when it runs.
        let known = if is_fixed || block.is_power_of_two() { block } else { 0 };
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
        let Writer { tables, fields, statements, names, label, .. } = writer;
        let staged = match table.entries * table.replicas {
            0 => format!("  {variable}.table = 0;\n  {variable}.lane = 0;\n"),
            staged => format!(
                "  TACIT_GROUP_ARRAY(float, {prefix}tacit_staged, {staged});\n  {variable}.table = {prefix}tacit_staged;\n  \
                 {variable}.lane = at.lane % {} * 4;\n  tacit::stage_table({variable}, {prefix}tacit_staged, at.id, THREADS);\n  \
                 TACIT_BARRIER();\n",
                table.replicas
            ),
        };
        let block_of = if is_fixed { known.to_string() } else { "sizes_shape[7]".to_owned() };
        Some(Self {
            text: format!("{tables}struct {kind} {{\n{fields}}};\n"),
            bind: format!("  {kind} {variable};\n{statements}  {variable}.block = {block_of};\n{staged}"),
            inputs: names.into_iter().map(|name| format!("{prefix}{name}")).collect(),
            label,
            block,
            span,
            table: 4 * table.entries * table.replicas,
        })
    }
}

/// The length of a block where no scales are stored: any will do.
const UNSCALED: usize = 1 << 15;

/// How many groups of so many numbers there are, the last of which may be short.
fn groups(numbers: usize, each: usize) -> Option<usize> {
    (each > 0).then(|| numbers.div_ceil(each))
}

struct Writer {
    called: Called,
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
    /// A child that is read element by element, if it has so many of this type.
    fn field(&mut self, name: &'static str, kind: &str, child: &Aval, length: usize) -> Option<()> {
        let stored = match child.dtype {
            Dtype::Uint8 => Some("tacit::u8"),
            Dtype::Int8 => Some("tacit::i8"),
            dtype => float(dtype),
        };
        (stored == Some(kind) && child.size() == length).then(|| self.pointer(name, kind))
    }

    fn pointer(&mut self, name: &'static str, kind: &str) {
        self.names.push(name);
        let _ = writeln!(self.fields, "  const TACIT_DEVICE {kind}* {name};");
        let Called { variable, prefix, .. } = self.called;
        let _ = writeln!(self.statements, "  {variable}.{name} = (const TACIT_DEVICE {kind}*){prefix}{name};");
    }

    /// A number that all blocks share: the child's, if it has one, or 1 where there is no child.
    fn scalar(&mut self, name: &'static str, child: Option<&Aval>) -> Option<()> {
        let mut value = "1.0f".to_owned();
        if let Some(child) = child {
            if child.dtype != Dtype::Float32 || child.size() == 0 {
                return None;
            }
            value = format!("{}{name}[0]", self.called.prefix);
            self.names.push(name);
        }
        let _ = writeln!(self.fields, "  float {name};");
        let _ = writeln!(self.statements, "  {}.{name} = {value};", self.called.variable);
        Some(())
    }

    /// A table of floats by their bits, since text has no infinities, and the method that reads it.
    fn table(&mut self, name: &str, method: &str, values: &[f32]) {
        let bits: Vec<String> = values.iter().map(|value| format!("0x{:08x}u", value.to_bits())).collect();
        let name = format!("{}{name}", self.called.prefix);
        let _ = writeln!(self.tables, "TACIT_TABLE({name}, {}) = {{{}}};", values.len(), bits.join(", "));
        let _ =
            writeln!(self.fields, "  TACIT_FN tacit::u32 {method}(tacit::u32 code) const {{ return {name}[code]; }}");
    }

    /// The children that follow the codes of so many blocks.
    fn scales(&mut self, scaling: Scaling, blocks: usize, children: &[Aval]) -> Option<Numbers> {
        let numbers = |scaling| Numbers { scaling, is_biased: false, nested: 1 };
        Some(match (scaling, children) {
            (Scaling::One, []) => numbers("NO_SCALES"),
            (Scaling::Float, [scales, rest @ ..]) => {
                self.field("scales", float(scales.dtype)?, scales, blocks)?;
                if let Some(biases) = rest.first() {
                    self.field("biases", float(biases.dtype)?, biases, blocks)?;
                }
                let _ = write!(self.label, "_{}", short(scales.dtype));
                Numbers { is_biased: !rest.is_empty(), ..numbers("FLOAT_SCALES") }
            }
            (Scaling::E8m0, [scales]) => {
                self.field("scales", "tacit::u8", scales, blocks)?;
                numbers("E8M0_SCALES")
            }
            (Scaling::E4m3, [scales, rest @ ..]) => {
                self.field("scales", "tacit::u8", scales, blocks)?;
                self.scalar("factor", rest.first())?;
                numbers("E4M3_SCALES")
            }
            (Scaling::Nested { block }, [scales, absmax, offset]) => {
                self.field("scales", "tacit::u8", scales, blocks)?;
                self.field("absmax", "float", absmax, groups(blocks, block)?)?;
                self.scalar("offset", Some(offset))?;
                self.table("tacit_map", "map_bits", dynamic8::map());
                let _ = write!(self.label, "_nested{block}");
                Numbers { nested: block, ..numbers("NESTED_SCALES") }
            }
            (Scaling::Integers { block }, [scales, units, rest @ ..]) => {
                let units_of = groups(blocks, block)?;
                self.field("scales", "tacit::i8", scales, blocks)?;
                self.field("units", "float", units, units_of)?;
                if let [biases, bias_units] = rest {
                    self.field("bias_codes", "tacit::i8", biases, blocks)?;
                    self.field("bias_units", "float", bias_units, units_of)?;
                }
                let _ = write!(self.label, "_integers{block}");
                Numbers { is_biased: !rest.is_empty(), nested: block, ..numbers("INTEGER_SCALES") }
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
    fn new(coding: &Coding) -> Self {
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
            Coding::Offset { .. } => plain("OFFSET_CODES"),
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

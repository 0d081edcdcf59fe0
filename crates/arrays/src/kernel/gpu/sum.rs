//! The sum of a matrix and a thin product, never built, on a GPU: elements of it in a kernel, and its norms by rows.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::source::{Parts, Target, float, size};
use super::weight::{Called, Weight, short};
use crate::kernel::Measure;
use crate::kernel::sum::Read;

pub(super) struct Sum<'a> {
    read: &'a Read,
    /// The base, unless it is dense.
    base: Option<Weight>,
    /// The names of the first inputs, which those of a stored base follow.
    pub names: Vec<&'static str>,
    /// What the base is, for a name.
    pub label: String,
    /// Members of what reads the sum, and statements that fill those of `e` in.
    pub fields: String,
    pub statements: String,
}

const BASE: Called = Called { kind: "Base", variable: "base", prefix: "base_", is_fixed: true };

impl<'a> Sum<'a> {
    /// The sum of these inputs, of which `own` come before the base. None where the kernel of a CPU would refuse them.
    pub(super) fn new(read: &'a Read, own: &[&'static str], inputs: &[Aval]) -> Option<Self> {
        let factors: &[_] = if read.factors { &["factors"] } else { &[] };
        let names = [&["left", "right"][..], factors, own].concat();
        let children = inputs.get(names.len()..)?;
        let base = read.layout.as_ref().map(|layout| Weight::called(BASE, layout, children));
        let label = String::new();
        let [fields, statements] = [const { String::new() }; 2];
        let mut sum = Self { read, base: None, names, label, fields, statements };
        let elements = read.n.checked_mul(read.k)?;
        let lengths = [("left", read.n * read.rank), ("right", read.rank * read.k), ("factors", read.n)];
        for ((name, length), aval) in lengths.into_iter().zip(&inputs[..read.inputs_of_sum()]) {
            if (aval.dtype, aval.size()) != (Dtype::Float32, length) {
                return None;
            }
            sum.pointer("float", name);
        }
        let in_base = read.layout.map_or_else(|| children.first().map_or(0, Aval::size), |layout| layout.n * layout.k);
        if in_base != elements {
            return None;
        }
        if let Some(base) = base {
            let base = base?;
            sum.label.clone_from(&base.label);
            sum.fields += "  Base base;\n";
            sum.statements += "  e.base = base;\n";
            sum.base = Some(base);
        } else {
            let [dense] = children else { return None };
            short(dense.dtype).clone_into(&mut sum.label);
            sum.pointer(float(dense.dtype)?, "base");
            sum.names.push("base");
        }
        sum.describe();
        Some(sum)
    }

    fn pointer(&mut self, kind: &str, name: &str) {
        let _ = writeln!(self.fields, "  const TACIT_DEVICE {kind}* {name};");
        let _ = writeln!(self.statements, "  e.{name} = (const TACIT_DEVICE {kind}*){name};");
    }

    /// How `sum.h` reads it.
    fn describe(&mut self) {
        let element = if self.base.is_some() { "tacit::element(base, at)" } else { "tacit::to_float(base[at])" };
        let factor = if self.read.factors { "factors[row]" } else { "1.0f" };
        let _ = write!(
            self.fields,
            "  tacit::u32 k, rank;\n  TACIT_STATIC IS_SCALED = {};\n  TACIT_FN float base_at(tacit::u64 at) const {{ return {element}; \
             }}\n  TACIT_FN float factor_of(tacit::u64 row) const {{ return {factor}; }}\n",
            usize::from(self.read.factors)
        );
        self.statements += "  e.k = sizes_shape[4];\n  e.rank = sizes_shape[5];\n";
    }

    pub(super) fn text(&self) -> &str {
        self.base.as_ref().map_or("", |base| &base.text)
    }

    /// Statements that make the base, before those of the sum.
    pub(super) fn bind(&self) -> &str {
        self.base.as_ref().map_or("", |base| &base.bind)
    }

    pub(super) fn inputs(&self) -> Vec<String> {
        let base = self.base.iter().flat_map(|base| base.inputs.iter().cloned());
        self.names.iter().map(|&name| name.to_owned()).chain(base).collect()
    }

    /// The columns and the rank.
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.read.k, self.read.rank]
    }
}

const THREADS: usize = 256;

/// The launch of the kernel that measures the rows of a sum, a group each, of what makes up the sum.
///
/// Largest magnitudes are the CPU's, bit for bit; lengths are roots of sums of more digits than floats have, and differ where a
/// last bit hangs on the order of the sum. None of a sum without elements.
pub(crate) fn measure(by: Measure, read: &Read, inputs: &[Aval], target: Target) -> Option<Parts> {
    if read.n == 0 || read.k == 0 {
        return None;
    }
    size(read.n * THREADS)?;
    let sum = Sum::new(read, &[], inputs)?;
    let [k, rank] = sum.sizes();
    let (label, is_norm) = match by {
        Measure::Norm => ("sum_norms", 1),
        Measure::Absmax => ("sum_absmax", 0),
    };
    let body = format!(
        "  enum {{ THREADS = {THREADS} }};\n{}  Summed e;\n{}  TACIT_GROUP_ARRAY(float, tacit_meeting, {});\n  \
         tacit::measure_row<{is_norm}, THREADS>(e, (TACIT_DEVICE float*)out, at, tacit_meeting);\n",
        sum.bind(),
        sum.statements,
        2 * THREADS / 32
    );
    Some(Parts {
        label: format!("{label}_{}", sum.label),
        common: vec![
            include_str!("source/wide_sum.h"),
            include_str!("source/encode_rules.h"),
            include_str!("source/encode.h"),
            include_str!("source/sum.h"),
            include_str!("source/twofold.h"),
            include_str!("source/measure.h"),
        ],
        description: format!("{}struct Summed {{\n{}}};\n", sum.text(), sum.fields),
        body,
        inputs: sum.inputs(),
        outputs: vec!["out".to_owned()],
        sizes: vec![0, 0, 0, 0, size(k)?, size(rank)?],
        groups: [read.n, 1, 1],
        threads: THREADS,
        memory: 0,
        target,
    })
}

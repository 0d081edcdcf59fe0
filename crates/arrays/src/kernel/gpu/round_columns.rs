//! Columns rounded to the values of their codes, one after the other, on a GPU.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::rule::Rule;
use super::source::{Parts, Target, size};
use super::weight::word;
use crate::kernel::{Coding, Scaling, Scheme};

/// Rows of a group at most: each is a warp's.
const ROWS: usize = 8;

/// Bytes of a group's memory that the rows are kept in, which every GPU has beside the thresholds.
const MEMORY: usize = 24 << 10;

/// The launch of the kernel that `round_columns` runs, of `x`, the triangle, and what the rows of each column are coded by.
///
/// Both results are the CPU's, bit for bit. None for rows so long that none fits the memory of a group, where there are no
/// elements, and where the decomposition says what is wrong.
pub(crate) fn round_columns(scheme: &Scheme, inputs: &[Aval], target: Target) -> Option<Parts> {
    let [x, triangle, stored @ ..] = inputs else { return None };
    let &[n, width] = x.shape.as_slice() else { return None };
    let [n, width] = [n, width].map(|extent| extent as usize);
    let is_wide = [x, triangle].iter().all(|input| input.dtype == Dtype::Float32);
    // One text serves many widths.
    let room = width.next_multiple_of(128);
    let rows = (MEMORY / 4).checked_div(room)?.min(ROWS);
    if !is_wide || triangle.size() != width * width || n == 0 || rows == 0 {
        return None;
    }
    let names = ["x", "triangle", "scales", if scheme.is_relative() { "global" } else { "biases" }];
    let names = names.get(..inputs.len()).filter(|names| names.len() > 2 + usize::from(scheme.biased))?;
    let mut rule = Rule::nearest(scheme)?;
    rule.values(scheme)?;
    for name in &names[..2] {
        rule.pointer("const ", "float", name);
    }
    for (name, aval) in names[2..].iter().zip(stored) {
        rule.coding_input(name, aval, n * width)?;
    }
    for name in RESULTS {
        rule.pointer("", "float", name);
    }
    let unit = match scheme.scaling {
        Scaling::E4m3 if names.contains(&"global") => {
            "tacit::exact_mul(tacit::e4m3(stored.byte), tacit::exact_div(global, 2688.0f))"
        }
        Scaling::E4m3 => "tacit::e4m3(stored.byte)",
        _ if rule.is_of_bytes() => "tacit::e8m0(stored.byte)",
        _ if matches!(scheme.coding, Coding::Signed) => "tacit::exact_div(stored.scale, 127.0f)",
        _ => "stored.scale",
    };
    let _ = write!(
        rule.fields,
        "  TACIT_STATIC ROOM = {room};\n  tacit::u32 n, width;\n  float global;\n  TACIT_FN float unit(tacit::Stored stored) const {{ \
         return {unit}; }}\n"
    );
    let global = if names.contains(&"global") { "global[0]" } else { "1.0f" };
    let threads = 32 * rows;
    let body = format!(
        "  enum {{ THREADS = {threads} }};\n  Columns e;\n{}  e.global = {global};\n  e.n = sizes_shape[0];\n  e.width = \
         sizes_shape[1];\n  TACIT_GROUP_ARRAY(float, tacit_rows, {});\n  tacit::round_columns(e, at, THREADS, tacit_rows);\n",
        rule.statements,
        rows * room,
    );
    let groups = n.div_ceil(rows);
    size(groups * threads)?;
    Some(Parts {
        label: format!("round_columns_{}_r{room}", word(scheme.label)),
        common: vec![include_str!("source/encode_rules.h"), include_str!("source/round_columns.h")],
        description: format!("{}struct Columns {{\n{}}};\n", rule.tables, rule.fields),
        body,
        inputs: names.iter().map(|&name| name.to_owned()).collect(),
        outputs: RESULTS.map(str::to_owned).into(),
        sizes: vec![size(n)?, size(width)?],
        groups: [groups, 1, 1],
        threads,
        memory: 0,
        target,
    })
}

const RESULTS: [&str; 2] = ["rounded", "errors"];

//! Elements of a stored matrix as floats, or in a sum with others, on a GPU.

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::source::{Parts, Target, float, size};
use super::weight::{Weight, short};
use crate::kernel::Layout;

const THREADS: usize = 256;

/// Rows along the grid: CUDA has no more groups there.
const MOST_ROWS: usize = 32768;

/// The launch of [`dequantize`](crate::kernel::dequantize). None for a matrix without elements, which no GPU is asked for.
pub(crate) fn dequantize(layout: &Layout, children: &[Aval], dtype: Dtype, target: Target) -> Option<Parts> {
    let weight = Weight::new(layout, children)?;
    let elements = layout.n * layout.k;
    let kind = float(dtype)?;
    let body = format!(
        "  enum {{ THREADS = {THREADS} }};\n{}  tacit::dequantize<Weight, {kind}>(w, (TACIT_DEVICE {kind}*)out, \
         (tacit::u64)sizes_shape[0] * (tacit::u64)sizes_shape[1], at, THREADS);\n",
        weight.bind
    );
    let groups = [elements.div_ceil(8 * THREADS), 1, 1];
    let label = format!("dequantize_{}_{}", weight.label, short(dtype));
    parts(weight, label, body, [layout.n, layout.k, 0], groups, target)
}

/// The launch of [`gather_rows`](crate::kernel::gather_rows), of `rows` and the children. A row outside of the matrix is NaN.
/// None where nothing is taken.
pub(crate) fn gather_rows(layout: &Layout, inputs: &[Aval], dtype: Dtype, target: Target) -> Option<Parts> {
    let (rows, children) = inputs.split_first()?;
    let mut weight = Weight::new(layout, children)?;
    if rows.dtype != Dtype::Uint32 {
        return None;
    }
    let kind = float(dtype)?;
    let body = format!(
        "  enum {{ THREADS = {THREADS} }};\n{}  tacit::gather_rows<Weight, {kind}>(w, (const TACIT_DEVICE tacit::u32*)rows, (TACIT_DEVICE \
         {kind}*)out, sizes_shape[0], sizes_shape[1], sizes_shape[2], at, THREADS);\n",
        weight.bind,
    );
    let groups = [layout.k.div_ceil(THREADS), rows.size().min(MOST_ROWS), 1];
    let label = format!("gather_rows_{}_{}", weight.label, short(dtype));
    weight.inputs.insert(0, "rows".to_owned());
    parts(weight, label, body, [layout.n, layout.k, rows.size()], groups, target)
}

/// The launch of the kernel that `add_dense` runs, of `x`, the factor of the matrix if it is `scaled`, and the children: bit for bit
/// the CPU's. None for a matrix without elements, or where the decomposition says what is wrong.
pub(crate) fn add_dense(layout: &Layout, scaled: bool, inputs: &[Aval], target: Target) -> Option<Parts> {
    let names = &["x", "multiplier"][..=usize::from(scaled)];
    let (operands, children) = inputs.split_at_checked(names.len())?;
    let mut weight = Weight::new(layout, children)?;
    let elements = layout.n * layout.k;
    let is_number = |factor: &Aval| factor.dtype == Dtype::Float32 && factor.size() > 0;
    if operands[0].size() != elements || !operands[1..].iter().all(is_number) {
        return None;
    }
    let kind = float(operands[0].dtype)?;
    let factor = if scaled { "multiplier[0]" } else { "1.0f" };
    let body = format!(
        "  enum {{ THREADS = {THREADS} }};\n{}  tacit::add_dense<Weight, {kind}>(w, (const TACIT_DEVICE {kind}*)x, {factor}, \
         (TACIT_DEVICE {kind}*)out, (tacit::u64)sizes_shape[0] * (tacit::u64)sizes_shape[1], at, THREADS);\n",
        weight.bind
    );
    let groups = [elements.div_ceil(8 * THREADS), 1, 1];
    let label = format!("{}_{}_{}", if scaled { "add_scaled" } else { "add" }, weight.label, short(operands[0].dtype));
    weight.inputs = names.iter().map(|&name| name.to_owned()).chain(weight.inputs).collect();
    parts(weight, label, body, [layout.n, layout.k, 0], groups, target)
}

fn parts(
    weight: Weight,
    label: String,
    body: String,
    sizes: [usize; 3],
    groups: [usize; 3],
    target: Target,
) -> Option<Parts> {
    if groups.contains(&0) {
        return None;
    }
    let [n, k, count] = sizes.map(size);
    Some(Parts {
        label,
        common: vec![include_str!("source/dequantize.h")],
        description: weight.text,
        body,
        inputs: weight.inputs,
        outputs: vec!["out".to_owned()],
        sizes: vec![n?, k?, count?, 0, 0, 0, 0, size(weight.block)?],
        groups,
        threads: THREADS,
        memory: 0,
        target,
    })
}

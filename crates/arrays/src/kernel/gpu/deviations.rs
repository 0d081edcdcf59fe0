//! How far a stored matrix is from the floats that were quantized, on a GPU.

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::encode::{CHUNK, LONGEST, MOST_BLOCKS, THREADS, team};
use super::source::{Parts, Target, size};
use super::weight::Weight;
use crate::kernel::Layout;

/// The launch of the kernel that `deviations` runs, of `x`, the weights of the blocks where a `power` of the errors is summed and not
/// their squares, and the children.
///
/// Sums have more digits than floats; the CPU adds up floats of a piece of a block, and these in doubles. They differ where last bits
/// hang on that. None where no scale is stored, for blocks so long that plain ops are faster, and where there are no elements.
pub(crate) fn deviations(layout: &Layout, power: Option<f32>, inputs: &[Aval], target: Target) -> Option<Parts> {
    let (x, more) = inputs.split_first()?;
    let (weights, children) = more.split_at_checked(usize::from(power.is_some()))?;
    let (elements, block) = (layout.n.checked_mul(layout.k)?, layout.block);
    if !layout.scheme.is_scaled() || elements == 0 || block == 0 || block > LONGEST {
        return None;
    }
    let blocks = elements.div_ceil(block);
    let has = |aval: &Aval, count: usize| (aval.dtype, aval.size()) == (Dtype::Float32, count);
    if !has(x, elements) || !weights.iter().all(|weights| has(weights, blocks)) {
        return None;
    }
    let weight = Weight::new(layout, children)?;
    let (each, team) = ((CHUNK / block).clamp(1, MOST_BLOCKS), team(block));
    let (weights, is_power) = if power.is_some() { ("weights", 1) } else { ("x", 0) };
    let power = power.map_or(0, |power| (power - 1.0).to_bits());
    let float = "TACIT_DEVICE float*";
    let results = RESULTS.map(|name| format!("({float}){name}, ")).concat();
    let body = format!(
        "  enum {{ THREADS = {THREADS} }};\n{}  TACIT_GROUP_ARRAY(float, tacit_meeting, {});\n  tacit::deviations<{team}, \
         {is_power}>(w, (const {float})x, (const {float}){weights}, tacit::from_bits(0x{power:08x}u), {results}(tacit::u64)at.x * \
         sizes_shape[1], sizes_shape[1], sizes_shape[0], sizes_shape[2], at, THREADS, tacit_meeting);\n",
        weight.bind,
        2 * THREADS / 32,
    );
    let sizes = [blocks, each, elements - (blocks - 1) * block, 0, 0, 0, 0, weight.block];
    Some(Parts {
        label: format!("deviations{is_power}_{}", weight.label),
        common: vec![include_str!("source/twofold.h"), include_str!("source/deviations.h")],
        description: weight.text,
        body,
        inputs: ["x", "weights"][..=is_power].iter().map(|&name| name.to_owned()).chain(weight.inputs).collect(),
        outputs: RESULTS.map(str::to_owned).into(),
        sizes: sizes.into_iter().map(size).collect::<Option<_>>()?,
        groups: [blocks.div_ceil(each), 1, 1],
        threads: THREADS,
        memory: 0,
        target,
    })
}

const RESULTS: [&str; 5] = ["error", "value", "square", "slope", "shift"];

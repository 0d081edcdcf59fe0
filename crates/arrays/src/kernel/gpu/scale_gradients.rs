//! The gradients of a quantized matrix for its scales, on a GPU.

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::encode::{CHUNK, LONGEST, MOST_BLOCKS, THREADS, team};
use super::source::{Parts, Target, size};
use super::weight::Weight;
use crate::kernel::{Layout, Scaling};

/// The launch of the kernel that `scale_gradients` runs, of `x`, its cotangent and the children; codes have values from `low` to
/// `high`, the slack for what was rounded included.
///
/// The gradient of `x` is the CPU's, bit for bit. The others are sums of more digits than floats have, as of doubles on the CPU,
/// in another order: they differ where a last bit hangs on that. None for scales that are stored in other arrays, which are not
/// trained, for blocks so long that plain ops are faster, and where there are no elements.
pub(crate) fn scale_gradients(
    layout: &Layout,
    [low, high]: [f32; 2],
    inputs: &[Aval],
    target: Target,
) -> Option<Parts> {
    let [x, cotangent, children @ ..] = inputs else { return None };
    let (elements, block) = (layout.n * layout.k, layout.block);
    let is_trained = matches!(layout.scheme.scaling, Scaling::Float | Scaling::E8m0 | Scaling::E4m3);
    let is_wide = [x, cotangent].iter().all(|input| input.dtype == Dtype::Float32 && input.size() == elements);
    if !is_trained || !is_wide || elements == 0 || block == 0 || block > LONGEST {
        return None;
    }
    let weight = Weight::new(layout, children)?;
    let is_biased = layout.scheme.biased;
    let (blocks, team) = (elements.div_ceil(block), team(block));
    let each = (CHUNK / block).clamp(1, MOST_BLOCKS);
    let bits = |value: f32| format!("tacit::from_bits(0x{:08x}u)", value.to_bits());
    let float = "TACIT_DEVICE float*";
    let body = format!(
        "  enum {{ THREADS = {THREADS} }};\n{}  TACIT_GROUP_ARRAY(float, tacit_meeting, {});\n  tacit::scale_gradients<{team}>(w, \
         (const {float})x, (const {float})cotangent, ({float})of_x, ({float})of_scales, ({float}){}, (tacit::u64)at.x * \
         sizes_shape[1], sizes_shape[1], sizes_shape[0], sizes_shape[2], {}, {}, at, THREADS, tacit_meeting);\n",
        weight.bind,
        2 * THREADS / 32,
        if is_biased { "of_biases" } else { "of_scales" },
        bits(low),
        bits(high),
    );
    let outputs = ["of_x", "of_scales", "of_biases"].into_iter().take(if is_biased { 3 } else { 2 });
    let sizes = [blocks, each, elements - (blocks - 1) * block, 0, 0, 0, 0, weight.block];
    Some(Parts {
        label: format!("scale_gradients_{}", weight.label),
        common: vec![include_str!("source/twofold.h"), include_str!("source/scale_gradients.h")],
        description: weight.text,
        body,
        inputs: ["x", "cotangent"].into_iter().map(str::to_owned).chain(weight.inputs).collect(),
        outputs: outputs.map(str::to_owned).collect(),
        sizes: sizes.into_iter().map(size).collect::<Option<_>>()?,
        groups: [blocks.div_ceil(each), 1, 1],
        threads: THREADS,
        memory: 0,
        target,
    })
}

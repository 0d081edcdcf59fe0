//! Kernels that write their outputs over inputs of the plan, as the update of an optimizer does.

use super::chains::Chain;
use super::draft::{Buffer, Draft, Home, Value, root};

/// Has outputs of the plan take the memory of inputs, where the kernel that makes one [may](crate::kernel::Kernel::in_place) write it
/// there and nobody reads the input from then on. Stages that run together write their pieces beside.
pub(super) fn write_over_inputs(
    drafts: &mut [Draft],
    values: &[Value],
    buffers: &[Buffer],
    chains: &[Chain],
    donated: &mut Vec<(usize, usize)>,
) {
    let mut runs_alone = vec![true; drafts.len()];
    chains.iter().flat_map(|chain| &chain.stages).for_each(|&stage| runs_alone[stage] = false);
    for (stage, draft) in drafts.iter_mut().enumerate() {
        let may = std::mem::take(&mut draft.in_place);
        for pair in may.into_iter().filter(|_| runs_alone[stage]) {
            let is_free = |&(output, input): &(usize, usize)| {
                donated.iter().all(|&(given_to, given)| given_to != output && given != input)
            };
            if let Some(given) = of_plan(draft, pair, stage, values, buffers).filter(is_free) {
                donated.push(given);
                draft.in_place.push(pair);
            }
        }
    }
}

/// Which output and input of the plan an output and an input of a stage are, where nobody else needs the input.
fn of_plan(
    draft: &Draft,
    (output, input): (usize, usize),
    stage: usize,
    values: &[Value],
    buffers: &[Buffer],
) -> Option<(usize, usize)> {
    let new = root(buffers, values[draft.outputs[output].0].buffer);
    let Value { buffer: old, aval, .. } = &values[draft.inputs[input].0];
    let Buffer { bytes, home, life } = &buffers[*old];
    let reads = draft.inputs.iter().filter(|value| values[value.0].buffer == *old).count();
    let is_last = reads == 1 && life.end == stage + 1 && aval.nbytes() == *bytes;
    match (home, buffers[new].home) {
        (Home::Input(input), Home::Output(output)) if is_last => Some((output, *input)),
        _ => None,
    }
}

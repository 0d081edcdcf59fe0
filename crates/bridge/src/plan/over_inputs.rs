//! Kernels that write their outputs over inputs of the plan, as the update of an optimizer does.

use super::PlanValue;
use super::chains::Chain;
use super::draft::{Buffer, Draft, Home, Value, root};

/// Puts each stage that may write an output of the plan over an input behind the last one that reads the input, unless a stage up to
/// there takes its results: an optimizer's update of a weight goes behind the gradient that still reads the weight.
pub(super) fn put_behind_readers(drafts: &mut Vec<Draft>, values: &[Value], buffers: &[Buffer]) {
    let buffer_of = |value: PlanValue| values[value.0].buffer;
    let (mut read, mut written) = (vec![Vec::new(); buffers.len()], vec![None; buffers.len()]);
    for (stage, draft) in drafts.iter().enumerate() {
        draft.inputs.iter().chain(&draft.begins_as).for_each(|&value| read[buffer_of(value)].push(stage));
        draft.begins_as.iter().for_each(|&value| written[buffer_of(value)] = Some(stage));
    }
    let mut turns: Vec<(usize, usize)> = (0..drafts.len()).map(|stage| (stage, 0)).collect();
    for (stage, draft) in drafts.iter().enumerate() {
        let over = draft
            .in_place
            .iter()
            .map(|&(output, input)| (buffer_of(draft.outputs[output]), buffer_of(draft.inputs[input])));
        let over = over.filter(|&(output, input)| {
            matches!((buffers[output].home, buffers[input].home), (Home::Output(_), Home::Input(_)))
        });
        let Some(last) = over.filter_map(|(_, input)| read[input].last().copied()).max() else { continue };
        let taken =
            draft.outputs.iter().any(|&output| read[buffer_of(output)].first().is_some_and(|&first| first <= last));
        // What is updated in place by then would have to stay for this stage.
        let updated =
            |&input: &PlanValue| written[buffer_of(input)].is_some_and(|update| stage < update && update <= last);
        if last > stage && !taken && !draft.inputs.iter().any(updated) {
            turns[stage] = (last, stage + 1);
        }
    }
    let mut ordered: Vec<_> = turns.into_iter().zip(std::mem::take(drafts)).collect();
    ordered.sort_by_key(|&(turn, _)| turn);
    *drafts = ordered.into_iter().map(|(_, draft)| draft).collect();
}

/// Lets outputs of the plan take the memory of inputs, where the kernel that makes one [may](crate::kernel::Kernel::in_place) write it
/// there and nobody reads the input from then on. Which of several inputs it is, is known when the plan runs: one that nobody else
/// holds. Stages that run together write their pieces beside.
pub(super) fn write_over_inputs(
    drafts: &mut [Draft],
    values: &[Value],
    buffers: &[Buffer],
    chains: &[Chain],
    donated: &mut Vec<(usize, usize)>,
) {
    let mut runs_alone = vec![true; drafts.len()];
    chains.iter().flat_map(|chain| &chain.stages).for_each(|&stage| runs_alone[stage] = false);
    let updated = donated.clone();
    for (stage, draft) in drafts.iter_mut().enumerate() {
        let may = std::mem::take(&mut draft.in_place);
        for pair in may.into_iter().filter(|_| runs_alone[stage]) {
            let Some((output, input)) = of_plan(draft, pair, stage, values, buffers) else { continue };
            if updated.iter().all(|&(other, given)| other != output && given != input) {
                donated.push((output, input));
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
        // Arrays without elements may all be at one address, which tells here which input an output lies in.
        (Home::Input(input), Home::Output(output)) if is_last && *bytes > 0 => Some((output, *input)),
        _ => None,
    }
}

//! Shrinks a program to the shortest one that still fails.

use super::program::{Fill, Layout, Operand, Program, Role, State};

/// Simpler programs, tried one after the other as long as one still fails.
pub(crate) fn shrunk(mut program: Program, fails: &dyn Fn(&Program) -> bool) -> Program {
    let mut tries = 400;
    'simpler: loop {
        for simpler in candidates(&program) {
            tries -= 1;
            if tries == 0 {
                return program;
            }
            if fails(&simpler) {
                program = simpler;
                continue 'simpler;
            }
        }
        return program;
    }
}

fn candidates(program: &Program) -> Vec<Program> {
    let mut simpler = Vec::new();
    for at in 0..program.around.len() {
        simpler.extend(changed(program, |program| {
            program.around.remove(at);
        }));
    }
    if program.results.len() > 1 {
        for at in 0..program.results.len() {
            simpler.extend(changed(program, |program| {
                program.results.remove(at);
            }));
        }
    }
    for at in (0..program.steps.len()).rev() {
        simpler.extend(without_step(program, at, false));
        simpler.extend(without_step(program, at, true));
    }
    for at in (0..program.inputs.len()).rev() {
        simpler.extend(without_input(program, at));
    }
    for at in 0..program.inputs.len() {
        simpler.extend(changed(program, |program| program.inputs[at].layout = Layout::Rows));
        simpler.extend(changed(program, |program| program.inputs[at].state = State::Ready));
        simpler.extend(changed(program, |program| program.inputs[at].fill = Fill::Normal));
        simpler.extend(changed(program, |program| program.inputs[at].role = Role::Argument));
        simpler.extend(changed(program, |program| {
            // Without the innermost subject.
            if let Some(kind) = &mut program.inputs[at].subject
                && let Some(inner) = kind.rfind('/')
            {
                kind.truncate(inner);
            }
        }));
    }
    simpler
}

fn changed(program: &Program, change: impl FnOnce(&mut Program)) -> Option<Program> {
    let mut changed = program.clone();
    change(&mut changed);
    (changed != *program).then_some(changed)
}

/// The program without a step: with all that depends on it, or with the step's first operand in the place of its results.
fn without_step(program: &Program, at: usize, bypassed: bool) -> Option<Program> {
    let before: usize = program.steps[..at].iter().map(|step| step.results).sum();
    let first = program.inputs.len() + before;
    let gone = first..first + program.steps[at].results;
    let instead = program.steps[at].operands.iter().find_map(Operand::value);
    let mut map: Vec<Option<usize>> = (0..program.values()).map(Some).collect();
    for value in gone.clone() {
        map[value] = if bypassed { Some(instead?) } else { None };
    }
    map.iter_mut().skip(gone.end).flatten().for_each(|value| *value -= gone.len());
    mapped(program, Some(at), &map)
}

/// The program without an input, where no value needs it.
fn without_input(program: &Program, at: usize) -> Option<Program> {
    let mut map: Vec<Option<usize>> =
        (0..program.values()).map(|value| value.checked_sub(usize::from(value > at))).collect();
    map[at] = None;
    let mut without = mapped(program, None, &map)?;
    // Steps that needed it would have gone with it.
    if without.steps.len() != program.steps.len() || without.results.len() != program.results.len() {
        return None;
    }
    without.inputs.remove(at);
    without.inputs.iter().any(|input| input.role != Role::Captured).then_some(without)
}

/// The program with other numbers for its values, without a step and without what needs a value that is gone.
fn mapped(program: &Program, gone: Option<usize>, map: &[Option<usize>]) -> Option<Program> {
    let mut without = program.clone();
    without.steps.clear();
    // Steps that go shift the values behind them once more.
    let mut map = map.to_vec();
    let mut next = program.inputs.len();
    for (at, step) in program.steps.iter().enumerate() {
        let results = next..next + step.results;
        next = results.end;
        if gone == Some(at) {
            continue;
        }
        let mut step = step.clone();
        let kept = step.operands.iter_mut().filter_map(Operand::value_mut).all(|value| match map[*value] {
            Some(mapped) => {
                *value = mapped;
                true
            }
            None => false,
        });
        if kept {
            without.steps.push(step);
            continue;
        }
        for value in results.clone() {
            map[value] = None;
        }
        for value in map.iter_mut().skip(results.end).flatten() {
            *value -= results.len();
        }
    }
    without.results = program.results.iter().filter_map(|&result| map[result]).collect();
    (!without.results.is_empty() && (gone.is_none() || !without.steps.is_empty())).then_some(without)
}

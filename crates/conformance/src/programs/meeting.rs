//! Draws programs in which implicit arrays meet: kinds in each other, ops that move their elements, products after
//! these, other implicit arrays as operands, and transforms around it all.

use mlx_rs::Dtype;
use tacit_core::Aval;

use super::draw::{self, Drawing, Rng};
use super::kind;
use super::program::{Around, Fill, Input, Layout, Program, Role, State};
use crate::ops::{Op, moving, products};
use crate::subject::Subject;

/// Numbers of `f32` most often: what is wrong shows in them, where half types grant more.
const DTYPES: [Dtype; 5] = [Dtype::Float32, Dtype::Float32, Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// Squares, whole groups of 32 and of 256, and blocks of 32 that the end of a row or of the array cuts.
const SHAPES: [&[i32]; 10] =
    [&[32, 32], &[8, 64], &[33, 32], &[3, 40], &[5, 96], &[12, 12], &[6, 256], &[2, 8, 32], &[3, 16, 64], &[64, 64]];

/// How many subjects are in each other, at most.
const DEPTHS: [usize; 6] = [0, 0, 1, 1, 2, 2];

/// The most elements of a value.
const MOST: usize = 1 << 14;

/// The program of a seed: every subject in turn, and in each turn with another op that moves elements.
pub(super) fn draw(seed: u64, subjects: &[Subject]) -> Program {
    let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let (turn, place) = (seed as usize / subjects.len().max(1), seed as usize % subjects.len().max(1));
    let dtype = rng.pick(&DTYPES);
    let first = subjects.get(place).and_then(|first| drawn_implicit(&mut rng, subjects, first, dtype));
    let Some(first) = first else { return draw::draw(seed, subjects) };
    let around = drawn_around(&mut rng);
    let inputs = drawn_inputs(&mut rng, subjects, first, around.contains(&Around::Grad));
    let mut drawing = Drawing::from_inputs(&inputs, MOST);
    let mut program = Program { around, inputs, steps: Vec::new(), results: Vec::new() };
    let implicit = program.inputs.iter().position(|input| input.subject.is_some()).unwrap_or_default();
    let (moving, products) = (moving(), products());
    let length = 2 + rng.index(9);
    let mut value = implicit;
    let in_turn = moving[(turn + place) % moving.len()];
    let moves = if rng.percent(40) { 2 } else { 1 };
    for step in 0..moves {
        let first = if step == 0 { in_turn } else { rng.pick(&moving) };
        let ops = [first, rng.pick(&moving), rng.pick(&moving), rng.pick(&moving)];
        if let Some(step) = ops.iter().find_map(|op| drawing.step_on(&mut rng, op, value, dtype)) {
            value = program.values() + rng.index(step.results);
            program.steps.push(step);
        }
    }
    let operand = if rng.percent(80) { value } else { implicit };
    let ops: Vec<&Op> = (0..6).map(|_| rng.pick(&products)).collect();
    program.steps.extend(ops.iter().find_map(|op| drawing.step_on(&mut rng, op, operand, dtype)));
    for _ in 0..6 * length {
        if program.steps.len() >= length {
            break;
        }
        program.steps.extend(drawing.step(&mut rng, 1, dtype));
    }
    let values = program.values();
    program.results = vec![values - program.steps.last().map_or(1, |step| step.results), value];
    program.results.push(rng.index(values));
    program
}

/// Up to three transforms around each other.
fn drawn_around(rng: &mut Rng) -> Vec<Around> {
    let count = rng.pick(&[0, 0, 1, 1, 2, 3]);
    (0..count).map(|_| rng.pick(Around::ALL)).collect()
}

/// An input of a kind in which a subject is outermost, where the subject stands for one of the shapes.
fn drawn_implicit(rng: &mut Rng, subjects: &[Subject], subject: &Subject, dtype: Dtype) -> Option<Input> {
    let from = rng.index(SHAPES.len());
    let shapes = SHAPES.iter().cycle().skip(from).take(SHAPES.len());
    let aval = shapes.map(|&shape| Aval::new(shape, dtype)).find(|aval| subject.stands_for(aval))?;
    of_kind(rng, subjects, subject, aval)
}

fn of_kind(rng: &mut Rng, subjects: &[Subject], subject: &Subject, aval: Aval) -> Option<Input> {
    let depth = rng.pick(&DEPTHS);
    let kind = kind::drawn(rng, subjects, subject, &aval, depth)?;
    Some(Input { subject: Some(kind), ..dense(rng, aval) })
}

fn dense(rng: &mut Rng, aval: Aval) -> Input {
    Input {
        role: Role::Argument,
        aval,
        layout: Layout::Rows,
        state: State::Ready,
        fill: Fill::Normal,
        seed: rng.below(1000),
        subject: None,
    }
}

/// A dense argument, the implicit input, others beside it, and some of them twice.
fn drawn_inputs(rng: &mut Rng, subjects: &[Subject], first: Input, captured: bool) -> Vec<Input> {
    let (aval, shape) = (first.aval.clone(), first.aval.shape.clone());
    let beside = |rng: &mut Rng| {
        let shape = draw::beside_shape(rng, &shape);
        let layout = if rng.percent(60) { Layout::Rows } else { rng.pick(Layout::ALL) };
        Input { layout, ..dense(rng, Aval::new(&shape, aval.dtype)) }
    };
    let mut implicit = vec![first];
    for _ in 0..rng.pick(&[0, 0, 1, 1, 2]) {
        let mut other = aval.clone();
        if rng.percent(40) {
            let rank = other.shape.len();
            other.shape.swap(rank - 1, rank - 2);
        }
        let mut tried = (0..5).filter_map(|_| subjects.get(rng.index(subjects.len())));
        let subject = tried.find(|subject| subject.stands_for(&other));
        implicit.extend(subject.and_then(|subject| of_kind(rng, subjects, subject, other)));
    }
    let mut inputs = vec![beside(rng)];
    for mut input in implicit {
        input.role = if captured || rng.percent(50) { Role::Captured } else { Role::Argument };
        let again = Input { state: State::Shared, ..input.clone() };
        inputs.push(input);
        inputs.extend(rng.percent(15).then_some(again));
    }
    let again = Input { state: State::Shared, ..inputs[0].clone() };
    if rng.percent(15) {
        inputs.insert(1, again);
    }
    inputs.push(beside(rng));
    inputs
}

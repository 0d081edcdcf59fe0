//! Draws a program from a seed.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Aval;

use super::program::{Around, Fill, Input, Layout, Operand, Program, Role, State, Step};
use super::run;
use crate::ops::{Op, families};
use crate::report::guarded;
use crate::subject::Subject;

/// Numbers that look random, the same in each run.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// Steele's splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Whether something of so many percent happens.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }

    /// One of the elements of `of`, if it has any.
    pub(super) fn pick_one<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.index(of.len())).cloned()
    }

    /// About a normal number: the sum of four uniform ones.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.below(1 << 20) as f32 + 0.5) / 1_048_576.0).sum();
        (sum - 2.0) * 1.732
    }
}

/// The most elements of a value, but for programs of long arrays.
const SMALL: usize = 4096;

const LONG: usize = 1 << 17;

/// Half floats more often than all others.
const MAIN: [Dtype; 10] = [
    Dtype::Float16,
    Dtype::Float16,
    Dtype::Float16,
    Dtype::Bfloat16,
    Dtype::Bfloat16,
    Dtype::Bfloat16,
    Dtype::Float32,
    Dtype::Float32,
    Dtype::Float32,
    Dtype::Int32,
];

const OTHER: [Dtype; 14] = [
    Dtype::Bool,
    Dtype::Uint8,
    Dtype::Uint16,
    Dtype::Uint32,
    Dtype::Uint64,
    Dtype::Int8,
    Dtype::Int16,
    Dtype::Int32,
    Dtype::Int64,
    Dtype::Float16,
    Dtype::Bfloat16,
    Dtype::Float32,
    Dtype::Float32,
    Dtype::Complex64,
];

/// Ops that read or write out of bounds in other shapes than their rows'.
const REACH: [&str; 7] = ["as_strided", "conv", "nn::AvgPool", "nn::MaxPool", "pad[value]", "segmented", "try_index"];

/// How often a step on a value is tried with other operands.
const TRIES: usize = 12;

/// Divisions, which end the process where an integer is divided by zero.
const DIVIDING: [&str; 3] = ["divmod", "floor_divide", "remainder"];

/// What goes along an axis, and divides by its extent.
const SCANNING: [&str; 13] = [
    "argpartition",
    "argsort",
    "conv",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "logcumsumexp",
    "median",
    "partition",
    "search_sorted",
    "sort",
    "topk",
];

/// Factorizations, which may not end on a NaN.
const FACTORING: [&str; 9] = [
    "linalg::cholesky",
    "linalg::eig",
    "linalg::inv",
    "linalg::norm_matrix",
    "linalg::pinv",
    "linalg::qr",
    "linalg::svd",
    "linalg::tri_inv",
    "random::multivariate_normal",
];

/// Ops that use an LU factorization, whose buffer MLX takes for a longer one: an op on it writes behind its own.
const LEFT_OUT: [&str; 4] = ["linalg::det", "linalg::lu", "linalg::slogdet", "linalg::solve"];

const EXTENTS: [i32; 11] = [1, 2, 3, 4, 4, 5, 7, 8, 16, 17, 33];

/// How far an input is computed that has an array of its own.
const STATES: [State; 3] = [State::Ready, State::Lazy, State::InFlight];

/// What stands around a program, which is compiled as a whole in any case.
pub(super) const AROUND: [Around; 8] = [
    Around::Grad,
    Around::Jvp,
    Around::Vmap,
    Around::Checkpoint,
    Around::Scan,
    Around::Fori,
    Around::Cond,
    Around::Chunks,
];

/// The program of a seed; implicit inputs are of these subjects.
pub(crate) fn draw(seed: u64, subjects: &[Subject]) -> Program {
    let mut rng = Rng::new(seed);
    let implicit = !subjects.is_empty() && rng.percent(12);
    let long = !implicit && rng.percent(1);
    let mut inputs = drawn_inputs(&mut rng, long);
    if implicit {
        inputs.push(drawn_implicit(&mut rng, subjects, seed));
    }
    let most = if long { LONG } else { SMALL };
    let around = drawn_around(&mut rng, &inputs);
    let mut drawing = Drawing::from_inputs(&inputs, most);
    let mut program = Program { around, inputs, steps: Vec::new(), results: Vec::new() };
    let length = 1 + rng.index(if long { 5 } else { 14 });
    let style = rng.index(4);
    for _ in 0..6 * length {
        if program.steps.len() == length {
            break;
        }
        if let Some(step) = drawing.step(&mut rng, style, program.inputs[0].aval.dtype) {
            program.steps.push(step);
        }
    }
    let values = program.values();
    let newest = values - program.steps.last().map_or(1, |step| step.results);
    program.results = vec![newest];
    for _ in 0..rng.index(4) {
        program.results.push(rng.index(values));
    }
    program
}

fn drawn_around(rng: &mut Rng, inputs: &[Input]) -> Vec<Around> {
    let count = [0, 0, 1, 1, 1, 2][rng.index(6)];
    let float = inputs.iter().any(|input| input.role == Role::Argument && input.aval.dtype.is_float());
    (0..count)
        .map(|_| rng.pick(&AROUND))
        .filter(|around| float || !matches!(around, Around::Grad | Around::Jvp))
        .collect()
}

fn zeros(aval: &Aval) -> Array {
    ops::zeros_dtype(&aval.shape, aval.dtype).expect("zeros of any shape")
}

fn drawn_inputs(rng: &mut Rng, long: bool) -> Vec<Input> {
    let rank = if long { 2 } else { [0, 1, 2, 2, 2, 2, 3, 3, 4][rng.index(9)] };
    let mut shape: Vec<i32> = (0..rank).map(|_| rng.pick(&EXTENTS)).collect();
    if long {
        shape = vec![rng.pick(&[64, 200]), rng.pick(&[513, 600])];
    }
    if rank > 0 && rng.percent(4) {
        shape[rng.index(rank)] = 0;
    }
    let dtype = rng.pick(&MAIN);
    let fills = [Fill::Normal, Fill::Normal, Fill::Normal, Fill::Whole, Fill::Equal, Fill::Special, Fill::Wide];
    let fill = rng.pick(&fills);
    (0..2 + rng.index(4))
        .map(|at| {
            let role = match rng.index(10) {
                _ if at == 0 => Role::Argument,
                0..=2 => Role::Captured,
                3 => Role::State,
                _ => Role::Argument,
            };
            let shape = if at == 0 { shape.clone() } else { related(rng, &shape) };
            let dtype = if at == 0 || rng.percent(80) { dtype } else { rng.pick(&OTHER) };
            let layouts = Layout::ALL;
            Input {
                role,
                aval: Aval::new(&shape, dtype),
                layout: if rng.percent(50) { Layout::Rows } else { rng.pick(layouts) },
                state: if rng.percent(50) { State::Ready } else { rng.pick(&STATES) },
                fill: if rng.percent(80) { fill } else { rng.pick(&fills) },
                seed: rng.below(1000),
                subject: None,
            }
        })
        .collect()
}

/// The shape, or one that is broadcast with it.
fn related(rng: &mut Rng, shape: &[i32]) -> Vec<i32> {
    let mut shape = shape.to_vec();
    match rng.index(8) {
        0 => return Vec::new(),
        1 if !shape.is_empty() => {
            let from = rng.index(shape.len());
            return shape.split_off(from);
        }
        2 if !shape.is_empty() => {
            let at = shape.len() - 1;
            shape[at] = 1;
        }
        3 if !shape.is_empty() => {
            let at = rng.index(shape.len());
            shape[at] = 1;
        }
        4 if shape.len() > 1 => shape.reverse(),
        _ => {}
    }
    shape
}

fn drawn_implicit(rng: &mut Rng, subjects: &[Subject], seed: u64) -> Input {
    let subject = &subjects[rng.index(subjects.len())];
    let shapes: [&[i32]; 4] = [&[32, 32], &[8, 64], &[3, 32], &[33, 96]];
    let dtype = rng.pick(&[Dtype::Float32, Dtype::Float32, Dtype::Float16, Dtype::Bfloat16]);
    Input {
        role: if rng.percent(50) { Role::Argument } else { Role::Captured },
        aval: Aval::new(shapes[rng.index(4)], dtype),
        layout: Layout::Rows,
        state: State::Ready,
        fill: Fill::Normal,
        seed: seed % 1000,
        subject: Some(subject.name().to_owned()),
    }
}

/// The values of a program so far, as zeros that nobody computes.
pub(super) struct Drawing {
    values: Vec<Array>,
    most: usize,
}

impl Drawing {
    /// What a program of these inputs begins with; no value has more than `most` elements.
    pub(super) fn from_inputs(inputs: &[Input], most: usize) -> Self {
        Self { values: inputs.iter().map(|input| zeros(&input.aval)).collect(), most }
    }

    /// A step that MLX takes, if one was found.
    pub(super) fn step(&mut self, rng: &mut Rng, style: usize, main: Dtype) -> Option<Step> {
        let families = families();
        // Elementwise ops, reductions and shapes come first in the list, and most often here.
        let common = if style == 0 { 2 } else { 4 };
        let family = if rng.percent(80) { rng.index(common) } else { rng.index(families.len()) };
        let op = &families[family][rng.index(families[family].len())];
        if starts(op, &LEFT_OUT) {
            return None;
        }
        let templates = (op.operands)().ok()?;
        let operands = if starts(op, &FACTORING) {
            templates.iter().map(|template| Operand::Own(template.dtype())).collect()
        } else {
            self.operands(rng, op, &templates, main)
        };
        self.taken(op, operands)
    }

    /// A step of the op on a value, which other operands are fitted to, if one was found.
    pub(super) fn step_on(&mut self, rng: &mut Rng, op: &Op, value: usize, main: Dtype) -> Option<Step> {
        let templates = (op.operands)().ok()?;
        let shape = self.values[value].shape().to_vec();
        if starts(op, &FACTORING) || starts(op, &LEFT_OUT) || shape.contains(&0) {
            return None;
        }
        let floats: Vec<usize> = (0..templates.len()).filter(|&at| templates[at].dtype().is_float()).collect();
        // Indices and windows stay within what has the rank of the row's own operand and at least its extents.
        let covers = |extents: &[i32]| {
            extents.len() == shape.len() && extents.iter().zip(&shape).all(|(least, extent)| least <= extent)
        };
        (0..TRIES).find_map(|_| {
            let mut operands = self.operands(rng, op, &templates, main);
            let place = rng.pick_one(&floats)?;
            let extents = templates[place].shape();
            let fitted = is_fitted(op, &templates);
            let whole = !fitted || !starts(op, &REACH) && covers(extents);
            operands[place] = if whole { Operand::Value(value) } else { Operand::Fitted(value, extents.to_vec()) };
            for &other in floats.iter().filter(|&&other| !fitted && other != place) {
                let beside = self.one_of(rng, |array| array.dtype().is_inexact() && array.size() > 0)?;
                let as_it_is = rng.percent(40);
                operands[other] =
                    if as_it_is { Operand::Value(beside) } else { Operand::Fitted(beside, beside_shape(rng, &shape)) };
            }
            self.taken(op, operands)
        })
    }

    /// A step on these operands, if MLX takes it.
    fn taken(&mut self, op: &Op, operands: Vec<Operand>) -> Option<Step> {
        let taken = || operands.iter().filter_map(Operand::value).map(|value| &self.values[value]);
        let whole = taken().any(|array| !array.dtype().is_inexact());
        let empty = taken().any(|array| array.size() == 0);
        if whole && starts(op, &DIVIDING) || empty && starts(op, &SCANNING) {
            return None;
        }
        // An operator of mlx-rs panics on what MLX refuses.
        let called = || run::step(op, &operands, &self.values).map_err(|error| error.to_string());
        let results = guarded(called).ok()?;
        let fits = |array: &Array| array.size() <= self.most && array.ndim() <= 6 && array.dtype() != Dtype::Float64;
        if results.is_empty() || !results.iter().all(fits) {
            return None;
        }
        let step = Step { op: op.name, operands, results: results.len() };
        // As placeholders, so that the graph does not grow.
        self.values.extend(results.iter().map(|array| zeros(&Aval::from(array))));
        Some(step)
    }

    fn operands(&self, rng: &mut Rng, op: &Op, templates: &[Array], main: Dtype) -> Vec<Operand> {
        let fitted = is_fitted(op, templates) || rng.percent(15);
        let mut operands: Vec<Operand> = templates
            .iter()
            .map(|template| match template.dtype() {
                _ if is_index(template) => Operand::Own(template.dtype()),
                Dtype::Bool => match self.one_of(rng, |array| array.dtype() == Dtype::Bool) {
                    Some(value) if fitted => Operand::Fitted(value, template.shape().to_vec()),
                    Some(value) => Operand::Value(value),
                    None => Operand::Own(Dtype::Bool),
                },
                dtype => {
                    let own_dtype = if dtype == Dtype::Float32 && main.is_float() { main } else { dtype };
                    let value = match self.one_of(rng, |array| array.dtype().is_inexact()) {
                        Some(value) if rng.percent(90) => value,
                        _ => rng.index(self.values.len()),
                    };
                    if fitted {
                        let fits = self.values[value].size() > 0 && rng.percent(75);
                        if fits { Operand::Fitted(value, template.shape().to_vec()) } else { Operand::Own(own_dtype) }
                    } else if positive(template) && rng.percent(80) {
                        Operand::Positive(value)
                    } else {
                        Operand::Value(value)
                    }
                }
            })
            .collect();
        // Something must depend on what the program takes.
        if operands.iter().all(|operand| operand.value().is_none())
            && let Some(place) = templates.iter().position(|template| !is_index(template))
            && let Some(value) = self.one_of(rng, |array| array.size() > 0)
        {
            operands[place] = Operand::Fitted(value, templates[place].shape().to_vec());
        }
        operands
    }

    /// One of the values of a kind, newer ones more often.
    fn one_of(&self, rng: &mut Rng, kind: impl Fn(&Array) -> bool) -> Option<usize> {
        let matching: Vec<usize> = (0..self.values.len()).filter(|&value| kind(&self.values[value])).collect();
        if matching.is_empty() {
            return None;
        }
        let from = if rng.percent(50) { matching.len().saturating_sub(3) } else { 0 };
        Some(matching[from + rng.index(matching.len() - from)])
    }
}

fn starts(op: &Op, names: &[&str]) -> bool {
    names.iter().any(|name| op.name.starts_with(name))
}

fn is_index(array: &Array) -> bool {
    !array.dtype().is_inexact() && array.dtype() != Dtype::Bool
}

/// Whether operands have to have the shapes of the row's own.
fn is_fitted(op: &Op, templates: &[Array]) -> bool {
    // MLX checks neither an index, a stride nor a window: what they may reach is known of the row's own shapes alone.
    templates.iter().any(is_index) || starts(op, &REACH) || op.name.contains("::")
}

/// A shape that something of this shape is multiplied by, joined with or broadcast with.
pub(super) fn beside_shape(rng: &mut Rng, shape: &[i32]) -> Vec<i32> {
    let Some(&last) = shape.last() else { return Vec::new() };
    let rows = shape.iter().rev().nth(1).copied().unwrap_or(last);
    match rng.index(8) {
        0 => vec![5, rows],
        1 => vec![last, 3],
        2 => vec![5, last],
        3 => vec![rows, 3],
        4 => vec![last],
        5 => vec![rows],
        6 => Vec::new(),
        _ => shape.to_vec(),
    }
}

/// Whether an op's own operand has positive numbers alone.
fn positive(template: &Array) -> bool {
    template.dtype() == Dtype::Float32 && template.as_slice::<f32>().iter().all(|&number| number > 0.0)
}

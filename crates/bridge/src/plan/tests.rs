//! Stages that run one piece of their elements after the other.

mod over_inputs;

use std::sync::Arc;

use mlx_rs::{Array, Dtype};

use crate::error::BoxError;
use crate::kernel::{Input, Kernel, Output, Pieces};
use crate::{Aval, Plan, PlanBuilder, PlanValue, Threads};

/// What a stage computes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Computes {
    /// `2 a + b`, element for element.
    Sum,
    /// The same of a number for all.
    Scalar,
    /// The sums of blocks of so many elements.
    Blocks(usize),
    /// Each number of a block for each of its elements, added to the elements.
    Spread(usize),
    /// All elements from the last to the first.
    Reversed,
    /// One more than what is there.
    Next,
}

#[derive(Clone, Copy)]
struct Stage {
    computes: Computes,
    /// The element at which it fails, and whether by a panic.
    bad: Option<(usize, bool)>,
}

/// The numbers of an input, wherever it lies.
fn read(input: &Input<'_>, output: &[f32]) -> Result<Vec<f32>, BoxError> {
    Ok(if input.output().is_some() { output.to_vec() } else { input.elements::<f32>()?.to_vec() })
}

fn run(stage: &Stage, before: usize, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
    let y = outputs[0].elements::<f32>()?;
    match stage.computes {
        Computes::Sum => {
            let (a, b) = (read(&inputs[0], y)?, read(&inputs[1], y)?);
            y.iter_mut().zip(a.iter().zip(&b)).for_each(|(y, (a, b))| *y = 2.0 * a + b);
        }
        Computes::Scalar => {
            let b = inputs[1].elements::<f32>()?[0];
            y.iter_mut().zip(inputs[0].elements::<f32>()?).for_each(|(y, a)| *y = 2.0 * a + b);
        }
        Computes::Blocks(block) => {
            let blocks = inputs[0].elements::<f32>()?.chunks(block);
            y.iter_mut().zip(blocks).for_each(|(y, block)| *y = block.iter().sum());
        }
        Computes::Spread(block) => {
            let (a, blocks) = (inputs[0].elements::<f32>()?, inputs[1].elements::<f32>()?);
            y.iter_mut().zip(a).enumerate().for_each(|(at, (y, a))| *y = a + blocks[at / block]);
        }
        Computes::Reversed => {
            y.iter_mut().zip(inputs[0].elements::<f32>()?.iter().rev()).for_each(|(y, a)| *y = *a);
        }
        Computes::Next => y.iter_mut().for_each(|y| *y += 1.0),
    }
    let elements = inputs.first().map_or(0, |x| x.aval().size());
    match stage.bad {
        Some((bad, panics)) if (before..before + elements).contains(&bad) => {
            assert!(!panics, "at {bad}");
            Err(format!("element {bad} is bad").into())
        }
        _ => Ok(()),
    }
}

impl Kernel for Stage {
    fn name(&self) -> &'static str {
        match self.computes {
            Computes::Sum | Computes::Scalar => "Sum",
            Computes::Blocks(_) => "Blocks",
            Computes::Spread(_) => "Spread",
            Computes::Reversed => "Reversed",
            Computes::Next => "Next",
        }
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        let avals = |elements: usize| vec![Aval::new(&[elements as i32], Dtype::Float32)];
        Ok(match self.computes {
            Computes::Blocks(block) => avals(inputs[0].size().div_ceil(block)),
            _ => avals(inputs[0].size()),
        })
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        run(self, 0, inputs, outputs)
    }

    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let (unit, of_inputs, of_output) = match self.computes {
            Computes::Sum => (1, vec![Some(4), Some(4)], 4),
            Computes::Scalar => (1, vec![Some(4), None], 4),
            Computes::Blocks(block) => (block, vec![Some(4 * block)], 4),
            Computes::Spread(block) => (block, vec![Some(4 * block), Some(4)], 4 * block),
            Computes::Reversed | Computes::Next => return None,
        };
        let kernel = *self;
        Some(Pieces {
            elements: inputs[0].size(),
            unit,
            inputs: of_inputs,
            outputs: vec![of_output],
            eval: Box::new(move |piece, inputs, outputs| run(&kernel, piece.start, inputs, outputs)),
        })
    }

    fn in_place(&self, _: &[Aval]) -> Vec<(usize, usize)> {
        if self.computes == Computes::Sum { vec![(0, 0), (0, 1)] } else { Vec::new() }
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err("it is for plans".into())
    }
}

fn stage(computes: Computes) -> Arc<Stage> {
    Arc::new(Stage { computes, bad: None })
}

fn on_threads(_: usize, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| {
        for at in 0..tasks {
            scope.spawn(move || task(at));
        }
    });
}

/// A builder with so many threads, or one whose stages run one after the other.
fn builder(threads: usize) -> PlanBuilder {
    match threads {
        0 => PlanBuilder::default(),
        1 => PlanBuilder::default().in_pieces(Threads { count: || 1, run: on_threads }),
        _ => PlanBuilder::default().in_pieces(Threads { count: || 3, run: on_threads }),
    }
}

fn numbers(elements: usize) -> Array {
    let numbers: Vec<f32> = (0..elements).map(|at| (at * 37 % 101) as f32 / 8.0 - 6.0).collect();
    Array::from_slice(&numbers, &[elements as i32])
}

fn results(plan: Plan, inputs: &[Array]) -> Result<Vec<Vec<f32>>, String> {
    let outputs = plan.apply(inputs).expect("a node");
    crate::eval(&outputs).map_err(|error| error.to_string())?;
    Ok(outputs.iter().map(|output| output.as_slice::<f32>().to_vec()).collect())
}

/// The results of a plan to which the inputs are left.
fn results_of_own(plan: Plan, inputs: impl Into<Vec<Array>>) -> Vec<Vec<f32>> {
    let inputs = inputs.into();
    let outputs = plan.apply(&inputs).expect("a node");
    drop(inputs);
    crate::eval(&outputs).expect("it runs");
    outputs.iter().map(|output| output.as_slice::<f32>().to_vec()).collect()
}

/// An update as an optimizer has it: a number of each block is spread, changed, and made anew.
fn step(threads: usize, elements: usize, bad: Option<(usize, bool)>) -> Plan {
    step_of(builder(threads), elements, bad)
}

fn step_of(mut plan: PlanBuilder, elements: usize, bad: Option<(usize, bool)>) -> Plan {
    let x = plan.input(Aval::new(&[elements as i32], Dtype::Float32));
    let blocks = plan.input(Aval::new(&[elements.div_ceil(6) as i32], Dtype::Float32));
    let rate = plan.input(Aval::new(&[], Dtype::Float32));
    let mut add = |computes: Computes, inputs: &[PlanValue]| plan.stage(stage(computes), inputs).expect("a stage")[0];
    let spread = add(Computes::Spread(6), &[x, blocks]);
    let sum = add(Computes::Sum, &[spread, x]);
    let scaled = add(Computes::Scalar, &[sum, rate]);
    let blocks = Arc::new(Stage { computes: Computes::Blocks(6), bad });
    let blocks = plan.stage(blocks, &[sum]).expect("a stage")[0];
    plan.finish(&[scaled, blocks]).expect("a plan")
}

#[test]
fn pieces_give_the_bits_of_the_whole() {
    for elements in [1, 5, 6, 4095, 4096, 4097, 12_285, 12_286, 12_291, 100_003] {
        let inputs = [numbers(elements), numbers(elements.div_ceil(6)), Array::from_f32(0.5)];
        let whole = results(step(0, elements, None), &inputs).expect("it runs");
        for threads in [1, 3] {
            let plan = step(threads, elements, None);
            assert_eq!(plan.pieced(), 4);
            assert_eq!(results(plan, &inputs).expect("it runs"), whole, "{elements} on {threads}");
        }
    }
}

#[test]
fn tasks_that_are_all_called_with_one_number_share_no_memory() {
    let inputs = [numbers(100_003), numbers(100_003_usize.div_ceil(6)), Array::from_f32(0.5)];
    let whole = results(step(0, 100_003, None), &inputs).expect("it runs");
    let plan = step_of(
        builder(0).in_pieces(Threads { count: || 3, run: |_, _, task| on_threads(0, 8, &|_| task(0)) }),
        100_003,
        None,
    );
    assert_eq!(results(plan, &inputs).expect("it runs"), whole);
}

#[test]
fn what_stages_leave_to_each_other_is_a_piece_for_each_thread() {
    let elements = 1_000_000;
    assert_eq!(step(0, elements, None).arena(), 2 * 4 * elements);
    // A piece is the greatest multiple of 6 up to 4096.
    let piece = (4 * 4092_usize).next_multiple_of(64);
    assert_eq!([1, 3].map(|threads| step(threads, elements, None).arena()), [2 * piece, 6 * piece]);
    // Of few elements one thread computes all, and an array is no more than itself.
    assert_eq!([10_000, 5].map(|elements| step(3, elements, None).arena()), [2 * piece, 2 * 64]);
}

#[test]
fn a_failure_is_that_of_the_stage_that_failed() {
    for threads in [0, 1, 3] {
        let inputs = [numbers(50_000), numbers(50_000_usize.div_ceil(6)), Array::from_f32(0.5)];
        let error = results(step(threads, 50_000, Some((3_000, false))), &inputs).expect_err("it fails");
        assert!(error.contains("kernel Blocks failed: element 3000 is bad"), "{error}");
        let error = results(step(threads, 50_000, Some((3_000, true))), &inputs).expect_err("it panics");
        assert!(error.contains("kernel Blocks failed: panicked: at 3000"), "{error}");
    }
}

#[test]
fn of_stages_that_fail_the_first_one_is_named_by_the_first_of_its_elements() {
    for threads in [0, 1, 3] {
        let mut plan = builder(threads);
        let x = plan.input(Aval::new(&[50_000], Dtype::Float32));
        let mut stage = |computes: Computes, inputs: &[PlanValue], bad: usize| {
            let stage = Arc::new(Stage { computes, bad: Some((bad, false)) });
            plan.stage(stage, inputs).expect("a stage")[0]
        };
        let first = stage(Computes::Sum, &[x, x], 40_000);
        let second = stage(Computes::Blocks(6), &[first], 10);
        let plan = plan.finish(&[second]).expect("a plan");
        let error = results(plan, &[numbers(50_000)]).expect_err("it fails");
        assert!(error.contains("kernel Sum failed: element 40000 is bad"), "{error}");
    }
}

#[test]
fn what_is_taken_whole_or_written_in_place_is_made_before() {
    let mut plan = builder(1);
    let x = plan.input(Aval::new(&[10_000], Dtype::Float32));
    let mut add = |computes: Computes, inputs: &[PlanValue]| plan.stage(stage(computes), inputs).expect("a stage")[0];
    let first = add(Computes::Sum, &[x, x]);
    let second = add(Computes::Sum, &[first, x]);
    let reversed = add(Computes::Reversed, &[second]);
    let third = add(Computes::Sum, &[second, reversed]);
    let fourth = add(Computes::Sum, &[third, x]);
    let written = plan.update(stage(Computes::Next), x, &[]);
    let last = plan.stage(stage(Computes::Sum), &[fourth, written]).expect("a stage")[0];
    let plan = plan.finish(&[last, written]).expect("a plan");
    // The last stage does not run with those before it, which read what is written in place.
    let names: Vec<&str> = plan.stages().map(|(kernel, _)| kernel.name()).collect();
    assert_eq!((names, plan.pieced()), (vec!["Sum", "Sum", "Reversed", "Sum", "Sum", "Next", "Sum"], 4));
    assert_eq!(plan.donated, [(1, 0)]);
}

#[test]
fn a_chain_that_begins_first_and_ends_last_runs_last() {
    let inputs = [numbers(5_000), numbers(9_000)];
    let plan_of = |threads: usize| {
        let mut plan = builder(threads);
        let [x, y] = [5_000, 9_000].map(|elements| plan.input(Aval::new(&[elements], Dtype::Float32)));
        let mut sum = |a: PlanValue, b: PlanValue| plan.stage(stage(Computes::Sum), &[a, b]).expect("a stage")[0];
        let (outer, inner) = (sum(x, x), sum(y, y));
        let inner = sum(inner, y);
        let outer = sum(outer, x);
        plan.finish(&[outer, inner]).expect("a plan")
    };
    assert_eq!(plan_of(1).pieced(), 4);
    let expected = results(plan_of(0), &inputs).expect("it runs");
    assert_eq!(results(plan_of(1), &inputs).expect("it runs"), expected);
}

/// More threads than arenas wait for them.
#[test]
fn plans_of_several_threads_at_once_share_no_arena() {
    let elements = |seed: usize| 30_000 + 600 * seed;
    let inputs = move |seed: usize| {
        let elements = elements(seed);
        [numbers(elements), numbers(elements.div_ceil(6)), Array::from_f32(seed as f32 / 8.0)]
    };
    let alone = |seed: usize| results(step(0, elements(seed), None), &inputs(seed)).expect("it runs");
    let expected: Vec<_> = (0..4).map(alone).collect();
    std::thread::scope(|scope| {
        for (seed, expected) in expected.iter().enumerate() {
            scope.spawn(move || {
                let inputs = inputs(seed);
                for round in 0..60 {
                    let plan = step([0, 1, 3][round % 3], elements(seed), None);
                    assert_eq!(&results(plan, &inputs).expect("it runs"), expected, "{seed} in round {round}");
                }
            });
        }
    });
}

/// Plans of any stages compute what they compute one after the other.
#[test]
fn stages_in_any_order_compute_the_same() {
    let mut seed = 7_u64;
    let mut drawn = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    // More than one thread computes alone.
    let (elements, block, mut pieced, mut over_inputs) = (17_001_usize, 7, 0, 0);
    for round in 0..200 {
        let drafts: Vec<(Computes, [usize; 2])> = (0..2 + drawn(9))
            .map(|_| {
                let kinds = [
                    Computes::Sum,
                    Computes::Sum,
                    Computes::Scalar,
                    Computes::Blocks(block),
                    Computes::Spread(block),
                    Computes::Spread(block),
                    Computes::Reversed,
                    Computes::Next,
                ];
                (kinds[drawn(kinds.len())], [drawn(64), drawn(64)])
            })
            .collect();
        let needed: Vec<bool> = (0..drafts.len()).map(|_| drawn(4) == 0).collect();
        let plan_of = |threads: usize| {
            let mut plan = builder(threads);
            let (mut whole, mut blocks) = (Vec::new(), Vec::new());
            whole.extend([0, 1].map(|_| plan.input(Aval::new(&[elements as i32], Dtype::Float32))));
            blocks.push(plan.input(Aval::new(&[elements.div_ceil(block) as i32], Dtype::Float32)));
            let rate = plan.input(Aval::new(&[], Dtype::Float32));
            let mut outputs = Vec::new();
            for (&(computes, [a, b]), &needed) in drafts.iter().zip(&needed) {
                let (a, b, of_blocks) = (whole[a % whole.len()], whole[b % whole.len()], blocks[b % blocks.len()]);
                let inputs = match computes {
                    Computes::Sum => vec![a, b],
                    Computes::Scalar => vec![a, rate],
                    Computes::Spread(_) => vec![a, of_blocks],
                    _ => vec![a],
                };
                let value = match computes {
                    Computes::Next => plan.update(stage(computes), a, &[]),
                    _ => plan.stage(stage(computes), &inputs).expect("a stage")[0],
                };
                let produced = if computes == Computes::Blocks(block) { &mut blocks } else { &mut whole };
                produced.push(value);
                outputs.extend(needed.then_some(value));
            }
            outputs.extend([whole[whole.len() - 1], blocks[blocks.len() - 1]]);
            plan.finish(&outputs).expect("a plan")
        };
        let [inputs, donated] = [(), ()]
            .map(|()| [numbers(elements), numbers(elements), numbers(elements.div_ceil(block)), Array::from_f32(0.5)]);
        let expected = results(plan_of(0), &inputs).expect("it runs");
        for threads in [1, 3] {
            let plan = plan_of(threads);
            pieced += plan.pieced();
            assert_eq!(results(plan, &inputs).expect("it runs"), expected, "{round} on {threads}: {drafts:?}");
        }
        let plan = plan_of(0);
        over_inputs += plan.stages.iter().map(|stage| stage.in_place.len()).sum::<usize>();
        assert_eq!(results_of_own(plan, donated), expected, "{round} over its inputs: {drafts:?}");
    }
    assert!(pieced > 200 && over_inputs > 5, "{pieced} {over_inputs}");
}

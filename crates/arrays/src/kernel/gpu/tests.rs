//! The kernels' text on a CPU that plays a GPU, in every format, against the CPU's kernels; and as compilers for GPUs take it.

mod added;
mod attention;
mod deviations;
mod draw;
mod emulator;
mod hadamard;
mod int8_matmul;
mod product_scale_gradients;
mod refused;
mod round_columns;
mod scale_gradients;
mod sum;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;

use half::{bf16, f16};
use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Kernel, Launch, apply};
use tacit_kernels::Orientation;

use super::checks::{Checks, Within, avals, bytes, numbers, written};
use super::emulator::{Compiled, Job, Program};
use super::source::{Parts, Target};
use super::{dequantize, encode_tests, gather_matmul, gather_rows, grouped_matmul, matmul, signature};
use crate::format::mx::ScaleRule;
use crate::format::{Affine, Bf16, Format, Granularity, Int8, Mxfp8, Nf4, Symmetric};
use crate::kernel::dequantize::Dequantize;
use crate::kernel::gather::GatherRows;
use crate::kernel::gather_matmul::GatherMatmul;
use crate::kernel::matmul::Matmul;
use crate::kernel::quantize::Quantize;
use crate::kernel::tests::{Case, case, cases, normal};
use crate::kernel::{Groups, Layout, StackLayout};

/// What a kernel must give on these inputs.
type Expected = Box<dyn Fn(&[Array]) -> Array>;

/// A kernel on some inputs, with its source.
struct Sample {
    parts: Parts,
    inputs: Vec<Array>,
    dtype: Dtype,
    /// What a CPU's result may differ by.
    tolerance: f64,
    expected: Expected,
}

fn on_cpu(kernel: impl Kernel, inputs: &[Array]) -> Array {
    apply(kernel, inputs).expect("runs").remove(0)
}

/// The product with the dense matrix in the type of `x`.
fn with_rounded(layout: Layout, orientation: Orientation, inputs: &[Array]) -> Array {
    let dtype = inputs[0].dtype();
    let dense = on_cpu(Dequantize { layout, dtype }, &inputs[1..]).as_dtype(Dtype::Float32).expect("floats");
    let right = if orientation == Orientation::Transposed { dense.t() } else { dense };
    let x = inputs[0].as_dtype(Dtype::Float32).expect("floats");
    x.matmul(right).expect("fits").as_dtype(dtype).expect("floats")
}

pub(super) const DTYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16];

/// Rows of activations: for the few that are multiplied at once, and for tiles.
const ROWS: [i32; 3] = [1, 3, 70];

/// What sums of products may differ by.
fn tolerance(dtype: Dtype) -> f64 {
    // Sums of f32 in another order; rounded to a half float, they may lie on two sides of a tie, which is the last bit.
    match dtype {
        Dtype::Float16 => f64::from(f16::EPSILON) + 1e-5,
        Dtype::Bfloat16 => f64::from(bf16::EPSILON) + 1e-5,
        _ => 1e-5,
    }
}

/// The kernels of a case on inputs of such dtypes, which take turns.
fn samples(case: &Case, turn: usize, target: Target) -> Vec<Sample> {
    let Case { layout, children } = case;
    let layout = *layout;
    let mut samples = Vec::new();
    let dtype = DTYPES[turn % 3];
    let mut add = |parts: Option<Parts>, inputs: Vec<Array>, dtype: Dtype, tolerance: f64, kernel: Expected| {
        samples.push(Sample { parts: parts.expect("has a source"), inputs, dtype, tolerance, expected: kernel });
    };
    let parts = dequantize(&layout, &avals(children), dtype, target);
    add(parts, children.clone(), dtype, 0.0, Box::new(move |inputs| on_cpu(Dequantize { layout, dtype }, inputs)));
    let rows = Array::from_slice(&[2_u32, 0, 2], &[3]);
    let inputs = [&[rows], children.as_slice()].concat();
    let parts = gather_rows(&layout, &avals(&inputs), dtype, target);
    add(parts, inputs, dtype, 0.0, Box::new(move |inputs| on_cpu(GatherRows { layout, dtype }, inputs)));
    for (orientation, depth) in [(Orientation::Transposed, layout.k), (Orientation::Plain, layout.n)] {
        let in_turn = ROWS.into_iter().enumerate().map(|(at, m)| (m, DTYPES[(turn + at) % 3]));
        // What time is spent in.
        let hot = [
            (1, Dtype::Bfloat16),
            (8, Dtype::Bfloat16),
            (15, Dtype::Float16),
            (33, Dtype::Bfloat16),
            (70, Dtype::Bfloat16),
            (70, Dtype::Float16),
            (150, Dtype::Bfloat16),
        ];
        // The widest tiles take this CPU the longest, and are the same for all formats.
        let is_met = |m: i32| layout.k > LONG && (m < 100 || layout.scheme.label.starts_with("nf4"));
        let hot = hot.into_iter().filter(|&(m, _)| is_met(m));
        for (m, dtype) in in_turn.chain(hot) {
            let x = normal(2, &[m, depth as i32]).as_dtype(dtype).expect("a float type");
            let inputs = [&[x], children.as_slice()].concat();
            let parts = matmul(&layout, orientation, &avals(&inputs), target);
            // The matrix units take weights in the type of x.
            let is_rounded =
                parts.as_ref().is_some_and(|parts| ["_tile", "_wide"].iter().any(|way| parts.label.contains(way)));
            let expected = move |inputs: &[Array]| {
                if is_rounded {
                    with_rounded(layout, orientation, inputs)
                } else {
                    on_cpu(Matmul { layout, orientation, groups: None }, inputs)
                }
            };
            add(parts, inputs, dtype, tolerance(dtype), Box::new(expected));
        }
    }
    samples
}

/// Products with some of several matrices.
fn samples_of_stacks(case: &Case, turn: usize, target: Target) -> Vec<Sample> {
    let Case { layout, children } = case;
    let (layout, dtype) = (*layout, DTYPES[turn % 3]);
    let orientation = [Orientation::Transposed, Orientation::Plain][turn % 2];
    let count = [2, 3, layout.n].into_iter().find(|&count| layout.n.is_multiple_of(count)).unwrap_or(1);
    let n = layout.n / count;
    let depth = if orientation == Orientation::Transposed { layout.k } else { n } as i32;
    let stack = StackLayout { rows: layout, count, orientation };
    let m = [2, 33][turn / 2 % 2];
    let x = normal(2, &[4, m, depth]).as_dtype(dtype).expect("a float type");
    let indices = |of: usize| Array::from_slice(&(0..5).map(|at| (at * 7 + 3) % of as u32).collect::<Vec<_>>(), &[5]);
    let inputs = [&[x, indices(4), indices(count)], children.as_slice()].concat();
    let parts = gather_matmul(&stack, &avals(&inputs), target).expect("has a source");
    let expected = Box::new(move |inputs: &[Array]| on_cpu(GatherMatmul { stack }, inputs));
    let gathered = Sample { parts, inputs, dtype, tolerance: tolerance(dtype), expected };
    // Numbers of a table, and such as sizes of the launch tell.
    let matrix = |entry: usize| if (turn / 3).is_multiple_of(2) { (entry * 5 + 1) % count } else { entry / 2 % count };
    let groups = Groups { matrices: (0..4).map(matrix).collect(), rows: n };
    let x = normal(3, &[4, m, depth]).as_dtype(dtype).expect("a float type");
    let inputs = [&[x], children.as_slice()].concat();
    let parts = grouped_matmul(&layout, orientation, &groups, &avals(&inputs), target).expect("has a source");
    // The kernel of a CPU refuses groups whose first row begins within a block.
    let expected = Box::new(move |inputs: &[Array]| {
        Matmul { layout, orientation, groups: Some(groups.clone()) }.decompose(inputs).expect("runs").remove(0)
    });
    vec![gathered, Sample { parts, inputs, dtype, tolerance: tolerance(dtype), expected }]
}

/// The cases that the kernels of a CPU are tested on, and some of which matrix units and wide reads take part.
fn all_cases() -> Vec<Case> {
    let mut all = cases();
    all.push(case(&Nf4::from(64), 272, 261));
    all.push(case(&Nf4::from(64), 264, 576));
    all.push(case(&Nf4::from(64), 25, 640));
    all.push(case(&Nf4::from(64), 520, 320));
    all.push(case(&Int8 { granularity: Granularity::Block(576) }, 264, 576));
    all.push(case(&Affine { bits: 4, group: 64 }, 264, 576));
    all.push(case(&Affine { bits: 3, group: 32 }, 264, 640));
    all.push(case(&Affine { bits: 6, group: 32 }, 130, 320));
    all.push(case(&Symmetric { bits: 3, group: 32 }, 264, 640));
    all.push(case(&Symmetric { bits: 4, group: 32 }, 264, 320));
    all.push(case(&Symmetric { bits: 8, group: 32 }, 130, 320));
    all.push(case(&Mxfp8 { rule: ScaleRule::Ceil }, 130, 640));
    all
}

/// More columns than this are read in wide steps.
const LONG: usize = 256;

/// The samples of every case, or a third of them that meets every format and every way. `TACIT_SWEEP=full` asks for all.
fn all_samples(target: Target) -> Vec<Sample> {
    let is_full = is_full();
    let mut all = Vec::new();
    for (turn, case) in all_cases().iter().enumerate() {
        let of_case = samples(case, turn, target).into_iter().chain(samples_of_stacks(case, turn, target));
        let is_long = case.layout.k > LONG;
        all.extend(
            of_case.enumerate().filter(|(at, _)| is_full || is_long || (turn + at) % 3 == 0).map(|(_, sample)| sample),
        );
    }
    // Whoever changes the turns sees here what they no longer meet.
    let meets = |what: &str| {
        all.iter().any(|Sample { parts, .. }| parts.label.starts_with(what) && parts.label.contains("_wide"))
    };
    assert!(target.group().is_none() || ["matmul", "gather_matmul", "grouped_matmul"].into_iter().all(meets));
    all
}

/// `TACIT_SWEEP=full` asks for all.
fn is_full() -> bool {
    std::env::var("TACIT_SWEEP").is_ok_and(|sweep| sweep == "full")
}

/// Runs or writes samples.
fn check(name: &'static str, samples: impl Fn(Target) -> Vec<Sample>) {
    let mut checks = Checks::new(name);
    for Sample { parts, inputs, tolerance, expected, .. } in samples(checks.target()) {
        let within = if tolerance == 0.0 { Within::Each(0.0) } else { Within::All(tolerance) };
        let expected = expected(&inputs);
        checks.add(Some(parts), inputs, vec![expected], within);
    }
    checks.finish();
}

#[test]
fn they_give_what_the_kernels_of_a_cpu_give() {
    check("products", all_samples);
}

/// Launches for a matrix whose products fill a GPU, of which only shapes are needed: a few rows of x and all sizes of tiles.
fn launches_of_large_products(backend: GpuBackend) -> Vec<(Launch, Vec<Aval>, Vec<Dtype>)> {
    let k = 16384;
    let cases = [
        case(&Nf4::from(64), 1, k),
        case(&Affine { bits: 4, group: 64 }, 1, k),
        case(&Int8 { granularity: Granularity::Block(k) }, 1, k),
        case(&Mxfp8 { rule: ScaleRule::Ceil }, 1, k),
    ];
    let mut launches = Vec::new();
    for Case { layout, children } in &cases {
        for (n, m) in [(16384, 1), (16384, 40), (16384, 100), (16384, 400), (4096, 400)] {
            let of_rows = |child: &Array| Aval::new(&[n as i32, child.size() as i32], child.dtype());
            let x = Aval::new(&[m, k as i32], Dtype::Bfloat16);
            let inputs: Vec<Aval> = [x].into_iter().chain(children.iter().map(of_rows)).collect();
            let layout = Layout { n, ..*layout };
            let parts = matmul(&layout, Orientation::Transposed, &inputs, backend.into()).expect("has a source");
            launches.push((parts.launch(), inputs, vec![Dtype::Bfloat16]));
        }
    }
    launches
}

#[test]
fn four_rows_share_what_is_read_of_x() {
    check("many_rows", |target| {
        // Neither a multiple of four rows nor of what a warp reads at once.
        let Case { layout, children } = case(&Nf4::from(64), 8193, 576);
        let x = normal(2, &[1, 576]).as_dtype(Dtype::Bfloat16).expect("a float type");
        let inputs = [&[x], children.as_slice()].concat();
        let parts = matmul(&layout, Orientation::Transposed, &avals(&inputs), target).expect("has a source");
        assert!(parts.body.contains(", 4, 4, 1>"), "{}", parts.body);
        let expected = Box::new(move |inputs: &[Array]| {
            on_cpu(Matmul { layout, orientation: Orientation::Transposed, groups: None }, inputs)
        });
        vec![Sample { parts, inputs, dtype: Dtype::Bfloat16, tolerance: tolerance(Dtype::Bfloat16), expected }]
    });
}

/// Five and twelve rows of half floats with weights of this magnitude, and x of that.
fn samples_of_magnitude(format: &impl Format, [weights, x]: [f32; 2], target: Target) -> Vec<Sample> {
    let (scheme, block, n, k) = (format.scheme(), format.block(), 24, 512);
    let of = |seed, rows: usize, magnitude| {
        normal(seed, &[rows as i32, k as i32]).multiply(Array::from_f32(magnitude)).expect("scales")
    };
    let children = apply(Quantize::new(scheme, block), &[of(1, n, weights)]).expect("quantizes");
    let (layout, orientation) = (Layout { scheme, n, k, block }, Orientation::Transposed);
    let sample = |m| {
        let dtype = Dtype::Float16;
        let inputs = [&[of(2, m, x).as_dtype(dtype).expect("a float type")], children.as_slice()].concat();
        let parts = matmul(&layout, orientation, &avals(&inputs), target).expect("has a source");
        assert!(parts.label.contains("_h"), "{}", parts.label);
        let expected = Box::new(move |inputs: &[Array]| on_cpu(Matmul { layout, orientation, groups: None }, inputs));
        Sample { parts, inputs, dtype, tolerance: 1e-3, expected }
    };
    [5, 12].map(sample).into()
}

#[test]
fn weights_beyond_the_range_of_f16_are_multiplied_with_f16() {
    check("magnitudes", |target| {
        let magnitudes = [[1e-6, 10.0], [1e-4, 10.0], [2e5, 1e-4]].into_iter();
        let both = |of| [samples_of_magnitude(&Bf16, of, target), samples_of_magnitude(&Nf4::from(64), of, target)];
        magnitudes.flat_map(both).flatten().collect()
    });
}

/// Every launch that the tests know, with its inputs and the dtypes of its results.
fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    all_samples(backend.into())
        .into_iter()
        .chain(attention::samples(is_full(), backend.into()))
        .chain(attention::large_samples(backend.into()))
        .map(|sample| (sample.parts.launch(), avals(&sample.inputs), vec![sample.dtype]))
        .chain(encode_tests::launches(backend))
        .chain(added::launches(backend))
        .chain(deviations::launches(backend))
        .chain(draw::launches(backend))
        .chain(hadamard::launches(backend))
        .chain(int8_matmul::launches(backend))
        .chain(round_columns::launches(backend))
        .chain(scale_gradients::launches(backend))
        .chain(product_scale_gradients::launches(backend))
        .chain(launches_of_large_products(backend))
        .chain(sum::launches(backend))
}

/// Its half floats have names that are no variable's, and its longest integers are `long`.
#[test]
fn no_text_for_metal_has_what_that_language_has_not() {
    let header = Target::from(GpuBackend::Metal).header();
    let is_foreign = |word: &str| {
        let is_number = word.starts_with(|letter: char| letter.is_ascii_digit());
        matches!(word, "half" | "bfloat") || is_number && word.to_lowercase().contains("ll")
    };
    for (launch, ..) in launches(GpuBackend::Metal) {
        // Only what they all begin with names those types.
        let own = launch.header.strip_prefix(header.as_str()).expect("the same header");
        let code = own.lines().chain(launch.body.lines()).filter(|line| !line.trim_start().starts_with("//"));
        let mut words = code.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
        assert_eq!(words.find(|word| is_foreign(word)), None, "{}", launch.name);
    }
}

/// MLX compiles a text once for its name, with a parameter for each input and result.
#[test]
fn launches_of_one_name_have_one_text_that_reads_what_it_names() {
    for backend in [GpuBackend::Cuda, GpuBackend::Metal] {
        let mut known: HashMap<String, Launch> = HashMap::new();
        for (launch, inputs, outputs) in launches(backend) {
            assert_eq!((launch.inputs.len(), launch.outputs.len()), (inputs.len(), outputs.len()), "{}", launch.name);
            reads_what_it_names(&launch);
            let before = known.entry(launch.name.clone()).or_insert_with(|| launch.clone());
            let text = |launch: &Launch| [launch.header.clone(), launch.body.clone()].concat();
            assert_eq!(text(before), text(&launch), "{}", launch.name);
            assert_eq!((&before.inputs, &before.outputs), (&launch.inputs, &launch.outputs), "{}", launch.name);
            // Metal's text says how many threads a group has.
            assert!(backend == GpuBackend::Cuda || before.group == launch.group, "{}", launch.name);
        }
    }
}

/// The parameters have names of their own, and the body reads each.
fn reads_what_it_names(launch: &Launch) {
    let words = launch.body.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let (words, mut named) = (words.collect::<HashSet<_>>(), HashSet::new());
    for parameter in launch.inputs.iter().chain(&launch.outputs) {
        assert!(words.contains(parameter.as_str()), "{} does not read {parameter}", launch.name);
        assert!(named.insert(parameter), "{} has two parameters {parameter}", launch.name);
    }
}

/// The texts as MLX would compile them go to the folder that `TACIT_GPU_TEXTS` names, for `tests/scripts/gpu_sources.sh`.
#[test]
fn their_sources_are_written_for_compilers() {
    let Some(folder) = std::env::var_os("TACIT_GPU_TEXTS") else { return };
    for (backend, ending) in [(GpuBackend::Cuda, "cu"), (GpuBackend::Metal, "metal")] {
        let mut written = HashSet::new();
        for (launch, inputs, outputs) in launches(backend) {
            if written.insert(launch.name.clone()) {
                let text = signature::function(&launch, backend, &inputs, &outputs);
                std::fs::write(Path::new(&folder).join(format!("{}.{ending}", launch.name)), text).expect("writes");
            }
        }
    }
}

/// The large ones go to the folder that `TACIT_GPU_CASES` names, where `tests/gpu/cases.py` measures them.
#[test]
fn large_products_are_written_to_be_measured() {
    let Some(folder) = std::env::var_os("TACIT_GPU_CASES") else { return };
    let folder = Path::new(&folder);
    let mut lines = String::new();
    for (launch, inputs, outputs) in launches_of_large_products(GpuBackend::Cuda) {
        let line = written(folder, &launch, &inputs, &outputs).expect("writes");
        let _ = writeln!(lines, "{line}");
    }
    std::fs::write(folder.join("large.json"), lines).expect("writes");
}

#[test]
fn an_index_outside_of_what_it_chooses_from_gives_nan() {
    let Case { layout, children } = case(&Nf4::from(32), 6, 64);
    let nan =
        |found: &[f32], row: usize, width: usize| found[row * width..][..width].iter().all(|value| value.is_nan());
    let mut program = Program::default();
    let rows = Array::from_slice(&[1_u32, 6, u32::MAX, 5], &[4]);
    let taken = [&[rows], children.as_slice()].concat();
    let parts = gather_rows(&layout, &avals(&taken), Dtype::Float32, Target::Host).expect("has a source");
    let gather = program.add(parts, &avals(&taken), &[Dtype::Float32]);
    let stack = StackLayout { rows: layout, count: 3, orientation: Orientation::Transposed };
    let indices = |indices: &[u32]| Array::from_slice(indices, &[3]);
    let chosen = [&[normal(1, &[2, 1, 64]), indices(&[0, 2, 1]), indices(&[2, 0, 3])], children.as_slice()].concat();
    let parts = gather_matmul(&stack, &avals(&chosen), Target::Host).expect("has a source");
    let multiply = program.add(parts, &avals(&chosen), &[Dtype::Float32]);
    let job = |launch: &Compiled, inputs: &[Array], length| Job {
        launch: launch.clone(),
        order: 0,
        at_end: true,
        flushes: false,
        offsets: Vec::new(),
        inputs: inputs.iter().map(bytes).collect(),
        lengths: vec![length],
    };
    let Some(emulator) = program.compile() else { return };
    let results = emulator.run(&[job(&gather, &taken, 4 * 64 * 4), job(&multiply, &chosen, 3 * 2 * 4)]).expect("runs");
    let [gathered, multiplied] = [&results[0], &results[1]].map(|results| numbers(&results[0], Dtype::Float32));
    assert_eq!([0, 1, 2, 3].map(|row| nan(&gathered, row, 64)), [false, true, true, false]);
    assert_eq!([0, 1, 2].map(|entry| nan(&multiplied, entry, 2)), [false, true, true]);
}

#[test]
fn one_text_serves_every_batch() {
    let Case { layout, children } = case(&Nf4::from(32), 6, 64);
    let name = |matrices: &[usize]| {
        let x = Aval::new(&[matrices.len() as i32, 1, 64], Dtype::Float32);
        let (inputs, groups) = ([vec![x], avals(&children)].concat(), Groups { matrices: matrices.to_vec(), rows: 2 });
        let parts = grouped_matmul(&layout, Orientation::Transposed, &groups, &inputs, Target::Host);
        parts.expect("has a source").launch().name
    };
    let batches: [&[usize]; 5] = [&[0, 1, 2], &[0, 1], &[1], &[0, 0, 1, 1], &[0, 1, 2, 0, 1, 2]];
    let names: HashSet<String> = batches.into_iter().map(name).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(!names.contains(&name(&[2, 0])));
}

#[test]
fn more_rows_than_a_grid_has_tiles_for_are_multiplied_in_turns() {
    let Case { layout, children } = case(&Nf4::from(32), 6, 64);
    let with_children = |x: Aval| [vec![x], avals(&children)].concat();
    let mut checks = Checks::new("turns");
    let parts = |m: i32| {
        let inputs = with_children(Aval::new(&[m, 64], Dtype::Float32));
        matmul(&layout, Orientation::Transposed, &inputs, checks.target()).expect("has a source")
    };
    assert_eq!(parts(64 * 65535).groups, [1, 65535, 1]);
    let mut turns = parts(64 * 65535 + 1);
    assert_eq!(turns.groups, [1, 65535, 1]);
    // Few rows, as if a grid had one group there.
    let body = turns.body.replace("row += 4194240", "row += 64");
    assert_ne!(body, turns.body);
    (turns.body, turns.groups, turns.sizes[2]) = (body, [1, 1, 1], 150);
    let inputs = [&[normal(2, &[150, 64])], children.as_slice()].concat();
    let expected = on_cpu(Matmul { layout, orientation: Orientation::Transposed, groups: None }, &inputs);
    checks.add(Some(turns), inputs, vec![expected], Within::All(tolerance(Dtype::Float32)));
    checks.finish();
}

//! Launches with their expected results: run on a CPU that plays a GPU, or written to files for a machine that has one.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};
use serde_json::{Value, json};
use tacit_conformance::oracle::relative_error;
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch};

use super::emulator::{Job, Program};
use super::signature;
use super::source::{Parts, Target};

/// What results may differ by.
#[derive(Clone, Copy)]
pub(super) enum Within {
    /// Each number by so much of itself; by not a bit with 0.
    Each(f32),
    /// The number that differs most by so much of the largest.
    All(f64),
}

/// A launch with what it must give.
struct Check {
    parts: Parts,
    inputs: Vec<Array>,
    expected: Vec<Array>,
    within: Within,
}

/// The checks of a test.
pub(super) struct Checks {
    name: &'static str,
    /// Where they are written, for a machine with a GPU.
    folder: Option<PathBuf>,
    /// Whether subnormal numbers are taken for zero, as Metal may take them.
    flushes: bool,
    cases: Vec<Check>,
}

impl Checks {
    /// None yet. Where `TACIT_GPU_CASES` names a folder, they are written there by this name and not run.
    pub(super) fn new(name: &'static str) -> Self {
        let folder = std::env::var_os("TACIT_GPU_CASES").map(PathBuf::from);
        Self { name, folder, flushes: false, cases: Vec::new() }
    }

    /// The same where subnormal numbers are taken for zero.
    pub(super) fn flushing(self) -> Self {
        Self { flushes: true, ..self }
    }

    /// What the parts of a launch are made for.
    pub(super) fn target(&self) -> Target {
        if self.folder.is_some() { GpuBackend::Cuda.into() } else { Target::Host }
    }

    pub(super) fn add(&mut self, parts: Option<Parts>, inputs: Vec<Array>, expected: Vec<Array>, within: Within) {
        self.cases.push(Check { parts: parts.expect("has a source"), inputs, expected, within });
    }

    /// Runs or writes them.
    pub(super) fn finish(self) {
        match self.folder.clone() {
            Some(folder) => self.write(&folder).expect("writes"),
            None => self.run(),
        }
    }

    fn run(self) {
        assert!(!self.cases.is_empty(), "{}: nothing is checked", self.name);
        let mut program = Program::default();
        let (mut jobs, mut expectations) = (Vec::new(), Vec::new());
        for (at, Check { parts, inputs, expected, within }) in self.cases.into_iter().enumerate() {
            expectations.push((format!("{} {:?}", parts.label, parts.sizes), expected.clone(), within));
            jobs.push(Job {
                launch: program.add(parts, &avals(&inputs), &dtypes(&expected)),
                order: at as u32 % 4,
                at_end: at % 2 == 1,
                flushes: self.flushes,
                // Some begin at no multiple of 16, each by the width of an element.
                offsets: inputs.iter().chain(&expected).filter(|_| at % 5 == 4).map(Array::item_size).collect(),
                inputs: inputs.iter().map(bytes).collect(),
                lengths: expected.iter().map(Array::nbytes).collect(),
            });
        }
        let Some(emulator) = program.compile() else { return };
        let results = emulator.run(&jobs).expect("runs");
        assert_eq!(results.len(), jobs.len());
        let mut wrong = Vec::new();
        for ((name, expected, within), found) in expectations.iter().zip(&results) {
            assert_eq!(expected.len(), found.len(), "{name}");
            for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
                if let Some(difference) = difference(found, expected, *within) {
                    wrong.push(format!("{name}, result {at}: {difference}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// A line for each, its text, and all bytes of inputs and results in one file. `tests/gpu/cases.py` reads them.
    fn write(self, folder: &Path) -> std::io::Result<()> {
        let mut lines = BufWriter::new(File::create(folder.join(format!("{}.jsonl", self.name)))?);
        let mut data = BufWriter::new(File::create(folder.join(format!("{}.bin", self.name)))?);
        let mut end = 0;
        for Check { parts, inputs, expected, within } in self.cases {
            let mut line = written(folder, &parts.launch(), &avals(&inputs), &dtypes(&expected))?;
            let mut kept = |array: &Array| -> std::io::Result<Value> {
                let bytes = bytes(array);
                data.write_all(&bytes)?;
                end += bytes.len();
                Ok(json!({"dtype": named(array.dtype()), "from": end - bytes.len(), "bytes": bytes.len()}))
            };
            line["inputs"] = inputs.iter().map(&mut kept).collect::<Result<_, _>>()?;
            line["expected"] = expected.iter().map(&mut kept).collect::<Result<_, _>>()?;
            line["within"] = match within {
                Within::Each(each) => json!({"each": each}),
                Within::All(all) => json!({"all": all}),
            };
            writeln!(lines, "{line}")?;
        }
        lines.flush()?;
        data.flush()
    }
}

/// Writes the text of a launch, and says how it is started and what its inputs are.
pub(super) fn written(folder: &Path, launch: &Launch, inputs: &[Aval], outputs: &[Dtype]) -> std::io::Result<Value> {
    let Launch { name, sizes, grid, group, memory, .. } = launch;
    std::fs::write(folder.join(format!("{name}.cu")), signature::function(launch, GpuBackend::Cuda, inputs, outputs))?;
    let inputs: Vec<Value> =
        inputs.iter().map(|input| json!({"dtype": named(input.dtype), "shape": input.shape})).collect();
    Ok(json!({"name": name, "sizes": sizes, "grid": grid, "group": group, "memory": memory, "inputs": inputs}))
}

/// A dtype as Python's libraries call it.
fn named(dtype: Dtype) -> String {
    format!("{dtype:?}").to_lowercase()
}

/// How bytes differ from an array by more than they may. NaN is NaN.
fn difference(found: &[u8], expected: &Array, within: Within) -> Option<String> {
    let dtype = expected.dtype();
    if !dtype.is_float() {
        let expected = bytes(expected);
        let at = found.iter().zip(&expected).position(|(found, expected)| found != expected)?;
        return Some(format!("byte {at} of {} is {:#x}, not {:#x}", expected.len(), found[at], expected[at]));
    }
    let [found, expected] = [numbers(found, dtype), numbers(&bytes(expected), dtype)];
    match within {
        Within::Each(each) => {
            let is_equal = |a: f32, b: f32| {
                a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan() || each > 0.0 && (a - b).abs() <= each * b.abs()
            };
            let at = found.iter().zip(&expected).position(|(found, expected)| !is_equal(*found, *expected))?;
            Some(format!("number {at} of {} is {:e}, not {:e}", expected.len(), found[at], expected[at]))
        }
        Within::All(all) => {
            let [a, b] = [&found, &expected].map(|numbers| Array::from_slice(numbers, &[numbers.len() as i32]));
            let error = relative_error(&a, &b).expect("compares");
            (error.is_nan() || error > all).then(|| format!("{error:e} of the largest, where {all:e} is granted"))
        }
    }
}

pub(super) fn avals(inputs: &[Array]) -> Vec<Aval> {
    inputs.iter().map(Aval::from).collect()
}

fn dtypes(arrays: &[Array]) -> Vec<Dtype> {
    arrays.iter().map(Array::dtype).collect()
}

pub(super) fn bytes(array: &Array) -> Vec<u8> {
    fn collected<T: mlx_rs::ArrayElement + Copy, const N: usize>(array: &Array, bytes: fn(T) -> [u8; N]) -> Vec<u8> {
        array.as_slice::<T>().iter().flat_map(|&value| bytes(value)).collect()
    }
    array.eval().expect("evaluates");
    match array.dtype() {
        Dtype::Bool => collected(array, |value: bool| [value.into()]),
        Dtype::Uint8 => collected(array, u8::to_le_bytes),
        Dtype::Int8 => collected(array, i8::to_le_bytes),
        Dtype::Uint16 => collected(array, u16::to_le_bytes),
        Dtype::Uint32 => collected(array, u32::to_le_bytes),
        Dtype::Float16 => collected(array, half::f16::to_le_bytes),
        Dtype::Bfloat16 => collected(array, half::bf16::to_le_bytes),
        _ => collected(array, f32::to_le_bytes),
    }
}

pub(super) fn numbers(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::Float16 => bytes.as_chunks().0.iter().map(|&bytes| half::f16::from_le_bytes(bytes).to_f32()).collect(),
        Dtype::Bfloat16 => bytes.as_chunks().0.iter().map(|&bytes| half::bf16::from_le_bytes(bytes).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
    }
}

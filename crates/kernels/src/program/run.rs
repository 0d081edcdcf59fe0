//! A program on its inputs.

use std::{cell::Cell, mem, ops::Range};

use super::{
    Data, DataMut, Extent, Kind, Op, Program,
    apply::{apply, round_all, select},
    plan::{Action, Place},
    reduce::reduce,
};
use crate::{
    Isa, KernelError,
    matrix::check_length,
    simd::{Kernel, Simd, run},
    threads,
};

/// Passes over single elements below which another thread takes longer to wake than to help.
const ALONE: usize = 1 << 18;

/// Tasks for each thread.
const TASKS: usize = 4;

impl Program {
    /// Runs the program, which writes every number of `results`; of rows without elements it writes none.
    ///
    /// # Errors
    /// A number, length or type of inputs or results other than those of the program.
    pub fn run(&self, inputs: &[Data<'_>], results: Vec<DataMut<'_>>) -> Result<(), KernelError> {
        self.run_on([self.rows, self.columns], inputs, results)
    }

    /// Runs the program on the rows and columns of a part.
    pub(super) fn run_on(
        &self,
        size: [usize; 2],
        inputs: &[Data<'_>],
        results: Vec<DataMut<'_>>,
    ) -> Result<(), KernelError> {
        self.check(size, inputs, &results)?;
        let [across, down] = self.blocks(size);
        let (blocks, elements) = (across * down, size[0] * size[1]);
        if blocks == 0 || elements == 0 {
            return Ok(());
        }
        let work = elements * self.cost;
        let tasks = if work < ALONE { 1 } else { (TASKS * threads::count()).min(work.div_ceil(ALONE / 2)).min(blocks) };
        if tasks == 1 {
            run(Isa::detect(), Task { program: self, size, inputs, results, start: (0, 0), blocks: 0..blocks });
            return Ok(());
        }
        let tasks: Vec<Task<'_, '_>> = self.tasks(size, inputs, results, tasks);
        threads::for_each_part(usize::MAX, tasks.into_iter(), &|task| run(Isa::detect(), task));
        Ok(())
    }

    /// Cuts the results at the ends of blocks.
    fn tasks<'a, 'r>(
        &'a self,
        size: [usize; 2],
        inputs: &'a [Data<'a>],
        results: Vec<DataMut<'r>>,
        tasks: usize,
    ) -> Vec<Task<'a, 'r>> {
        let [across, down] = self.blocks(size);
        let blocks = across * down;
        let mut rest = results;
        (0..tasks)
            .map(|task| {
                let range = task * blocks / tasks..(task + 1) * blocks / tasks;
                let start = self.begin(size, range.start);
                let end = self.begin(size, range.end);
                let parts = rest
                    .iter_mut()
                    .zip(&self.results)
                    .map(|(result, written)| result.split_off(written.numbers(end.0 - start.0, end.1 - start.1)));
                Task { program: self, size, inputs, results: parts.collect(), start, blocks: range }
            })
            .collect()
    }

    /// The row and the element that a block begins with.
    fn begin(&self, size: [usize; 2], block: usize) -> (usize, usize) {
        let [across, down] = self.blocks(size);
        if block == across * down {
            return (size[0], size[0] * size[1]);
        }
        let (rows, columns) = self.area(size, block);
        (rows.start, rows.start * size[1] + columns.start)
    }

    fn check(&self, size: [usize; 2], inputs: &[Data<'_>], results: &[DataMut<'_>]) -> Result<(), KernelError> {
        check_length("inputs", inputs.len(), self.sources.len(), "one for each input of the program")?;
        check_length("results", results.len(), self.results.len(), "one for each result of the program")?;
        let kind = |found: Kind, expected: Kind| {
            if found == expected {
                return Ok(());
            }
            Err(KernelError::Program { what: format!("has {expected:?} where {found:?} was given") })
        };
        for (number, (input, source)) in inputs.iter().zip(&self.sources).enumerate() {
            let Some((found, count)) = input.shape() else {
                self.check_in_place(number, inputs)?;
                continue;
            };
            kind(found, source.kind)?;
            let rows = if source.map.is_own(self.rows) { size[0] } else { source.map.modulus };
            let numbers = rows * source.map.pitch(size[1]);
            check_length("an input", count, numbers, "the rows that its map gives it")?;
        }
        for (result, written) in results.iter().zip(&self.results) {
            kind(result.kind(), written.kind)?;
            let numbers = written.numbers(size[0], size[0] * size[1]);
            check_length("a result", result.len(), numbers, "one number for each row or element")?;
        }
        Ok(())
    }
}

/// Some blocks, and their parts of the results.
struct Task<'a, 'r> {
    program: &'a Program,
    size: [usize; 2],
    inputs: &'a [Data<'a>],
    results: Vec<DataMut<'r>>,
    /// The row and the element that the results begin with.
    start: (usize, usize),
    blocks: Range<usize>,
}

impl Kernel for Task<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        let program = self.program;
        let size = program.block[0] * program.block[1];
        let mut registers = REGISTERS.take();
        registers.resize_with(registers.len().max(program.registers), Vec::new);
        // They grow alone: programs of several sizes take turns.
        for register in registers.iter_mut().take(program.registers) {
            register.resize(register.len().max(size), 0.0);
        }
        for &(register, constant) in &program.constants {
            registers[register][..size].fill(constant);
        }
        let mut prepared = false;
        for block in self.blocks.clone() {
            let (rows, columns) = program.area(self.size, block);
            let area = Area { rows, columns, width: self.size[1] };
            if !prepared {
                // The first block of a task has as many rows as any of it.
                for action in &program.prologue {
                    if let Action::Load { input, extent, register } = *action {
                        self.load(input, extent, &area, &mut registers[register][..size]);
                    }
                }
                prepared = true;
            }
            for action in &program.actions {
                self.act(action, &area, &mut registers);
            }
        }
        if registers.iter().map(Vec::capacity).sum::<usize>() <= KEPT {
            REGISTERS.set(registers);
        }
    }
}

/// The most numbers that a thread keeps between programs.
const KEPT: usize = 1 << 20;

thread_local! {
    /// The registers of this thread's latest program: a step has hundreds of small ones, and each would make its own.
    static REGISTERS: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

struct Area {
    rows: Range<usize>,
    columns: Range<usize>,
    /// Columns of the domain.
    width: usize,
}

impl Area {
    #[inline(always)]
    fn numbers(&self, extent: Extent) -> usize {
        if extent == Extent::Each { self.rows.len() * self.columns.len() } else { self.rows.len() }
    }

    /// Where the numbers of the block are in what has a number for each row or element.
    #[inline(always)]
    fn range(&self, extent: Extent) -> Range<usize> {
        let start =
            if extent == Extent::Each { self.rows.start * self.width + self.columns.start } else { self.rows.start };
        start..start + self.numbers(extent)
    }
}

impl Task<'_, '_> {
    #[inline(always)]
    fn act(&mut self, action: &Action, area: &Area, registers: &mut [Vec<f32>]) {
        match *action {
            Action::Load { input, extent, register } => self.load(input, extent, area, &mut registers[register]),
            Action::Apply { op, precision, operands, extent, register } => {
                let mut out = mem::take(&mut registers[register]);
                let place = |at: usize, extent: Extent| self.numbers(operands[at], area, extent, registers);
                let to = &mut out[..area.numbers(extent)];
                match op {
                    Op::Select => select(to, place(0, extent), place(1, extent), place(2, extent)),
                    Op::Spread => {
                        let width = area.columns.len();
                        for (out, value) in to.chunks_exact_mut(width).zip(place(0, Extent::Row)) {
                            out.fill(*value);
                        }
                    }
                    op if op.is_reduction() => {
                        let width = area.columns.len();
                        for (out, row) in to.iter_mut().zip(place(0, Extent::Each).chunks_exact(width)) {
                            *out = reduce(op, row);
                        }
                        round_all(precision, to);
                    }
                    op => apply(op, precision, to, place(0, extent), place(op.arity() - 1, extent)),
                }
                registers[register] = out;
            }
            Action::Store { place, extent, result, at } => {
                let start = if extent == Extent::Each { self.start.1 } else { self.start.0 };
                // Another result may be what is stored.
                let mut data = mem::replace(&mut self.results[result], DataMut::F32(&mut []));
                let (first, numbers) = (area.range(extent).start - start, self.numbers(place, area, extent, registers));
                let values = self.program.results[result].values;
                if values == 1 {
                    data.store(first, numbers);
                } else {
                    // The block is of whole rows.
                    for (row, numbers) in numbers.chunks_exact(area.width).enumerate() {
                        data.store(first * values + (row * values + at) * area.width, numbers);
                    }
                }
                self.results[result] = data;
            }
        }
    }

    #[inline(always)]
    fn numbers<'v>(&'v self, place: Place, area: &Area, extent: Extent, registers: &'v [Vec<f32>]) -> &'v [f32] {
        match place {
            Place::Register(register) => &registers[register][..area.numbers(extent)],
            Place::Input(input) => self.input(input, area.range(extent)),
        }
    }

    #[inline(always)]
    fn input(&self, input: usize, range: Range<usize>) -> &[f32] {
        match self.inputs[input] {
            Data::F32(values) => &values[range],
            Data::Result(result) => match &self.results[result] {
                DataMut::F32(values) => &values[range.start - self.start.1..range.end - self.start.1],
                _ => unreachable!("a result has the type of the input that lies in it"),
            },
            _ => unreachable!("only floats are read where they are"),
        }
    }

    #[inline(always)]
    fn load(&self, input: usize, extent: Extent, area: &Area, out: &mut [f32]) {
        let (data, map) = (&self.inputs[input], self.program.sources[input].map);
        match extent {
            Extent::Whole => {
                let mut value = [0.0];
                data.load(0, &mut value);
                out.fill(value[0]);
            }
            Extent::Each if map.is_whole(self.program.rows) => {
                let (start, out) = (area.range(extent).start, &mut out[..area.numbers(extent)]);
                match *data {
                    Data::Result(result) => self.results[result].data().load(start - self.start.1, out),
                    data => data.load(start, out),
                }
            }
            Extent::Each => {
                for (row, out) in area.rows.clone().zip(out.chunks_exact_mut(area.columns.len())) {
                    data.load(map.begin(row, area.width) + area.columns.start, out);
                }
            }
            Extent::Row => {
                for (row, out) in area.rows.clone().zip(out) {
                    data.load(map.begin(row, area.width), std::slice::from_mut(out));
                }
            }
        }
    }
}

//! A program that was checked, and where each of its values is while a block runs.

use std::ops::Range;

use super::{
    Kind, Op, Precision,
    source::{Columns, Source},
};
use crate::{KernelError, matrix::product};

/// A value of a program: the inputs come first, then the constants, then one for each step.
pub type Value = usize;

/// What one value of a program stands for: the whole array, a row, an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// All elements together.
    Whole,
    /// A row.
    Row,
    /// An element.
    Each,
}

/// One op on values that come before it; operands behind those that the op has are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub operands: [Value; 3],
    /// The type that it computes in.
    pub precision: Precision,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// In an input of floats, element for element.
    Input(usize),
    Register(usize),
}

/// What is done for each block, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Brings an input to a register.
    Load {
        input: usize,
        extent: Extent,
        register: usize,
    },
    Apply {
        op: Op,
        precision: Precision,
        operands: [Place; 3],
        extent: Extent,
        register: usize,
    },
    /// Writes a value of a result: the one `at` this place of those that are side by side in its rows.
    Store {
        place: Place,
        extent: Extent,
        result: usize,
        at: usize,
    },
}

/// What a result has of each row or element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) extent: Extent,
    pub(super) kind: Kind,
    /// The values that are side by side in its rows.
    pub(super) values: usize,
}

impl Written {
    /// The numbers of so many rows, or of their elements.
    pub(super) fn numbers(self, rows: usize, elements: usize) -> usize {
        if self.extent == Extent::Each { elements * self.values } else { rows }
    }
}

/// A straight-line program over rows.
///
/// ```
/// use tacit_kernels::program::{Columns, Data, DataMut, Kind, Map, Op, Precision, Program, Source, Step};
///
/// // Each row divided by its sum.
/// let source = Source { kind: Kind::F32, map: Map { columns: Columns::All, divisor: 1, modulus: 2 } };
/// let steps = vec![
///     Step { op: Op::Sum, operands: [0; 3], precision: Precision::Single },
///     Step { op: Op::Divide, operands: [0, 1, 0], precision: Precision::Single },
/// ];
/// let program = Program::new([2, 2], vec![source], &[], &steps, &[(2, Kind::F32)])?;
/// let mut y = [0.0; 4];
/// program.run(&[Data::F32(&[1.0, 3.0, 2.0, 2.0])], vec![DataMut::F32(&mut y)])?;
/// assert_eq!(y, [0.25, 0.75, 0.5, 0.5]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) sources: Vec<Source>,
    pub(super) results: Vec<Written>,
    /// What registers hold from the start of a task on.
    pub(super) constants: Vec<(usize, f32)>,
    /// Loads of what is the same for all blocks.
    pub(super) prologue: Vec<Action>,
    pub(super) actions: Vec<Action>,
    pub(super) registers: usize,
    /// Rows and columns of a block.
    pub(super) block: [usize; 2],
    /// What an element costs, in passes over a block.
    pub(super) cost: usize,
}

/// Bytes that the registers of a block may fill, of a first-level cache.
const BLOCK_BYTES: usize = 24 << 10;

/// Elements of a block, at least.
const LEAST: usize = 128;

/// And at most.
const MOST: usize = 1024;

impl Program {
    /// Checks a program over a domain of `[rows, columns]`.
    ///
    /// `results` says which values are written, and as what. A value of [`Extent::Row`] may be an operand beside one of
    /// [`Extent::Each`].
    ///
    /// # Errors
    /// An operand that does not come before its step, a reduction of what is not [`Extent::Each`], an input with more rows
    /// than the domain or with rows that end before its part of them, or an integer as a result.
    pub fn new(
        size: [usize; 2],
        sources: Vec<Source>,
        constants: &[f32],
        steps: &[Step],
        results: &[(Value, Kind)],
    ) -> Result<Self, KernelError> {
        let results: Vec<_> = results.iter().map(|&(value, kind)| (vec![value], kind)).collect();
        Self::joining(size, sources, constants, steps, &results)
    }

    /// Checks a program as [`new`](Self::new) does. A row of a result has the rows of its values, side by side.
    ///
    /// ```
    /// use tacit_kernels::program::{Columns, Data, DataMut, Kind, Map, Op, Precision, Program, Source, Step};
    ///
    /// // The halves of each row, added and subtracted.
    /// let half = |first| Map { columns: Columns::Part { first, of: 4 }, divisor: 1, modulus: 2 };
    /// let sources = [0, 2].map(|first| Source { kind: Kind::F32, map: half(first) }).to_vec();
    /// let steps = [Op::Add, Op::Subtract].map(|op| Step { op, operands: [0, 1, 0], precision: Precision::Single });
    /// let program = Program::joining([2, 2], sources, &[], &steps, &[(vec![2, 3], Kind::F32)])?;
    /// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    /// let mut y = [0.0; 8];
    /// program.run(&[Data::F32(&x), Data::F32(&x)], vec![DataMut::F32(&mut y)])?;
    /// assert_eq!(y, [4.0, 6.0, -2.0, -2.0, 12.0, 14.0, -2.0, -2.0]);
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new), and of several values one that is not [`Extent::Each`].
    pub fn joining(
        [rows, columns]: [usize; 2],
        sources: Vec<Source>,
        constants: &[f32],
        steps: &[Step],
        results: &[(Vec<Value>, Kind)],
    ) -> Result<Self, KernelError> {
        let first = sources.len() + constants.len();
        let extents = extents([rows, columns], &sources, constants.len(), steps)?;
        check_results(rows * columns, results, &extents)?;
        let extent = |value: Value| extents[value].max(Extent::Row);
        // Elements must lie in rows that are whole, where something is made of a row.
        let whole = steps.iter().any(|step| step.op.is_reduction())
            || results.iter().any(|(values, _)| !matches!(values[..], [value] if extents[value] == Extent::Each));

        let mut registers = Registers::default();
        let mut places = Vec::with_capacity(extents.len());
        let mut loads = Vec::new();
        for (input, source) in sources.iter().enumerate() {
            if source.kind == Kind::F32 && source.map.is_whole(rows) && extents[input] != Extent::Whole {
                places.push(Place::Input(input));
                continue;
            }
            let register = registers.fresh();
            loads.push(Action::Load { input, extent: extents[input], register });
            places.push(Place::Register(register));
        }
        let filled: Vec<(usize, f32)> = constants.iter().map(|&constant| (registers.fresh(), constant)).collect();
        places.extend(filled.iter().map(|&(register, _)| Place::Register(register)));

        let mut last = vec![0; extents.len()];
        for (i, step) in steps.iter().enumerate() {
            step.operands[..step.op.arity()].iter().for_each(|&operand| last[operand] = i);
        }
        let mut actions = Vec::new();
        for (value, &place) in places.iter().enumerate() {
            actions.extend(stores(results, value, place, extent(value)));
        }
        // Where a number of each row stands for each element.
        let mut spread: Vec<Option<usize>> = vec![None; extents.len()];
        for (i, step) in steps.iter().enumerate() {
            let value = first + i;
            let operands = &step.operands[..step.op.arity()];
            let mut from = [Place::Register(0); 3];
            for (from, &operand) in from.iter_mut().zip(operands) {
                let widened = extents[value] == Extent::Each && extents[operand] == Extent::Row;
                *from = if widened && step.op != Op::Spread {
                    let register = *spread[operand].get_or_insert_with(|| {
                        let register = registers.fresh();
                        actions.push(Action::Apply {
                            op: Op::Spread,
                            precision: Precision::Single,
                            operands: [places[operand]; 3],
                            extent: Extent::Each,
                            register,
                        });
                        register
                    });
                    Place::Register(register)
                } else {
                    places[operand]
                };
            }
            let register = registers.take();
            let Step { op, precision, .. } = *step;
            actions.push(Action::Apply { op, precision, operands: from, extent: extent(value), register });
            places.push(Place::Register(register));
            actions.extend(stores(results, value, places[value], extent(value)));
            for (at, &operand) in operands.iter().enumerate() {
                if last[operand] == i && !operands[..at].contains(&operand) && operand >= first {
                    registers.give(places[operand]);
                    spread[operand].into_iter().for_each(|register| registers.give(Place::Register(register)));
                }
            }
            if last[value] == 0 {
                registers.give(places[value]);
            }
        }

        let direct = places[..sources.len()].iter().filter(|place| matches!(place, Place::Input(_))).count();
        let written: usize = results.iter().map(|(values, _)| values.len()).sum();
        let block = block([rows, columns], registers.count + direct + written, whole);
        let once = |action: &Action| {
            let Action::Load { input, extent, .. } = action else { return false };
            *extent == Extent::Whole
                || *extent == Extent::Each && sources[*input].map.modulus == 1 && block[1] == columns
        };
        let (prologue, mut body): (Vec<Action>, Vec<Action>) = loads.iter().copied().partition(once);
        body.append(&mut actions);
        let cost = sources.len() + written + steps.iter().map(|step| step.op.cost()).sum::<usize>();
        let results = results.iter().map(|(values, kind)| {
            let extent = if let [value] = values[..] { extent(value) } else { Extent::Each };
            Written { extent, kind: *kind, values: values.len() }
        });
        Ok(Self {
            rows,
            columns,
            sources,
            results: results.collect(),
            constants: filled,
            prologue,
            actions: body,
            registers: registers.count,
            block,
            cost,
        })
    }

    /// Bytes of memory that a thread works in.
    #[must_use]
    pub fn working_set(&self) -> usize {
        4 * self.registers * self.block[0] * self.block[1]
    }

    /// Blocks in a row of blocks, and rows of blocks, of a part of so many rows and columns.
    pub(super) fn blocks(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        [columns.div_ceil(self.block[1].max(1)), rows.div_ceil(self.block[0].max(1))]
    }

    /// The rows and columns of a block of such a part.
    pub(super) fn area(&self, [rows, columns]: [usize; 2], block: usize) -> (Range<usize>, Range<usize>) {
        let [across, _] = self.blocks([rows, columns]);
        let (row, column) = (block / across * self.block[0], block % across * self.block[1]);
        (row..rows.min(row + self.block[0]), column..columns.min(column + self.block[1]))
    }
}

/// The rows and columns of a block in which so many values are at hand; of whole rows, where something is made of these.
fn block([rows, columns]: [usize; 2], values: usize, whole: bool) -> [usize; 2] {
    let max = (BLOCK_BYTES / 4 / values.max(1)).clamp(LEAST, MOST) / 64 * 64;
    if columns <= max {
        return [(max / columns.max(1)).clamp(1, rows.max(1)), columns];
    }
    [1, if whole { columns } else { max }]
}

/// What writes a value to the results that have it.
fn stores(
    results: &[(Vec<Value>, Kind)],
    value: Value,
    place: Place,
    extent: Extent,
) -> impl Iterator<Item = Action> + '_ {
    results.iter().enumerate().flat_map(move |(result, (values, _))| {
        let places = values.iter().enumerate().filter(move |(_, written)| **written == value);
        places.map(move |(at, _)| Action::Store { place, extent, result, at })
    })
}

fn check_results(elements: usize, results: &[(Vec<Value>, Kind)], extents: &[Extent]) -> Result<(), KernelError> {
    for (values, kind) in results {
        product(elements, values.len())?;
        if let Some(value) = values.iter().find(|&&value| value >= extents.len()) {
            return Err(KernelError::Program { what: format!("has no value {value} to write") });
        }
        if values.len() != 1 && values.iter().any(|&value| extents[value] != Extent::Each) {
            return Err(KernelError::Program { what: "writes side by side what is no row".to_owned() });
        }
        if matches!(kind, Kind::I32 | Kind::U32) {
            return Err(KernelError::Program { what: "writes integers".to_owned() });
        }
    }
    Ok(())
}

fn extents(
    [rows, columns]: [usize; 2],
    sources: &[Source],
    constants: usize,
    steps: &[Step],
) -> Result<Vec<Extent>, KernelError> {
    product(rows, columns)?;
    let mut extents = Vec::with_capacity(sources.len() + constants + steps.len());
    for (i, Source { map, .. }) in sources.iter().enumerate() {
        if map.divisor == 0 || map.modulus == 0 || rows > 0 && map.modulus > rows {
            return Err(KernelError::Program {
                what: format!("maps {rows} rows by {} and {} to input {i}", map.divisor, map.modulus),
            });
        }
        if let Columns::Part { first, of } = map.columns {
            product(rows, of)?;
            if first > of || of - first < columns {
                return Err(KernelError::Program {
                    what: format!("reads {columns} columns from {first} on in rows of {of} of input {i}"),
                });
            }
        }
        extents.push(match map.modulus {
            _ if map.is_wide() => Extent::Each,
            1 => Extent::Whole,
            _ => Extent::Row,
        });
    }
    extents.resize(sources.len() + constants, Extent::Whole);
    for (i, step) in steps.iter().enumerate() {
        let operands = &step.operands[..step.op.arity()];
        if operands.iter().any(|&operand| operand >= extents.len()) {
            return Err(KernelError::Program { what: format!("has an operand of step {i} that comes later") });
        }
        let extent = operands.iter().map(|&operand| extents[operand]).max().unwrap_or(Extent::Row);
        extents.push(match step.op {
            op if op.is_reduction() && extent != Extent::Each => {
                return Err(KernelError::Program { what: format!("reduces in step {i} what is no row") });
            }
            op if op.is_reduction() => Extent::Row,
            Op::Spread if extent == Extent::Each => {
                return Err(KernelError::Program { what: format!("spreads in step {i} what is no number of a row") });
            }
            Op::Spread => Extent::Each,
            // Computed anew for each block, which costs nothing beside what it is for.
            _ => extent.max(Extent::Row),
        });
    }
    Ok(extents)
}

impl Op {
    /// What an element costs, in passes over a block.
    fn cost(self) -> usize {
        match self {
            Self::Power | Self::Expm1 | Self::Log1p => 64,
            Self::ErfInv => 12,
            Self::Exp | Self::Log | Self::Tanh | Self::Sigmoid | Self::Erf | Self::Sin | Self::Cos => 6,
            Self::Divide | Self::Sqrt | Self::Rsqrt => 2,
            _ => 1,
        }
    }
}

#[derive(Default)]
struct Registers {
    free: Vec<usize>,
    count: usize,
}

impl Registers {
    /// One that holds the same all along.
    fn fresh(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| self.fresh())
    }

    fn give(&mut self, place: Place) {
        if let Place::Register(register) = place {
            self.free.push(register);
        }
    }
}

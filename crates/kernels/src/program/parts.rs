//! Programs on some of their elements.

use super::{Data, DataMut, Extent, Program, plan::Action, source::Source};
use crate::KernelError;

/// How a program falls into parts that are computed by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The elements of all parts.
    pub elements: usize,
    /// A part begins at a multiple of so many elements: any of them, or a row.
    pub unit: usize,
    /// The numbers of a unit in each input; none where every part takes all of the input.
    pub inputs: Vec<Option<usize>>,
    /// The numbers of a unit in each result.
    pub results: Vec<usize>,
}

impl Program {
    /// The parts of the program; none where rows share some rows of an input.
    #[must_use]
    pub fn parts(&self) -> Option<Parts> {
        let (elements, unit) = (self.rows * self.columns, if self.is_elementwise() { 1 } else { self.columns });
        let own = |source: &Source| match source.map.modulus {
            1 if !source.map.is_wide() || self.rows > 1 => Some(None),
            _ => source.map.is_own(self.rows).then_some(Some(source.map.pitch(unit))),
        };
        let inputs = self.sources.iter().map(own).collect::<Option<_>>()?;
        let results = self.results.iter().map(|written| written.numbers(1, unit)).collect();
        (elements > 0).then_some(Parts { elements, unit, inputs, results })
    }

    /// Runs the program on a part of so many elements: the part's numbers of what [falls](Self::parts) into parts, and all of the
    /// other inputs. It computes the bits that [`run`](Self::run) does.
    ///
    /// ```
    /// use tacit_kernels::program::{Columns, Data, DataMut, Kind, Map, Op, Precision, Program, Source, Step};
    ///
    /// let source = Source { kind: Kind::F32, map: Map { columns: Columns::All, divisor: 1, modulus: 1 } };
    /// let square = Step { op: Op::Square, operands: [0; 3], precision: Precision::Single };
    /// let program = Program::new([1, 1000], vec![source], &[], &[square], &[(1, Kind::F32)])?;
    /// let mut y = [0.0; 2];
    /// program.run_part(2, &[Data::F32(&[1.0, 3.0])], vec![DataMut::F32(&mut y)])?;
    /// assert_eq!(y, [1.0, 9.0]);
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// A number, length or type of inputs or results other than those of such a part.
    pub fn run_part(&self, elements: usize, inputs: &[Data<'_>], results: Vec<DataMut<'_>>) -> Result<(), KernelError> {
        let rows = [elements / self.columns.max(1), self.columns];
        self.run_on(if self.is_elementwise() { [1, elements] } else { rows }, inputs, results)
    }

    /// Whether each element depends on no other, and lies beside its neighbor in what is read and written.
    fn is_elementwise(&self) -> bool {
        let reduces = |action: &Action| matches!(action, Action::Apply { op, .. } if op.is_reduction());
        let reads_parts = self.sources.iter().any(|source| source.map.is_part());
        let makes_rows = self.results.iter().any(|written| written.extent != Extent::Each || written.values != 1);
        self.rows == 1 && !reads_parts && !makes_rows && !self.actions.iter().any(reduces)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Columns, Kind, Map, Op, Precision, Step};
    use super::*;

    fn source(wide: bool, divisor: usize, modulus: usize) -> Source {
        Source {
            kind: Kind::F32,
            map: Map { columns: if wide { Columns::All } else { Columns::One }, divisor, modulus },
        }
    }

    fn step(op: Op, operands: [usize; 3]) -> Step {
        Step { op, operands, precision: Precision::Single }
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 % 101) as f32 - 50.0) / 7.0).collect()
    }

    #[test]
    fn parts_of_elements_are_those_of_the_whole() {
        for count in [1, 255, 1000, 5001] {
            let sources = vec![source(true, 1, 1), source(false, 1, 1)];
            let steps = [step(Op::Multiply, [0, 1, 0]), step(Op::Exp, [2; 3])];
            let program = Program::new([1, count], sources, &[], &steps, &[(3, Kind::F32), (2, Kind::Bf16)]).unwrap();
            let parts = Parts { elements: count, unit: 1, inputs: vec![Some(1), None], results: vec![1, 1] };
            assert_eq!(program.parts(), Some(parts));
            let (x, factor) = (numbers(count), [0.75]);
            let mut whole = (vec![0.0; count], vec![half::bf16::ZERO; count]);
            let results = vec![DataMut::F32(&mut whole.0), DataMut::Bf16(&mut whole.1)];
            program.run(&[Data::F32(&x), Data::F32(&factor)], results).unwrap();
            for part in [1, 64, 700, 4096] {
                let mut found = (vec![0.0; count], vec![half::bf16::ZERO; count]);
                let cut = x.chunks(part).zip(found.0.chunks_mut(part)).zip(found.1.chunks_mut(part));
                for ((x, first), second) in cut {
                    let results = vec![DataMut::F32(first), DataMut::Bf16(second)];
                    program.run_part(x.len(), &[Data::F32(x), Data::F32(&factor)], results).unwrap();
                }
                assert_eq!(found, whole, "{count} in parts of {part}");
            }
        }
    }

    #[test]
    fn parts_of_rows_are_those_of_the_whole() {
        let [rows, columns] = [37, 96];
        let sources = vec![source(true, 1, rows), source(false, 1, rows), source(true, 1, 1)];
        let steps = [
            step(Op::Multiply, [0, 1, 0]),
            step(Op::Add, [3, 2, 0]),
            step(Op::Sum, [4; 3]),
            step(Op::Divide, [4, 5, 0]),
        ];
        let results = [(6, Kind::F32), (5, Kind::F32)];
        let program = Program::new([rows, columns], sources, &[], &steps, &results).unwrap();
        let inputs = vec![Some(columns), Some(1), None];
        let parts = Parts { elements: rows * columns, unit: columns, inputs, results: vec![columns, 1] };
        assert_eq!(program.parts(), Some(parts));
        let (x, of_rows, bias) = (numbers(rows * columns), numbers(rows), numbers(columns));
        let mut whole = (vec![0.0; rows * columns], vec![0.0; rows]);
        let inputs = [Data::F32(&x), Data::F32(&of_rows), Data::F32(&bias)];
        program.run(&inputs, vec![DataMut::F32(&mut whole.0), DataMut::F32(&mut whole.1)]).unwrap();
        for part in [1, 5, 37] {
            let mut found = (vec![0.0; rows * columns], vec![0.0; rows]);
            let inputs = x.chunks(part * columns).zip(of_rows.chunks(part));
            let cut = inputs.zip(found.0.chunks_mut(part * columns)).zip(found.1.chunks_mut(part));
            for (((x, of_rows), first), second) in cut {
                let inputs = [Data::F32(x), Data::F32(of_rows), Data::F32(&bias)];
                program.run_part(x.len(), &inputs, vec![DataMut::F32(first), DataMut::F32(second)]).unwrap();
            }
            assert_eq!(found, whole, "in parts of {part} rows");
        }
        assert!(program.run_part(100, &[Data::F32(&x), Data::F32(&of_rows), Data::F32(&bias)], Vec::new()).is_err());
    }

    #[test]
    fn parts_of_rows_that_are_read_and_written_in_halves_are_those_of_the_whole() {
        for rows in [1, 37] {
            let columns = 9;
            let half = |first| Map { columns: Columns::Part { first, of: 2 * columns }, divisor: 1, modulus: rows };
            let sources = [0, columns].map(|first| Source { kind: Kind::F32, map: half(first) }).to_vec();
            let steps = [step(Op::Add, [0, 1, 0]), step(Op::Subtract, [0, 1, 0])];
            let program = Program::joining([rows, columns], sources, &[], &steps, &[(vec![3, 2], Kind::F32)]).unwrap();
            let (elements, unit, numbers_of_a_row) = (rows * columns, columns, 2 * columns);
            let inputs = vec![Some(numbers_of_a_row); 2];
            let parts = Parts { elements, unit, inputs, results: vec![numbers_of_a_row] };
            assert_eq!(program.parts(), Some(parts));
            assert!(program.in_place().is_empty());
            let x = numbers(2 * elements);
            let mut whole = vec![0.0; 2 * elements];
            program.run(&[Data::F32(&x), Data::F32(&x)], vec![DataMut::F32(&mut whole)]).unwrap();
            for part in [1, 5, 37] {
                let mut found = vec![0.0; 2 * elements];
                for (x, y) in x.chunks(part * numbers_of_a_row).zip(found.chunks_mut(part * numbers_of_a_row)) {
                    program.run_part(x.len() / 2, &[Data::F32(x), Data::F32(x)], vec![DataMut::F32(y)]).unwrap();
                }
                assert_eq!(found, whole, "in parts of {part} rows");
            }
        }
    }

    #[test]
    fn rows_that_share_rows_have_no_parts() {
        let sources = vec![source(true, 1, 6), source(true, 2, 3)];
        let steps = [step(Op::Add, [0, 1, 0])];
        let program = Program::new([6, 8], sources, &[], &steps, &[(2, Kind::F32)]).unwrap();
        assert_eq!(program.parts(), None);
    }
}

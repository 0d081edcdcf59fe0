//! Results that are written over an input.

use super::{
    Data, Extent, Program,
    plan::{Action, Place, Written},
    source::Source,
};
use crate::KernelError;

impl Program {
    /// The results that may lie in the memory of an input, each with that input: every element of the result is written after all that
    /// is made of that element of the input. Any choice of the pairs may lie so at once in which no result and no input is twice.
    ///
    /// ```
    /// use tacit_kernels::program::{Columns, Data, DataMut, Kind, Map, Op, Precision, Program, Source, Step};
    ///
    /// let source = Source { kind: Kind::F32, map: Map { columns: Columns::All, divisor: 1, modulus: 1 } };
    /// let square = Step { op: Op::Square, operands: [0; 3], precision: Precision::Single };
    /// let program = Program::new([1, 2], vec![source], &[], &[square], &[(1, Kind::F32)])?;
    /// assert_eq!(program.in_place(), [(0, 0)]);
    /// let mut x = [1.0, 3.0];
    /// program.run(&[Data::Result(0)], vec![DataMut::F32(&mut x)])?;
    /// assert_eq!(x, [1.0, 9.0]);
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    #[must_use]
    pub fn in_place(&self) -> Vec<(usize, usize)> {
        let pairs =
            (0..self.results.len()).flat_map(|result| (0..self.sources.len()).map(move |input| (result, input)));
        pairs.filter(|&(result, input)| self.may_lie_in(result, input)).collect()
    }

    /// Whether a result may lie where an input does: block for block it is written once nothing reads the input any more.
    fn may_lie_in(&self, result: usize, input: usize) -> bool {
        let (Some(&Written { extent, kind, values }), Some(&Source { kind: read_as, map })) =
            (self.results.get(result), self.sources.get(input))
        else {
            return false;
        };
        let is_alike =
            extent == Extent::Each && values == 1 && map.is_wide() && map.is_whole(self.rows) && kind == read_as;
        let written = |action: &Action| matches!(action, Action::Store { result: stored, .. } if *stored == result);
        let written = self.actions.iter().position(written);
        let read = self.actions.iter().rposition(|action| action.reads(input));
        is_alike && written.is_some_and(|written| read.is_none_or(|read| read < written))
    }

    /// Checks an input that is said to lie in a result, alone there.
    pub(super) fn check_in_place(&self, input: usize, inputs: &[Data<'_>]) -> Result<(), KernelError> {
        let Data::Result(result) = inputs[input] else { return Ok(()) };
        let others = inputs.iter().filter(|other| matches!(other, Data::Result(other) if *other == result)).count();
        if others == 1 && self.may_lie_in(result, input) {
            return Ok(());
        }
        Err(KernelError::Program { what: format!("cannot write its result {result} over its input {input}") })
    }
}

impl Action {
    fn reads(&self, input: usize) -> bool {
        let place = Place::Input(input);
        match self {
            Self::Load { input: loaded, .. } => *loaded == input,
            Self::Apply { operands, .. } => operands.contains(&place),
            Self::Store { place: stored, .. } => *stored == place,
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::{Columns, DataMut, Kind, Map, Op, Precision, Step};
    use super::*;
    use crate::threads;

    fn source(kind: Kind, wide: bool, divisor: usize, modulus: usize) -> Source {
        Source { kind, map: Map { columns: if wide { Columns::All } else { Columns::One }, divisor, modulus } }
    }

    fn step(op: Op, operands: [usize; 3]) -> Step {
        Step { op, operands, precision: Precision::Single }
    }

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 + seed) % 101) as f32 / 16.0 - 3.0).collect()
    }

    /// Two moments and a parameter: `m + g`, `v + g g`, and `w - (m + g) / (v + g g)`.
    fn update(count: usize, kind: Kind) -> Program {
        let sources = vec![source(kind, true, 1, 1); 4];
        let steps = [
            step(Op::Add, [1, 3, 0]),
            step(Op::Square, [3; 3]),
            step(Op::Add, [2, 5, 0]),
            step(Op::Divide, [4, 6, 0]),
            step(Op::Subtract, [0, 7, 0]),
        ];
        Program::new([1, count], sources, &[], &steps, &[(4, kind), (6, kind), (8, kind)]).unwrap()
    }

    #[test]
    fn an_update_in_place_has_the_bits_of_one_beside() {
        for (count, threads) in [(1, 1), (7, 1), (5_000, 2), (700_001, 3)] {
            let program = update(count, Kind::F32);
            assert_eq!(program.in_place(), [(0, 1), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]);
            let [mut w, mut m, mut v, g] = [0, 1, 2, 3].map(|seed| numbers(count, 11 * seed));
            let mut beside = [(); 3].map(|()| vec![0.0; count]);
            let [first, second, third] = &mut beside;
            let inputs = [&w, &m, &v, &g].map(|values| Data::F32(values));
            program.run(&inputs, vec![DataMut::F32(first), DataMut::F32(second), DataMut::F32(third)]).unwrap();
            let inputs = [Data::Result(2), Data::Result(0), Data::Result(1), Data::F32(&g)];
            let results = vec![DataMut::F32(&mut m), DataMut::F32(&mut v), DataMut::F32(&mut w)];
            threads::with_count(threads, || program.run(&inputs, results)).unwrap();
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!([m, v, w].map(|values| bits(&values)), beside.map(|values| bits(&values)), "{count}");
        }
    }

    #[test]
    fn half_floats_are_updated_where_they_are() {
        let count = 3_000;
        let program = update(count, Kind::Bf16);
        let [mut w, mut m, mut v, g] =
            [0, 1, 2, 3].map(|seed| numbers(count, 7 * seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>());
        let mut beside = [(); 3].map(|()| vec![bf16::ZERO; count]);
        let [first, second, third] = &mut beside;
        let inputs = [&w, &m, &v, &g].map(|values| Data::Bf16(values));
        program.run(&inputs, vec![DataMut::Bf16(first), DataMut::Bf16(second), DataMut::Bf16(third)]).unwrap();
        let inputs = [Data::Result(2), Data::Result(0), Data::Result(1), Data::Bf16(&g)];
        let results = vec![DataMut::Bf16(&mut m), DataMut::Bf16(&mut v), DataMut::Bf16(&mut w)];
        program.run(&inputs, results).unwrap();
        let bits = |values: &[bf16]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!([m, v, w].map(|values| bits(&values)), beside.map(|values| bits(&values)));
    }

    #[test]
    fn rows_that_are_read_again_or_shared_are_not_written_over() {
        let [rows, columns] = [6, 8];
        // Rows of the first input are read before the first result is written, and those of the second one afterwards.
        let sources = vec![
            source(Kind::F32, true, 1, rows),
            source(Kind::F32, true, 1, rows),
            source(Kind::F32, true, 2, 3),
            source(Kind::F32, false, 1, rows),
            source(Kind::Bf16, true, 1, rows),
        ];
        let steps = [
            step(Op::Sum, [0; 3]),
            step(Op::Divide, [0, 5, 0]),
            step(Op::Multiply, [1, 6, 0]),
            step(Op::Add, [7, 2, 0]),
            step(Op::Add, [8, 3, 0]),
            step(Op::Add, [9, 4, 0]),
        ];
        let written = [(6, Kind::F32), (10, Kind::F32), (5, Kind::F32)];
        let program = Program::new([rows, columns], sources, &[], &steps, &written).unwrap();
        assert_eq!(program.in_place(), [(0, 0), (1, 0), (1, 1)]);
        let [mut x, mut y, z] = [rows * columns, rows * columns, 3 * columns].map(|count| numbers(count, 5));
        let (row, half) = (numbers(rows, 9), vec![bf16::ONE; rows * columns]);
        let others = [Data::F32(&z), Data::F32(&row), Data::Bf16(&half)];
        let (mut beside, mut sums) = ([(); 2].map(|()| vec![0.0; rows * columns]), [vec![0.0; rows], vec![0.0; rows]]);
        let ([first, second], [sums_beside, sums]) = (&mut beside, &mut sums);
        let inputs = [&[Data::F32(&x), Data::F32(&y)][..], &others].concat();
        let results = vec![DataMut::F32(first), DataMut::F32(second), DataMut::F32(sums_beside)];
        program.run(&inputs, results).unwrap();
        let run = |inputs: [Data<'_>; 2], x: &mut [f32], y: &mut [f32], sums: &mut [f32]| {
            let inputs = [&inputs[..], &others].concat();
            program.run(&inputs, vec![DataMut::F32(x), DataMut::F32(y), DataMut::F32(sums)])
        };
        for wrong in [[Data::Result(1), Data::Result(0)], [Data::Result(0), Data::Result(0)], [Data::Result(2); 2]] {
            let told = run(wrong, &mut x, &mut y, sums).unwrap_err().to_string();
            assert!(told.contains("over its input"), "{told}");
        }
        run([Data::Result(0), Data::Result(1)], &mut x, &mut y, sums).unwrap();
        assert_eq!(([x, y], &*sums), (beside, &*sums_beside));
    }
}

//! What each kernel says of slices and sizes that do not fit each other.

use std::ops::Range;

use expect_test::{Expect, expect};
use tacit_kernels::program::{Columns, Data, DataMut, Kind, Map, Op, Precision, Program, Source, Step};
use tacit_kernels::{
    Attention, Axis, Base, Codes, Dense, Deviations, Factors, Floats, Indices, Int8Rounding, KernelError, Mask,
    MaskValues, Matrix, Norm, Operand, Orientation, OuterProducts, RoundColumns, Scales, Stack, StridedCopy, Sum,
    add_dense, attention, dense_matmul, deviations, gather_matmul, grouped_matmul, int8_matmul, int8_product,
    product_scale_gradients, ranges, scale_gradients, sum,
};

static ONES: [f32; 64] = [1.0; 64];

/// Four rows of two elements, a scale each.
const MATRIX: Matrix = Matrix {
    n: 4,
    k: 2,
    codes: Codes::Signed { codes: &[1; 8] },
    scales: Scales::F32(&[1.0; 4]),
    biases: None,
    block: 2,
};

/// Whether each of these calls fails with the message that is expected, one after the other.
fn said<const N: usize>(expected: &Expect, calls: [(&str, Result<(), KernelError>); N]) {
    let text = calls.map(|(what, called)| match called {
        Err(error) => format!("{what}: {error}\n"),
        Ok(()) => format!("{what}: nothing is wrong\n"),
    });
    expected.assert_eq(&text.concat());
}

#[test]
fn of_attention() {
    // Two pairs of matrices of two tokens, and a query of each.
    let of = Attention {
        q: Floats::F32(&ONES[..4]),
        queries: 1,
        indices: &[0, 1],
        keys: MATRIX,
        values: MATRIX,
        tokens: 2,
        mask: None,
    };
    let run = |of: Attention, length: usize| attention(&of, &mut [0.0_f32; 64][..length]);
    let seen = MaskValues::Visible { visible: &[1; 4], hidden: f32::NEG_INFINITY };
    let masked = |entries, column, values| {
        let mask = Some(Mask { values, entries, row: 0, column });
        run(Attention { mask, ..of }, 4)
    };
    said(
        &expect![[r#"
            queries: `q` holds 3 elements where 4 are needed
            help: `queries` rows as long as a key for each entry
            results: `out` holds 3 elements where 4 are needed
            help: `queries` rows as long as a value for each entry
            tokens: 4 rows are not cut into groups of 3, where a block and a byte end after 1
            help: give groups of a multiple of 1 rows
            matrices: row 2 (entry 1) is outside a matrix of 2 rows
            help: rows count from 0 to 2 - 1
            entries of a mask: `mask.entries` holds 1 elements where 2 are needed
            help: one place for each entry
            steps of a mask: `mask.column` is 2 where 1 is needed
            help: 0 or 1, as tokens lie side by side
            values of a mask: `mask.values` holds 4 elements where 5 are needed
            help: one for each place that the mask reaches
            numbers of a mask: `mask.values` holds 4 elements where 5 are needed
            help: one for each place that the mask reaches
        "#]],
        [
            ("queries", run(Attention { q: Floats::F32(&ONES[..3]), ..of }, 4)),
            ("results", run(of, 3)),
            ("tokens", run(Attention { tokens: 3, ..of }, 4)),
            ("matrices", run(Attention { indices: &[0, 2], ..of }, 4)),
            ("entries of a mask", masked(&[0], 1, seen)),
            ("steps of a mask", masked(&[0, 2], 2, seen)),
            ("values of a mask", masked(&[0, 3], 1, seen)),
            ("numbers of a mask", masked(&[0, 3], 1, MaskValues::Added(Floats::F32(&ONES[..4])))),
        ],
    );
}

#[test]
fn of_dense_products() {
    let matrix = |length: usize, rows, columns, stride| Operand {
        matrix: Dense { values: &ONES[..length], rows, columns, stride },
        orientation: Orientation::Plain,
    };
    let run = |a, b, length: usize, [rows, columns]: [usize; 2]| {
        let mut out = [0.0; 64];
        dense_matmul(a, b, Dense { values: &mut out[..length], rows, columns, stride: columns }, Factors::default())
    };
    let (a, b) = (matrix(6, 2, 3, 3), matrix(6, 3, 2, 2));
    said(
        &expect![[r#"
            strides: `stride` is 2 where 3 is needed
            help: rows do not overlap: a stride is at least one of them
            elements: `a` holds 5 elements where 6 are needed
            help: from its first element to its last
            results: `out` holds 3 elements where 4 are needed
            help: from its first element to its last
            terms: `b.rows()` is 2 where 3 is needed
            help: a row for each column of `a`
            rows: `out.rows` is 3 where 2 is needed
            help: one row for each of `a`
            columns: `out.columns` is 3 where 2 is needed
            help: one column for each of `b`
        "#]],
        [
            ("strides", run(matrix(6, 2, 3, 2), b, 4, [2, 2])),
            ("elements", run(matrix(5, 2, 3, 3), b, 4, [2, 2])),
            ("results", run(a, b, 3, [2, 2])),
            ("terms", run(a, matrix(4, 2, 2, 2), 4, [2, 2])),
            ("rows", run(a, b, 6, [3, 2])),
            ("columns", run(a, b, 6, [2, 3])),
        ],
    );
}

#[test]
fn of_products_with_chosen_matrices() {
    let stack = Stack { matrix: MATRIX, count: 2 };
    let gathered = |length: usize, indices, stack: &Stack, results: usize| {
        gather_matmul(&ONES[..length], indices, stack, Orientation::Transposed, &mut [0.0_f32; 64][..results])
    };
    let both = Indices { rows: 1, x: &[0, 1], stack: &[1, 0] };
    let grouped = |length: usize, rows, results: usize| {
        let out = &mut [0.0_f32; 64][..results];
        grouped_matmul(&ONES[..length], 1, &[0, 1], &MATRIX, rows, Orientation::Transposed, out)
    };
    let gradients = |stack: &Stack, [left, right, scales, biases]: [usize; 4]| {
        let sides = OuterProducts { rows: 1, left: &ONES[..left], right: &ONES[..right], matrices: &[0, 1] };
        let (mut of_scales, mut of_biases) = ([0.0; 8], [0.0; 8]);
        product_scale_gradients(stack, &sides, &mut of_scales[..scales], &mut of_biases[..biases])
    };
    let uneven = &Stack { count: 3, ..stack };
    said(
        &expect![[r#"
            matrices of a stack: `matrix.n` is 4 where 3 is needed
            help: rows of a stack of matrices, all of which have as many
            choices: `stack` holds 1 elements where 2 are needed
            help: one matrix for each group of rows
            rows of choices: `x` holds 3 elements where 2 are needed
            help: whole groups of rows, as long as what is summed over
            results of choices: `out` holds 3 elements where 4 are needed
            help: a row of results for each row of each chosen group
            groups: 4 rows are not cut into groups of 3, where a block and a byte end after 1
            help: give groups of a multiple of 1 rows
            rows of groups: `x` holds 3 elements where 4 are needed
            help: `m` rows for each entry, as long as what is summed over
            results of groups: `out` holds 3 elements where 4 are needed
            help: `m` rows for each entry, as long as the side of a matrix that remains
            matrices of gradients: `matrix.n` is 4 where 3 is needed
            help: rows of a stack of matrices, all of which have as many
            left sides: `left` holds 3 elements where 4 are needed
            help: [entries, rows, n]
            right sides: `right` holds 3 elements where 4 are needed
            help: [entries, rows, k]
            gradients of scales: `of_scales` holds 3 elements where 4 are needed
            help: each block of elements has one
            gradients of biases: `of_biases` holds 3 elements where 4 are needed
            help: each block of elements has one
        "#]],
        [
            ("matrices of a stack", gathered(4, both, uneven, 4)),
            ("choices", gathered(4, Indices { stack: &[1], ..both }, &stack, 4)),
            ("rows of choices", gathered(3, both, &stack, 4)),
            ("results of choices", gathered(4, both, &stack, 3)),
            ("groups", grouped(4, 3, 4)),
            ("rows of groups", grouped(3, 2, 4)),
            ("results of groups", grouped(4, 2, 3)),
            ("matrices of gradients", gradients(uneven, [4, 4, 4, 4])),
            ("left sides", gradients(&stack, [3, 4, 4, 4])),
            ("right sides", gradients(&stack, [4, 3, 4, 4])),
            ("gradients of scales", gradients(&stack, [4, 4, 3, 4])),
            ("gradients of biases", gradients(&stack, [4, 4, 4, 3])),
        ],
    );
}

#[test]
fn of_products_of_integers() {
    let floats = |length: usize, results: usize| {
        int8_matmul(&ONES[..length], 1, &MATRIX, Orientation::Transposed, &mut [0.0_f32; 64][..results])
    };
    let plain = Matrix { scales: Scales::One, ..MATRIX };
    let integers = |length: usize, matrix: &Matrix, results: usize| {
        int8_product(&[1; 64][..length], &[1.0], matrix, Orientation::Plain, &mut [0.0_f32; 64][..results])
    };
    let unsigned = Codes::Unsigned { bytes: &[0; 8], bits: 8 };
    let rows = Int8Rounding { columns: 2, orientation: Orientation::Plain, factors: None };
    let columns = Int8Rounding { orientation: Orientation::Transposed, ..rows };
    let scaled = Int8Rounding { factors: Some(&[1.0; 3]), ..rows };
    let rounded = |rounding: Int8Rounding, [x, codes, units]: [usize; 3]| {
        rounding.round(&ONES[..x], &mut [0; 64][..codes], &mut [0.0; 64][..units])
    };
    said(
        &expect![[r#"
            floats: `x` holds 3 elements where 2 are needed
            help: `m` rows as long as the rows of the matrix
            results of floats: `out` holds 3 elements where 4 are needed
            help: `m` rows of one number for each row of the matrix
            codes: int8 activations do not take codes that are not signed bytes
            help: use `matmul`, which multiplies every matrix both ways round
            biases: int8 activations do not take biases of signed bytes
            help: use `matmul`, which multiplies every matrix both ways round
            scales: int8 activations do not take scales in the plain orientation
            help: use `matmul`, which multiplies every matrix both ways round
            integers: `codes` holds 3 elements where 4 are needed
            help: one for each element of as many rows as units
            results of integers: `out` holds 3 elements where 2 are needed
            help: as many rows as units, of one number for each column
            units: `units` holds 3 elements where 2 are needed
            help: one for each column of `x`
            rows that are rounded: `x` holds 5 elements where 4 are needed
            help: whole rows, and as many as there are units by rows
            codes of rows: `codes` holds 3 elements where 4 are needed
            help: one for each element of `x`
            factors: `factors` holds 3 elements where 2 are needed
            help: one for each element of a row of integers
        "#]],
        [
            ("floats", floats(3, 4)),
            ("results of floats", floats(2, 3)),
            ("codes", integers(4, &Matrix { codes: unsigned, ..plain }, 2)),
            ("biases", integers(4, &Matrix { biases: Some(Scales::F32(&[0.0; 4])), ..plain }, 2)),
            ("scales", integers(4, &MATRIX, 2)),
            ("integers", integers(3, &plain, 2)),
            ("results of integers", integers(4, &plain, 3)),
            ("units", rounded(columns, [4, 4, 3])),
            ("rows that are rounded", rounded(rows, [5, 5, 2])),
            ("codes of rows", rounded(rows, [4, 3, 2])),
            ("factors", rounded(scaled, [4, 4, 2])),
        ],
    );
}

#[test]
fn of_errors_and_gradients() {
    let mut sums = [[0.0; 4]; 5];
    let mut measured = |x: usize, norm, length: usize| {
        let [error, value, square, slope, shift] = &mut sums;
        let of = Deviations { error: &mut error[..length], value, square, slope, shift };
        deviations(&MATRIX, &ONES[..x], norm, of)
    };
    let scaled = |[x, of_x, of_scales]: [usize; 3]| {
        let (mut numbers, mut units) = ([0.0; 8], [0.0; 8]);
        let (of_x, of_scales) = (&mut numbers[..of_x], &mut units[..of_scales]);
        scale_gradients(&MATRIX, &ONES[..x], &ONES[..8], of_x, of_scales, None)
    };
    let round = |_: usize, _: Range<usize>, _: &mut [f32]| Ok(());
    let columns = |triangle: usize, x: usize, errors: usize| {
        let columns = RoundColumns { width: 2, triangle: &ONES[..triangle], round: &round };
        columns.run(&mut [0.0; 8][..x], &mut [0.0; 8][..errors])
    };
    said(
        &expect![[r#"
            elements: `x` holds 7 elements where 8 are needed
            help: each element has one
            weights: `weights` holds 3 elements where 4 are needed
            help: each block of elements has one
            sums: `a sum` holds 3 elements where 4 are needed
            help: each block of elements has one
            elements of a gradient: `x` holds 7 elements where 8 are needed
            help: each element has one
            gradients of elements: `of_x` holds 7 elements where 8 are needed
            help: each element has one
            gradients of scales: `of_scales` holds 3 elements where 4 are needed
            help: each block of elements has one
            a triangle: `triangle` holds 3 elements where 4 are needed
            help: one for each two columns
            rows: `x` holds 3 elements where 2 are needed
            help: whole rows
            errors: `errors` holds 3 elements where 4 are needed
            help: one for each element of `x`
            ends of blocks: `high` holds 1 elements where 2 are needed
            help: each block of elements has one
        "#]],
        [
            ("elements", measured(7, Norm::Squares, 4)),
            ("weights", measured(8, Norm::Power(0.5, &ONES[..3]), 4)),
            ("sums", measured(8, Norm::Squares, 3)),
            ("elements of a gradient", scaled([7, 8, 4])),
            ("gradients of elements", scaled([8, 7, 4])),
            ("gradients of scales", scaled([8, 8, 3])),
            ("a triangle", columns(3, 4, 4)),
            ("rows", columns(4, 3, 3)),
            ("errors", columns(4, 4, 3)),
            ("ends of blocks", ranges(&ONES, 32, &mut [0.0; 2], &mut [0.0; 1])),
        ],
    );
}

#[test]
fn of_sums_and_copies() {
    let thin =
        Sum { n: 4, k: 2, base: Base::Stored(MATRIX), rank: 1, left: &ONES[..4], right: &ONES[..2], factors: None };
    let norms = |sum: Sum, length: usize| sum.norms(&mut [0.0; 8][..length]);
    let axis = Axis { extent: 3, from: 1, to: 1 };
    let copied = |axis: Axis, from, item, length: usize, to: usize| {
        StridedCopy::new(&[axis], from, 0).run(item, &[0; 16][..length], &mut [0; 16][..to])
    };
    said(
        &expect![[r#"
            numbers along an axis: `x` holds 5 elements where 6 are needed
            help: outer * reduced * inner numbers
            sums along an axis: `sums` holds 2 elements where 3 are needed
            help: outer * inner numbers
            a base: `base` holds 8 elements where 6 are needed
            help: as many as the sum has elements
            a dense base: `base` holds 7 elements where 8 are needed
            help: as many as the sum has elements
            a left side: `left` holds 3 elements where 4 are needed
            help: [n, rank]
            a right side: `right` holds 1 elements where 2 are needed
            help: [rank, k]
            factors: `factors` holds 3 elements where 4 are needed
            help: one for each row
            norms: `out` holds 3 elements where 4 are needed
            help: one for each row
            what is added: `x` holds 7 elements where 8 are needed
            help: one for each element of the matrix
            items: `item` is 3 where 8 is needed
            help: an element of 1, 2, 4 or 8 bytes
            steps: `axis.to` is 0 where 1 is needed
            help: a step to each element that is written
            steps back: `from` is 1 where 2 is needed
            help: a place from which no step back leaves the array
            what is read: `from` holds 3 elements where 4 are needed
            help: as many elements as the copy reaches
            what is written: `to` holds 2 elements where 3 are needed
            help: as many elements as the copy reaches
        "#]],
        [
            ("numbers along an axis", sum(&ONES[..5], [1, 2, 3], &mut [0.0; 3])),
            ("sums along an axis", sum(&ONES[..6], [1, 2, 3], &mut [0.0; 2])),
            ("a base", norms(Sum { n: 3, left: &ONES[..3], ..thin }, 3)),
            ("a dense base", norms(Sum { base: Base::Dense(Floats::F32(&ONES[..7])), ..thin }, 4)),
            ("a left side", norms(Sum { left: &ONES[..3], ..thin }, 4)),
            ("a right side", norms(Sum { right: &ONES[..1], ..thin }, 4)),
            ("factors", norms(Sum { factors: Some(&ONES[..3]), ..thin }, 4)),
            ("norms", norms(thin, 3)),
            ("what is added", add_dense(&MATRIX, 1.0, &ONES[..7], &mut [0.0_f32; 8][..])),
            ("items", copied(axis, 0, 3, 9, 9)),
            ("steps", copied(Axis { to: 0, ..axis }, 0, 1, 3, 3)),
            ("steps back", copied(Axis { from: -1, ..axis }, 1, 1, 3, 3)),
            ("what is read", copied(axis, 1, 1, 3, 3)),
            ("what is written", copied(axis, 0, 1, 3, 2)),
        ],
    );
}

#[test]
fn of_programs() {
    let map = Map { columns: Columns::All, divisor: 1, modulus: 2 };
    let step = Step { op: Op::Exp, operands: [0; 3], precision: Precision::Single };
    let source = Source { kind: Kind::F32, map };
    let program = Program::new([2, 3], vec![source], &[], &[step], &[(1, Kind::F32)]).expect("a program");
    let (mut y, mut short) = ([0.0; 6], [0.0; 5]);
    said(
        &expect![[r#"
            inputs: `inputs` holds 0 elements where 1 are needed
            help: one for each input of the program
            results: `results` holds 0 elements where 1 are needed
            help: one for each result of the program
            an input: `an input` holds 5 elements where 6 are needed
            help: the rows that its map gives it
            a result: `a result` holds 5 elements where 6 are needed
            help: one number for each row or element
        "#]],
        [
            ("inputs", program.run(&[], vec![DataMut::F32(&mut y)])),
            ("results", program.run(&[Data::F32(&ONES[..6])], vec![])),
            ("an input", program.run(&[Data::F32(&ONES[..5])], vec![DataMut::F32(&mut y)])),
            ("a result", program.run(&[Data::F32(&ONES[..6])], vec![DataMut::F32(&mut short)])),
        ],
    );
}

//! Columns that are rounded in turn, against the loop over each row by itself.

use std::ops::Range;

use tacit_kernels::{BlockScales, KernelError, RoundColumns, int8, nf4, threads};

use crate::random::Random;

/// Multiples of a half; what is not finite is refused.
fn halves(_: usize, _: Range<usize>, x: &mut [f32]) -> Result<(), KernelError> {
    if let Some(index) = x.iter().position(|x| !x.is_finite()) {
        return Err(KernelError::NonFinite { index, value: x[index] });
    }
    for x in x.iter_mut() {
        *x = (*x * 2.0).round() / 2.0;
    }
    Ok(())
}

/// A diagonal of numbers near 2, and what lies below it, which is not looked at.
fn triangle(width: usize) -> Vec<f32> {
    let mut triangle = Random::new(3).normal(width * width);
    (0..width).for_each(|i| triangle[i * width + i] = 2.0 + 0.1 * i as f32);
    triangle
}

#[test]
fn each_row_is_that_of_the_plain_loop() {
    for (n, width) in [(1, 1), (3, 7), (64, 5), (65, 5), (200, 33)] {
        let (x, triangle) = (Random::new(n as u64).normal(n * width), triangle(width));
        let (mut expected, mut spread) = (x.clone(), vec![0.0; x.len()]);
        for (row, spread) in expected.chunks_mut(width).zip(spread.chunks_mut(width)) {
            for (i, spread) in spread.iter_mut().enumerate() {
                let rounded = (row[i] * 2.0).round() / 2.0;
                *spread = (row[i] - rounded) / triangle[i * width + i];
                row[i] = rounded;
                for (x, factor) in row[i + 1..].iter_mut().zip(&triangle[i * width + i + 1..]) {
                    *x -= *spread * factor;
                }
            }
        }
        for count in [1, 3] {
            let (mut found, mut errors) = (x.clone(), vec![f32::NAN; x.len()]);
            let columns = RoundColumns { width, triangle: &triangle, round: &halves };
            threads::with_count(count, || columns.run(&mut found, &mut errors)).unwrap();
            assert_eq!((found, errors), (expected.clone(), spread.clone()), "{n} x {width} on {count}");
        }
    }
}

#[test]
fn an_error_names_the_first_element_of_the_first_rows() {
    let (n, width) = (130, 4);
    let mut x = Random::new(1).normal(n * width);
    (x[100 * width + 1], x[9 * width + 2], x[70 * width]) = (f32::NAN, f32::INFINITY, f32::NAN);
    let columns = RoundColumns { width, triangle: &triangle(width), round: &halves };
    let error = columns.run(&mut x, &mut vec![0.0; n * width]).unwrap_err();
    assert_eq!(error, KernelError::NonFinite { index: 9 * width + 2, value: f32::INFINITY });
    let wrong = columns.run(&mut [0.0; 6], &mut [0.0; 6]).unwrap_err();
    assert_eq!(wrong.to_string(), "`x` holds 6 elements where 4 are needed\nhelp: whole rows");
}

/// An element's code is that in a block of the same scale, whichever the blocks of the format are.
#[test]
fn elements_are_coded_by_scales_of_their_own() {
    let (x, scales) = (Random::new(5).normal(77), Random::new(6).normal(77));
    let mut codes = [vec![0; 39], vec![0; 77]];
    nf4::encoder(64).with_block(1).quantize_by(&x, BlockScales::Floats(&scales), &mut codes[0]).unwrap();
    int8::encoder(64).with_block(1).quantize_by(&x, BlockScales::Floats(&scales), &mut codes[1]).unwrap();
    for (at, (&x, &scale)) in x.iter().zip(&scales).enumerate() {
        let block = [x; 64];
        let (mut four, mut eight) = ([0; 32], [0; 64]);
        nf4::encoder(64).quantize_by(&block, BlockScales::Floats(&[scale]), &mut four).unwrap();
        int8::encoder(64).quantize_by(&block, BlockScales::Floats(&[scale]), &mut eight).unwrap();
        assert_eq!(codes[0][at / 2] >> (4 - 4 * (at % 2)) & 15, four[0] & 15, "{x} by {scale}");
        assert_eq!(codes[1][at], eight[0], "{x} by {scale}");
    }
}

//! Kernels of 8-bit integers on both sides, against their decompositions.

use mlx_rs::{Array, Dtype};
use tacit_conformance::oracle::{floats, relative_error};
use tacit_core::kernel::{Kernel, apply};
use tacit_core::transform::vmap;
use tacit_core::{Aval, Value};
use tacit_kernels::Orientation;

use super::super::int8_product::Int8Product;
use super::super::int8_rows::Int8Round;
use super::normal;

const BOTH: [Orientation; 2] = [Orientation::Plain, Orientation::Transposed];

#[test]
fn rows_and_columns_are_rounded_as_in_plain_ops() {
    for shape in [&[5][..], &[1, 1], &[0, 8], &[3, 8], &[2, 3, 20], &[40, 33]] {
        let (columns, size) = (shape[shape.len() - 1], shape.iter().product::<i32>());
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            let x = normal(1, shape).as_dtype(dtype).expect("a float type");
            for orientation in BOTH {
                let length = if orientation == Orientation::Plain { columns } else { size / columns };
                for inputs in [vec![x.clone()], vec![x.clone(), normal(2, &[length])]] {
                    let kernel = || Int8Round { orientation };
                    let results = apply(kernel(), &inputs).expect("rounds");
                    let plain = kernel().decompose(&inputs).expect("rounds");
                    for (result, plain) in results.iter().zip(&plain) {
                        assert_eq!((result.shape(), result.dtype()), (plain.shape(), plain.dtype()), "{shape:?}");
                        let [result, plain] = [result, plain].map(wide);
                        assert_eq!(result, plain, "{shape:?} {dtype:?} {orientation:?}");
                    }
                }
            }
        }
    }
}

/// Examples without elements, and no examples: by the kernel's own rule and, of columns or of factors that are mapped too, by plain ops.
#[test]
fn what_is_mapped_may_have_no_elements() {
    for (shape, axis) in [([2, 0, 8], 0), ([2, 3, 0], 0), ([0, 3, 8], 0), ([3, 0, 2], 2), ([3, 0, 8], 1)] {
        let mut example = shape.to_vec();
        let examples = example.remove(axis as usize);
        for orientation in BOTH {
            let length = example[usize::from(orientation == Orientation::Plain)];
            let one = Int8Round { orientation }.output_avals(&[Aval::new(&example, Dtype::Float32)]).expect("avals");
            for with_factors in [false, true] {
                let factors = with_factors.then(|| (normal(2, &[examples, length]), Some(0)));
                let inputs = [(normal(1, &shape), Some(axis))].into_iter().chain(factors);
                let (inputs, axes): (Vec<Value>, Vec<_>) =
                    inputs.map(|(input, axis)| (Value::from(input), axis)).unzip();
                let mut mapped = vmap(axes, 0, |args: Vec<Array>| apply(Int8Round { orientation }, &args));
                let found = mapped.call(inputs).expect("rounds");
                assert_eq!(found.len(), one.len());
                for (found, one) in found.iter().zip(&one) {
                    let expected = Aval::new(&[&[examples], &one.shape[..]].concat(), one.dtype);
                    let found = found.dense().expect("dense");
                    assert_eq!(Aval::from(&found), expected, "{shape:?} {axis} {orientation:?}");
                    assert_eq!(wide(&found), vec![0.0; found.size()], "{shape:?} {axis} {orientation:?}");
                }
            }
        }
    }
}

fn wide(array: &Array) -> Vec<f32> {
    floats(array).expect("numbers")
}

#[test]
fn what_is_not_finite_or_tiny_is_rounded_as_in_plain_ops() {
    let rows = [0.0, 0.0, 1.0, f32::NAN, f32::NEG_INFINITY, 2.0, 2e-38, -5e-39, 1e30, -1e30];
    let inputs = [Array::from_slice(&rows, &[5, 2])];
    let results = apply(Int8Round { orientation: Orientation::Plain }, &inputs).expect("rounds");
    let plain = Int8Round { orientation: Orientation::Plain }.decompose(&inputs).expect("rounds");
    assert_eq!(wide(&results[0]), wide(&plain[0]));
    for (result, plain) in wide(&results[1]).into_iter().zip(wide(&plain[1])) {
        assert!((result - plain).abs() <= 1e-6 * plain || (result.is_nan() && plain.is_nan()), "{result} {plain}");
    }
}

#[test]
fn products_of_integers_are_those_of_plain_ops() {
    let rounded = |x: &Array| apply(Int8Round { orientation: Orientation::Plain }, std::slice::from_ref(x));
    for (before, n, k) in [(&[1][..], 1, 1), (&[][..], 8, 16), (&[5][..], 17, 40), (&[2, 3][..], 9, 600)] {
        let matrix = rounded(&normal(2, &[n, k])).expect("rounds");
        for orientation in BOTH {
            let depth = if orientation == Orientation::Plain { n } else { k };
            let x = rounded(&normal(3, &[before, &[depth]].concat())).expect("rounds");
            let mut inputs = vec![x[0].clone(), x[1].clone(), matrix[0].clone()];
            inputs.extend((orientation == Orientation::Transposed).then(|| matrix[1].clone()));
            for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
                let kernel = || Int8Product { orientation, dtype };
                let results = apply(kernel(), &inputs).expect("multiplies");
                let plain = kernel().decompose(&inputs).expect("multiplies");
                assert_eq!((results[0].shape(), results[0].dtype()), (plain[0].shape(), plain[0].dtype()));
                let bound = if dtype == Dtype::Float32 { 1e-6 } else { 1e-2 };
                let error = relative_error(&results[0], &plain[0]).expect("an error");
                assert!(error < bound, "{before:?} {n} {k} {orientation:?} {dtype:?}: {error}");
            }
        }
    }
}

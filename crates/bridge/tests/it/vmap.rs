//! Functions mapped over an axis.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexOp};
use mlx_rs::transforms::vjp;
use mlx_rs::{Array, Axes, Dtype, ops};
use tacit_bridge::{BoxError, BridgeError, PanicError, Program, VmapError, vmap};

use crate::arrays::{matrix, numbers, vector};

type Made = Result<Vec<Array>, BoxError>;

fn first(count: usize) -> Vec<i32> {
    vec![0; count]
}

fn mapped(inputs: &[Array], axes: &[Option<i32>], mut f: impl FnMut(&[Array]) -> Made) -> Vec<Array> {
    vmap(inputs, axes, first, &mut |args| f(&args)).expect("maps")
}

/// `f` on one example after the other, stacked.
fn looped(inputs: &[Array], axes: &[Option<i32>], mut f: impl FnMut(&[Array]) -> Made) -> Vec<Array> {
    let size = inputs.iter().zip(axes).find_map(|(input, axis)| axis.map(|axis| input.dim(axis))).expect("mapped");
    let examples: Vec<Vec<Array>> = (0..size)
        .map(|i| {
            let pick = |(input, axis): (&Array, &Option<i32>)| match axis {
                Some(axis) => input.take_axis(Array::from_int(i), *axis).expect("picks"),
                None => input.clone(),
            };
            f(&inputs.iter().zip(axes).map(pick).collect::<Vec<_>>()).expect("runs")
        })
        .collect();
    let results = examples[0].len();
    (0..results)
        .map(|r| ops::stack(&examples.iter().map(|outputs| &outputs[r]).collect::<Vec<_>>(), 0).expect("stacks"))
        .collect()
}

#[track_caller]
fn agree(inputs: &[Array], axes: &[Option<i32>], f: impl Fn(&[Array]) -> Made) {
    let (fast, slow) = (mapped(inputs, axes, &f), looped(inputs, axes, &f));
    assert_eq!(fast.len(), slow.len());
    for (fast, slow) in fast.iter().zip(&slow) {
        assert_eq!(fast.shape(), slow.shape());
        for (a, b) in numbers(fast).iter().zip(numbers(slow)) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
        }
    }
}

/// Numbers between -1 and 1, different in every place.
fn waves(shape: &[i32]) -> Array {
    let size: i32 = shape.iter().product();
    let values: Vec<f32> = (0..size).map(|i| ((i as f32) * 0.7).sin()).collect();
    Array::from_slice(&values, shape)
}

#[test]
fn it_is_a_loop_over_examples() {
    let (x, y, z) = (waves(&[3, 4, 2]), waves(&[2, 3]), waves(&[4, 2]));
    let f = |args: &[Array]| -> Made { Ok(vec![args[0].multiply(&args[2])?.add(&args[1])?, args[1].exp()?]) };
    agree(&[x.clone(), y.clone(), z.clone()], &[Some(0), Some(1), None], f);
    agree(&[x, y, z], &[Some(-3), Some(-1), None], f);
}

#[test]
fn results_that_are_not_mapped_are_repeated_and_axes_go_where_they_are_told() {
    let f = &mut |args: Vec<Array>| -> Made { Ok(vec![args[1].clone(), args[0].clone(), args[0].sum(None)?]) };
    let results = vmap(&[matrix(2, 3), vector(&[7.0])], &[Some(0), None], |count| vec![-1; count], f).expect("maps");
    assert_eq!(results.iter().map(Array::shape).collect::<Vec<_>>(), [&[1, 2][..], &[3, 2], &[2]]);
    assert_eq!(numbers(&results[1]), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!((numbers(&results[0]), numbers(&results[2])), (vec![7.0, 7.0], vec![6.0, 15.0]));
}

#[test]
fn a_result_that_is_there_twice_has_its_axis_moved_once() {
    let f = &mut |args: Vec<Array>| -> Made {
        let y = args[0].exp()?;
        Ok(vec![y.clone(), args[0].clone(), y, args[0].clone()])
    };
    let results = vmap(&[matrix(2, 3)], &[Some(1)], |_| vec![0, 1, 1, 0], f).expect("maps");
    assert_eq!(results.iter().map(Array::shape).collect::<Vec<_>>(), [&[3, 2][..], &[2, 3], &[2, 3], &[3, 2]]);
    assert_eq!(numbers(&results[1]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(numbers(&results[3]), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn axes_that_do_not_fit_are_errors() {
    let refused = |axes: &[Option<i32>], out: Vec<i32>| -> String {
        let f = &mut |args: Vec<Array>| -> Made { Ok(vec![args[0].clone()]) };
        let error = vmap(&[matrix(2, 3), vector(&[1.0; 3])], axes, |_| out, f).expect_err("does not fit");
        let of_vmap = match &error {
            BridgeError::Vmap(_) => true,
            BridgeError::Callback(error) => error.is::<VmapError>(),
            _ => false,
        };
        assert!(of_vmap, "{error:?}");
        error.to_string()
    };
    assert_eq!(refused(&[Some(0)], vec![0]), "1 axes are given for 2 inputs\nhelp: give one axis, or none, for each");
    assert_eq!(refused(&[None, None], vec![0]), "no input is mapped\nhelp: give at least one input an axis");
    assert_eq!(
        refused(&[Some(2), None], vec![0]),
        "axis 2 is out of range for input 0, which is f32[2,3]\n\
         help: choose one of 2 axes, from 0 on or, from the last one on, from -1 on"
    );
    assert_eq!(
        refused(&[Some(0), Some(-1)], vec![0]),
        "the mapped axes differ in length: axis -1 of input 1, which is f32[3], has 3 and another one 2\n\
         help: map over axes of one length"
    );
    assert!(refused(&[Some(0), None], vec![0, 0]).starts_with("2 axes are given for 1 results"));
    assert!(refused(&[Some(0), None], vec![2]).starts_with("axis 2 is out of range for result 0, which is f32[3]"));
}

#[test]
fn errors_and_panics_of_the_function_come_back_themselves() {
    let inputs = [vector(&[1.0])];
    let error = vmap(&inputs, &[Some(0)], first, &mut |_| Err("own words".into())).expect_err("fails");
    assert!(matches!(&error, BridgeError::Callback(_)) && error.to_string() == "own words");
    let error = vmap(&inputs, &[Some(0)], first, &mut |_| panic!("own panic")).expect_err("panics");
    assert!(matches!(error, BridgeError::Callback(error) if error.is::<PanicError>()));
}

fn quantized(w: &Array) -> [Array; 3] {
    let (codes, scales, biases) = ops::quantize(w, 32, 4).expect("quantizes");
    [codes, scales, biases]
}

fn product(transpose: bool) -> impl Fn(&[Array]) -> Made {
    move |args| Ok(vec![ops::quantized_matmul(&args[0], &args[1], &args[2], &args[3], transpose, 32, 4)?])
}

#[test]
fn a_quantized_product_is_mapped_over_its_rows() {
    let [codes, scales, biases] = quantized(&waves(&[32, 64]));
    for (transpose, k) in [(true, 64), (false, 32)] {
        for (shape, axis) in
            [(vec![3, 5, k], 0), (vec![5, 3, k], 1), (vec![5, k, 3], 2), (vec![3, k], 0), (vec![2, 3, 5, k], 1)]
        {
            let inputs = [waves(&shape), codes.clone(), scales.clone(), biases.clone()];
            agree(&inputs, &[Some(axis), None, None, None], product(transpose));
        }
    }
}

#[test]
fn a_quantized_product_is_mapped_over_its_weight() {
    let [codes, scales, biases] = quantized(&waves(&[3, 32, 64]));
    for (transpose, k) in [(true, 64), (false, 32)] {
        let weight = |x: Array| [x, codes.clone(), scales.clone(), biases.clone()];
        agree(&weight(waves(&[5, k])), &[None, Some(0), Some(0), Some(0)], product(transpose));
        agree(&weight(waves(&[3, 5, k])), &[Some(0), Some(0), Some(0), Some(0)], product(transpose));
        agree(&weight(waves(&[2, 5, 3, k])), &[Some(2), Some(0), Some(0), Some(0)], product(transpose));
        agree(&weight(waves(&[k])), &[None, Some(0), Some(0), Some(0)], product(transpose));
    }
    let [codes, _, biases] = quantized(&waves(&[32, 64]));
    let inputs = [waves(&[5, 64]), codes, scales.clone(), biases];
    agree(&inputs, &[None, None, Some(0), None], product(true));
}

#[test]
fn a_quantized_product_of_batches_is_mapped() {
    let [codes, scales, biases] = quantized(&waves(&[2, 32, 64]));
    let inputs = [waves(&[3, 2, 5, 64]), codes, scales, biases];
    agree(&inputs, &[Some(0), None, None, None], product(true));
    let [codes, scales, biases] = quantized(&waves(&[2, 3, 32, 64]));
    let inputs = [waves(&[2, 5, 64]), codes, scales, biases];
    agree(&inputs, &[None, Some(1), Some(1), Some(1)], product(true));
}

#[test]
fn a_quantized_product_that_is_not_mapped_is_left_alone() {
    let [codes, scales, biases] = quantized(&waves(&[32, 64]));
    let shared = ops::quantized_matmul(waves(&[32]), &codes, &scales, &biases, false, 32, 4).expect("builds");
    agree(&[waves(&[3, 64])], &[Some(0)], |args| Ok(vec![args[0].add(&shared)?]));
    assert_eq!(numbers(&shared).len(), 64);
}

#[test]
fn maps_of_quantized_products_nest_and_differentiate_and_compile() {
    let [codes, scales, biases] = quantized(&waves(&[32, 64]));
    let one = |x: &Array| ops::quantized_matmul(x, &codes, &scales, &biases, true, 32, 4);
    let twice = |x: &Array| -> Made {
        let mut inner = |args: Vec<Array>| -> Made { Ok(vec![one(&args[0])?]) };
        let mut outer = |args: Vec<Array>| -> Made { Ok(vmap(&args, &[Some(0)], first, &mut inner)?) };
        Ok(vmap(std::slice::from_ref(x), &[Some(1)], |_| vec![1], &mut outer)?)
    };
    let x = waves(&[2, 3, 64]);
    let expected = numbers(&one(&x).expect("builds"));
    assert_eq!(numbers(&twice(&x).expect("maps")[0]), expected);

    let ones = ops::ones::<f32>(&[2, 3, 32]).expect("builds");
    let (xs, ones) = (std::slice::from_ref(&x), std::slice::from_ref(&ones));
    let plain = vjp(|args: &[Array]| vec![one(&args[0]).expect("builds")], xs, ones);
    let through = vjp(|args: &[Array]| twice(&args[0]).expect("maps"), xs, ones);
    let [plain, through] = [plain, through].map(|result| numbers(&result.expect("differentiates").1[0]));
    assert!(plain.iter().zip(&through).all(|(a, b)| (a - b).abs() < 1e-5));

    let mut program = Program::new(false).expect("memory");
    for _ in 0..2 {
        let mut outputs = Vec::new();
        program.call(&[&x], &mut outputs, &mut |args| twice(&args[0])).expect("compiles");
        assert_eq!(numbers(&outputs[0]), expected);
    }
}

#[test]
fn a_gathered_quantized_product_is_mapped() {
    let [codes, scales, biases] = quantized(&waves(&[4, 32, 64]));
    let gathered = |args: &[Array]| -> Made {
        Ok(vec![ops::gather_qmm(&args[0], &args[1], &args[2], &args[3], &args[4], &args[5], true, 32, 4, false)?])
    };
    let indices = |values: &[u32], shape: &[i32]| Array::from_slice(values, shape);
    let (left, right) = (indices(&[1, 0, 1], &[3]), indices(&[3, 0, 2], &[3]));
    let weight = [codes.clone(), scales.clone(), biases.clone()];
    let inputs =
        |x: Array, [w, s, b]: [Array; 3], left: &Array, right: &Array| [x, w, s, b, left.clone(), right.clone()];
    let none = None;
    agree(
        &inputs(waves(&[2, 3, 5, 64]), weight.clone(), &left, &right),
        &[Some(1), none, none, none, none, none],
        gathered,
    );
    agree(
        &inputs(waves(&[2, 5, 64]), weight.clone(), &left, &indices(&[3, 0, 2, 1, 1, 0], &[2, 3])),
        &[none, none, none, none, none, Some(0)],
        gathered,
    );
    let many = quantized(&waves(&[4, 2, 32, 64]));
    agree(
        &inputs(waves(&[2, 2, 5, 64]), many, &left, &indices(&[3, 0, 2], &[3])),
        &[Some(0), Some(1), Some(1), Some(1), none, none],
        gathered,
    );
}

/// MLX's own rules for these read behind a list, or take the mapped axis of an operand that has none.
#[test]
fn binary_ops_are_mapped_whichever_operand_is() {
    type Op = fn(&Array, &Array) -> Result<Vec<Array>, Exception>;
    let all: [Op; 8] = [
        |a, b| {
            let (quotient, remainder) = ops::divmod(a, b)?;
            Ok(vec![remainder.add(&quotient)?, remainder, quotient])
        },
        |a, b| Ok(vec![a.ne(b)?.as_dtype(Dtype::Float32)?]),
        |a, b| Ok(vec![a.eq(b)?.as_dtype(Dtype::Float32)?]),
        |a, b| Ok(vec![a.le(b)?.as_dtype(Dtype::Float32)?, a.gt(b)?.as_dtype(Dtype::Float32)?]),
        |a, b| Ok(vec![ops::logical_xor(a, b)?.as_dtype(Dtype::Float32)?]),
        |a, b| Ok(vec![ops::remainder(a, b)?, ops::floor_divide(a, b)?]),
        |a, b| Ok(vec![ops::atan2(a, b)?, ops::logaddexp(a, b)?, ops::power(a.abs()?, b)?]),
        |a, b| Ok(vec![ops::maximum(a, b)?, ops::minimum(a, b)?, ops::select(&a.ne(b)?, a, b)?]),
    ];
    let shifted = |shape: &[i32]| waves(shape).add(Array::from_f32(1.5)).expect("adds");
    let (x, y, z) = (shifted(&[4, 3]), shifted(&[3]), shifted(&[3, 2]));
    for op in all {
        let f = |args: &[Array]| -> Made { Ok(op(&args[0], &args[1])?) };
        agree(&[x.clone(), y.clone()], &[Some(0), None], f);
        agree(&[y.clone(), x.clone()], &[None, Some(0)], f);
        agree(&[x.clone(), y.clone()], &[Some(1), Some(0)], f);
        agree(&[y.clone(), x.clone()], &[Some(0), Some(1)], f);
        agree(&[z.clone(), y.clone()], &[Some(1), None], f);
        agree(&[y.clone(), z.clone()], &[None, Some(1)], f);
    }
}

/// MLX's own rule takes the end before the first element for one counted from the last.
#[test]
fn slices_that_go_backwards_are_mapped() {
    for extent in 1..5 {
        let x = waves(&[3, extent, 2]);
        let f = |args: &[Array]| -> Made {
            let x = &args[0];
            Ok(vec![x.flip(Axes::Axis(0))?, x.flip(Axes::Axes(vec![0, 1]))?, x.try_index(((..).stride_by(-2), ..))?])
        };
        agree(std::slice::from_ref(&x), &[Some(0)], f);
        agree(&[x.swap_axes(0, 2).expect("a view")], &[Some(-1)], f);
    }
}

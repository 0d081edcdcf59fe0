//! Each kernel against its decomposition and against finite differences.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops, random, transforms};
use tacit_core::kernel::{Kernel, apply};
use tacit_testing::oracle::{floats, relative_error};

use super::{Dequantize, GatherRows, Layout, Matmul, Orientation, Quantize, quantize};

type Outputs = Result<Vec<Array>, Exception>;

fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers")
}

fn packed(layout: Layout) -> (Array, Array) {
    quantize(&normal(1, &[(layout.n * layout.k) as i32]), layout.block).expect("quantizes")
}

/// Shapes whose rows fit the blocks, straddle them, and leave an odd tail.
const LAYOUTS: [Layout; 4] = [
    Layout { n: 4, k: 64, block: 32 },
    Layout { n: 6, k: 50, block: 64 },
    Layout { n: 7, k: 37, block: 64 },
    Layout { n: 3, k: 5, block: 4096 },
];

/// A scalar whose gradient tells the elements of `y` apart.
fn weighted(y: &Array) -> Outputs {
    let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
    Ok(vec![y.multiply(Array::from_slice(&weights, y.shape()))?.sum(None)?])
}

/// The values equal the decomposition's; the gradients for the inputs `argnums` equal its and the differences.
fn check<K: Kernel>(kernel: impl Fn() -> K, inputs: &[Array], argnums: &'static [i32], tolerance: f64) {
    let direct = |inputs: &[Array]| -> Outputs { Ok(apply(kernel(), inputs)?) };
    let plain = |inputs: &[Array]| -> Outputs {
        kernel().decompose(inputs).map_err(|error| Exception::custom(error.to_string()))
    };
    for (found, expected) in direct(inputs).expect("runs").iter().zip(&plain(inputs).expect("runs")) {
        assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()));
        let error = relative_error(found, expected).expect("floats");
        assert!(error <= tolerance, "value: {error}");
    }
    if argnums.is_empty() {
        return;
    }
    let direct = |inputs: &[Array]| weighted(&direct(inputs)?[0]);
    let plain = |inputs: &[Array]| weighted(&plain(inputs)?[0]);
    let (_, found) = transforms::value_and_grad_with_argnums(direct, argnums)(inputs).expect("own gradient");
    let (_, expected) = transforms::value_and_grad_with_argnums(plain, argnums)(inputs).expect("plain gradient");
    for ((found, expected), &argnum) in found.iter().zip(&expected).zip(argnums) {
        let error = relative_error(found, expected).expect("floats");
        assert!(error <= 1e-5, "gradient {argnum}: {error}");
        // The kernels are linear in each input, so a wide step has no truncation error.
        let values = floats(&inputs[argnum as usize]).expect("floats");
        let gradient = floats(found).expect("floats");
        let most = gradient.iter().fold(0f32, |most, g| most.max(g.abs()));
        for at in [0, values.len() / 2, values.len() - 1] {
            let side = |step: f32| {
                let mut moved = values.clone();
                moved[at] += step;
                let mut inputs = inputs.to_vec();
                inputs[argnum as usize] = Array::from_slice(&moved, inputs[argnum as usize].shape());
                direct(&inputs).expect("runs")[0].item_exact::<f32>()
            };
            let difference = (side(0.5) - side(-0.5)) / 1.0;
            assert!(
                (difference - gradient[at]).abs() <= 1e-3 * most.max(1.0),
                "{argnum}: {difference} {}",
                gradient[at]
            );
        }
    }
}

#[test]
fn quantize_equals_its_decomposition_bit_for_bit() {
    for size in [1, 31, 32, 33, 64, 100, 1001] {
        for block in [32, 64, 4096] {
            check(|| Quantize { block }, &[normal(size as u64, &[size])], &[], 0.0);
        }
    }
    check(|| Quantize { block: 32 }, &[ops::zeros::<f32>(&[40]).expect("zeros")], &[], 0.0);
}

#[test]
fn dequantize_equals_its_decomposition_bit_for_bit() {
    for layout in LAYOUTS {
        let (packed, absmax) = packed(layout);
        check(|| Dequantize { block: layout.block, size: layout.n * layout.k }, &[packed, absmax], &[1], 0.0);
    }
}

#[test]
fn gather_rows_equals_its_decomposition_bit_for_bit() {
    for layout in LAYOUTS {
        let (packed, absmax) = packed(layout);
        let rows = Array::from_slice(&[2u32, 0, 2], &[3]);
        check(|| GatherRows(layout), &[packed, absmax, rows], &[1], 0.0);
    }
}

#[test]
fn matmul_equals_its_decomposition() {
    for layout in LAYOUTS {
        for m in [1, 3, 20] {
            let (packed, absmax) = packed(layout);
            let x = normal(2, &[m, layout.k as i32]);
            let inputs = [x, packed.clone(), absmax.clone()];
            check(|| Matmul { layout, orientation: Orientation::Transposed }, &inputs, &[0, 2], 1e-5);
            let inputs = [normal(2, &[m, layout.n as i32]), packed, absmax];
            check(|| Matmul { layout, orientation: Orientation::Plain }, &inputs, &[0, 2], 1e-5);
        }
    }
}

#[test]
fn a_gradient_through_the_quantizer_reaches_only_the_largest_of_each_block() {
    let x = Array::from_slice(&[0.5f32, -2.0, 1.0], &[3]);
    let mut gradient = transforms::grad(|x: &Array| {
        let (packed, absmax) = quantize(x, 32)?;
        super::dequantize(&packed, &absmax, 32, 3)?.sum(None)
    });
    let gradient = floats(&gradient(&x).expect("runs")).expect("floats");
    assert_eq!((gradient[0], gradient[2]), (0.0, 0.0));
    assert!(gradient[1] != 0.0);
}

/// The mapped results, moved to the front, and those of one example after the other.
fn mapped<K: Kernel>(kernel: impl Fn() -> K, inputs: &[Array], axes: &[Option<usize>]) -> [Array; 2] {
    let (mut made, at) = kernel().vmap(inputs, axes).expect("has a rule").expect("maps");
    let mapped = made.remove(0).move_axis(at[0] as i32, 0).expect("in range");
    let examples: Vec<Array> = (0..mapped.dim(0))
        .map(|example| {
            let pick = |(input, axis): (&Array, &Option<usize>)| match axis {
                Some(axis) => input.take_axis(Array::from_int(example), *axis as i32).expect("in range"),
                None => input.clone(),
            };
            let one: Vec<Array> = inputs.iter().zip(axes).map(pick).collect();
            apply(kernel(), &one).expect("fits").remove(0)
        })
        .collect();
    [mapped, ops::stack(&examples, 0).expect("stacks")]
}

#[test]
fn mapped_over_rows_they_equal_a_loop() {
    let layout = Layout { n: 6, k: 10, block: 32 };
    let (codes, absmax) = packed(layout);
    let cases = [
        (Orientation::Transposed, &[3, 2, 10][..], 0),
        (Orientation::Transposed, &[3, 2, 10], 1),
        (Orientation::Plain, &[3, 6, 2], 2),
    ];
    for (orientation, shape, axis) in cases {
        let inputs = [normal(7, shape), codes.clone(), absmax.clone()];
        let [fast, slow] = mapped(|| Matmul { layout, orientation }, &inputs, &[Some(axis), None, None]);
        assert!(relative_error(&fast, &slow).expect("compares") < 1e-6);
    }
    let rows = Array::from_slice(&[0_u32, 5, 2, 2, 1, 3], &[3, 2]);
    let inputs = [codes, absmax, rows];
    for axis in [0, 1] {
        let [fast, slow] = mapped(|| GatherRows(layout), &inputs, &[None, None, Some(axis)]);
        assert_eq!(fast.shape(), slow.shape());
        assert_eq!(floats(&fast).expect("evaluates"), floats(&slow).expect("evaluates"));
    }
}

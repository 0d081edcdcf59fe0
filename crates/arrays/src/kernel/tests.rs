//! Each kernel, in every format, against its decomposition and against finite differences.

mod int8;
mod products;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, random, transforms};

// Dense products are those of a program with the facade: MLX takes its BLAS from this executable.
use tacit_blas as _;
use tacit_conformance::oracle::{floats, relative_error};
use tacit_core::kernel::{Fallback, Kernel, apply};
use tacit_kernels::{Order, Orientation};

use super::dequantize::Dequantize;
use super::deviations::Deviations;
use super::dynamic8::Dynamic8Quantize;
use super::encode_by::EncodeBy;
use super::gather::GatherRows;
use super::quantize::Quantize;
use super::scale_gradients::ScaleGradients;
use super::sum::{MeasureSum, QuantizeSum};
use super::{Coding, Layout, Measure, Scaling, Scheme, StackLayout, Summands};
use crate::families::packed::Packed;
use crate::format::k_quant::KQuantArray;
use crate::format::mx::ScaleRule;
use crate::format::{
    Affine, Bf16, Binary, Dynamic, E4m3, E5m2, F16, Format, Fp4, Granularity, Int8, KQuant, Mxfp4, Mxfp8, Nf4, Nvfp4,
    Symmetric, Ternary,
};

type Outputs = Result<Vec<Array>, Exception>;

pub(super) fn normal(seed: u64, shape: &[i32]) -> Array {
    let key = random::key(seed).expect("a key");
    random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers")
}

/// A matrix of each format, with its children; the float ones are the last.
pub(super) struct Case {
    pub(super) layout: Layout,
    pub(super) children: Vec<Array>,
}

pub(super) fn case(format: &impl Format, n: usize, k: usize) -> Case {
    let (scheme, block) = (Scheme { nested: None, ..format.scheme() }, format.block());
    let x = normal((n * k) as u64, &[n as i32, k as i32]);
    let children = apply(Quantize::new(scheme, block), &[x]).expect("quantizes");
    Case { layout: Layout { scheme, n, k, block }, children }
}

fn nested(format: &impl Format, n: usize, k: usize, inner: usize) -> Case {
    let Case { mut layout, mut children } = case(format, n, k);
    let absmax = children.pop().expect("scales");
    children.extend(apply(Dynamic8Quantize { block: inner }, &[absmax]).expect("quantizes"));
    layout.scheme.scaling = Scaling::Nested { block: inner };
    Case { layout, children }
}

/// Tables of each number of bits that no format of ours has.
const TABLES: [Scheme; 4] = [
    Scheme::codebook("table1", &[0.5, -1.0]),
    Scheme::codebook("table2", &[0.0, -1.0, 0.25, 3.0]),
    Scheme::codebook("table3", &[-1.0, -0.5, -0.25, 0.0, 0.125, 0.25, 0.5, 1.0]),
    Scheme::codebook(
        "table4",
        &[-1.0, -0.7, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.08, 0.15, 0.25, 0.33, 0.44, 0.56, 0.72, 0.9],
    ),
];

/// The same tables, by codes of which the first is in the highest bits of a byte, but those of 3 bits, which are one stream.
fn high_first() -> [Scheme; 4] {
    TABLES.map(|scheme| {
        let Coding::Table { bits, values, .. } = scheme.coding else { return scheme };
        let label = ["high1", "high2", "high3", "high4"][bits as usize - 1];
        Scheme { label, coding: Coding::Table { bits, order: Order::HighFirst, values }, ..scheme }
    })
}

/// Shapes whose rows fit the blocks, straddle them, and leave an odd tail.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, k, block) in [(4, 64, 32), (6, 50, 64), (7, 37, 64), (3, 5, 4096)] {
        cases.extend([case(&Nf4::from(block), n, k), case(&Fp4::from(block), n, k)]);
    }
    for (n, k) in [(4, 64), (7, 37)] {
        cases.extend([case(&F16, n, k), case(&Bf16, n, k)]);
    }
    cases.extend([nested(&Nf4::from(32), 30, 37, 32), nested(&Fp4::from(32), 30, 37, 32)]);
    for (n, k, block) in [(4, 64, 32), (7, 37, 37), (3, 5, 4)] {
        let granularity = Granularity::Block(block);
        cases.extend([
            case(&Int8 { granularity }, n, k),
            case(&Ternary { granularity }, n, k),
            case(&Binary { granularity }, n, k),
        ]);
        cases.push(case(&E4m3 { block }, n, k));
        cases.push(case(&E5m2 { block }, n, k));
        for scheme in TABLES.into_iter().chain(high_first()) {
            let x = normal((n * k) as u64, &[n as i32, k as i32]);
            let children = apply(Quantize::new(scheme, block), &[x]).expect("quantizes");
            cases.push(Case { layout: Layout { scheme, n, k, block }, children });
        }
    }
    for bits in [2, 3, 4, 5, 6, 8] {
        cases.push(case(&Affine { bits, group: 32 }, 5, 96));
        cases.push(case(&Affine { bits, group: 64 }, 3, 128));
    }
    for bits in 2..=6 {
        for (n, k) in [(5, 64), (3, 256), (7, 37)] {
            let array = KQuantArray::quantize(&normal(bits.into(), &[n, k]), KQuant { bits }).expect("quantizes");
            let (layout, children) = array.stored().kernel(n).expect("has children");
            cases.push(Case { layout, children });
        }
    }
    cases.push(case(&Mxfp4 { rule: ScaleRule::Ceil }, 5, 64));
    cases.push(case(&Mxfp8 { rule: ScaleRule::Round }, 5, 64));
    cases.push(case(&Nvfp4::default(), 5, 48));
    let mut scaled = case(&Nvfp4::default(), 5, 48);
    scaled.children.push(Array::from_f32(0.37));
    cases.push(scaled);
    cases
}

/// The positions of the float children, which come after `before` other inputs.
fn float_inputs(children: &[Array], before: usize) -> Vec<i32> {
    let floats = children.iter().zip(before as i32..).filter(|(child, _)| child.dtype().is_float());
    floats.map(|(_, at)| at).collect()
}

/// A scalar whose gradient tells the elements of `y` apart.
fn weighted(y: &Array) -> Outputs {
    let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
    Ok(vec![y.multiply(Array::from_slice(&weights, y.shape()))?.sum(None)?])
}

/// The values equal the decomposition's; the gradients for the inputs `argnums` equal its and the differences.
fn check<K: Kernel>(kernel: impl Fn() -> K, inputs: &[Array], argnums: &[i32], tolerance: f64) {
    let name = kernel().name();
    let direct = |inputs: &[Array]| -> Outputs { Ok(apply(kernel(), inputs)?) };
    let plain = |inputs: &[Array]| -> Outputs {
        kernel().decompose(inputs).map_err(|error| Exception::custom(error.to_string()))
    };
    let (results, decomposed) = (direct(inputs).expect("runs"), plain(inputs).expect("runs"));
    assert_eq!(results.len(), decomposed.len(), "{name}");
    for (found, expected) in results.iter().zip(&decomposed) {
        assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{name}");
        if !found.dtype().is_float() {
            assert!(found.eq_exact(expected).expect("evaluates"), "{name}: {found:?}\n{expected:?}");
            continue;
        }
        let error = relative_error(found, expected).expect("floats");
        assert!(error <= tolerance, "{name}, value: {error}");
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
        // The fewer numbers of a kind there are, the more terms each sums, which may nearly cancel.
        let tolerance = match found.size() {
            1 => 1e-3,
            2..=16 => 1e-4,
            _ => 1e-5,
        };
        assert!(error <= tolerance, "{name}, gradient {argnum}: {error}");
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
            let apart = (difference - gradient[at]).abs();
            assert!(apart <= 1e-3 * most.max(1.0), "{name}, {argnum}: {difference} {}", gradient[at]);
        }
    }
}

pub(super) fn schemes() -> Vec<(Scheme, usize, f64)> {
    let mut all = vec![(Nvfp4::default().scheme(), 16, 0.0), (F16.scheme(), 1, 0.0), (Bf16.scheme(), 1, 0.0)];
    for block in [32, 64, 4096] {
        let granularity = Granularity::Block(block);
        all.extend([Nf4::from(block).scheme(), Fp4::from(block).scheme()].map(|scheme| (scheme, block, 0.0)));
        all.extend(
            [Int8 { granularity }.scheme(), E4m3 { block }.scheme(), E5m2 { block }.scheme()]
                .map(|scheme| (scheme, block, 0.0)),
        );
        // Means of magnitudes are summed in another order.
        all.extend(
            [Ternary { granularity }.scheme(), Binary { granularity }.scheme()].map(|scheme| (scheme, block, 1e-6)),
        );
        all.extend(TABLES.into_iter().chain(high_first()).map(|scheme| (scheme, block, 0.0)));
    }
    for rule in [ScaleRule::Ceil, ScaleRule::Round, ScaleRule::Floor] {
        all.extend([Mxfp4 { rule }.scheme(), Mxfp8 { rule }.scheme()].map(|scheme| (scheme, 32, 0.0)));
    }
    all.extend([2, 3, 4, 5, 6, 8].map(|bits| (Affine { bits, group: 32 }.scheme(), 32, 0.0)));
    all.extend([2, 3, 4, 5, 6, 8].map(|bits| (Symmetric { bits, group: 32 }.scheme(), 32, 0.0)));
    let dynamic = [(8, false), (4, true)].map(|(bits, unsigned)| Dynamic { bits, block: 64, unsigned }.scheme());
    let tables = TABLES.into_iter().chain(dynamic).chain([E4m3 { block: 64 }.scheme()]);
    all.extend(tables.map(|scheme| (scheme.reaching().expect("a table"), 64, 0.0)));
    all
}

#[test]
fn quantize_equals_its_decomposition_bit_for_bit() {
    for (scheme, block, tolerance) in schemes() {
        let sizes = if scheme.is_grouped() { &[32, 64, 96, 1024][..] } else { &[1, 31, 32, 33, 64, 100, 1001] };
        for &size in sizes {
            check(|| Quantize::new(scheme, block), &[normal(size as u64, &[size])], &[], tolerance);
        }
        let zeros = ops::zeros::<f32>(&[64]).expect("zeros");
        check(|| Quantize::new(scheme, block), &[zeros], &[], tolerance);
        // What rounds to zero from either side, and zeros of either sign.
        let small = [1.0, -1e-9, -0.0, 1e-9].repeat(16);
        check(|| Quantize::new(scheme, block), &[Array::from_slice(&small, &[64])], &[], tolerance);
    }
    let global = [normal(1, &[64]), Array::from_f32(3.0)];
    check(|| Quantize::new(Nvfp4 { global: true }.scheme(), 16), &global, &[], 0.0);
}

#[test]
fn codes_by_given_scales_are_those_of_the_quantizer_that_made_them() {
    for (scheme, block, _) in schemes().into_iter().filter(|(scheme, ..)| scheme.is_scaled()) {
        let x = normal(5, &[192]);
        let results = apply(Quantize::new(scheme, block), std::slice::from_ref(&x)).expect("quantizes");
        let again = super::encode_by(scheme, block, &x, &results[1..]).expect("codes");
        assert!(again.eq_exact(&results[0]).expect("evaluates"), "{}", scheme.label);
        // By scales of other numbers, which are beyond what all of them reach.
        let other = apply(Quantize::new(scheme, block), &[normal(6, &[192])]).expect("quantizes");
        check(|| EncodeBy { scheme, block }, &[&[x], &other[1..]].concat(), &[], 0.0);
    }
    let (scheme, global) = (Nvfp4 { global: true }.scheme(), Array::from_f32(3.0));
    let x = normal(5, &[64]);
    let results = apply(Quantize::new(scheme, 16), &[x.clone(), global]).expect("quantizes");
    for global in [3.0, -3.0, 0.0, -0.0] {
        let stored = [x.clone(), results[1].clone(), Array::from_f32(global)];
        check(|| EncodeBy { scheme, block: 16 }, &stored, &[], 0.0);
    }
}

#[test]
fn gradients_of_scales_equal_their_decomposition() {
    for Case { layout, children } in cases() {
        if matches!(layout.scheme.scaling, Scaling::One | Scaling::Nested { .. } | Scaling::Integers { .. }) {
            continue;
        }
        let shape = [layout.n as i32, layout.k as i32];
        // Other numbers than those that were coded, of which some are beyond the range.
        let inputs = [&[normal(8, &shape), normal(9, &shape)], children.as_slice()].concat();
        let kernel = ScaleGradients { layout };
        let found = apply(ScaleGradients { layout }, &inputs).expect("runs");
        for (found, expected) in found.iter().zip(kernel.decompose(&inputs).expect("runs")) {
            assert_eq!(found.shape(), expected.shape());
            assert!(relative_error(found, &expected).expect("floats") < 1e-5, "{}", kernel.name());
        }
    }
}

#[test]
fn deviations_equal_their_decomposition() {
    for Case { layout, children } in cases() {
        let blocks = (layout.n * layout.k).div_ceil(layout.block) as i32;
        let x = normal(8, &[layout.n as i32, layout.k as i32]);
        let weights = normal(9, &[blocks]).abs().expect("abs");
        for power in [None, Some(0.7)] {
            if layout.scheme.is_scaled() {
                let weights = power.map(|_| weights.clone());
                let inputs: Vec<Array> = [x.clone()].into_iter().chain(weights).chain(children.clone()).collect();
                check(|| Deviations { layout, power }, &inputs, &[], 1e-5);
            }
        }
    }
}

#[test]
fn nested_scales_equal_their_decomposition() {
    for size in [1, 100, 1001] {
        let x = normal(3, &[size]).abs().expect("abs");
        let results = apply(Dynamic8Quantize { block: 256 }, std::slice::from_ref(&x)).expect("runs");
        let plain = Dynamic8Quantize { block: 256 }.decompose(std::slice::from_ref(&x)).expect("runs");
        let on_device = Dynamic8Quantize { block: 256 }.fallback(&[x], Fallback::Device).expect("runs");
        for (found, expected) in on_device.iter().zip(&plain) {
            assert_eq!(found.shape(), expected.shape());
            assert!(found.eq_exact(expected).expect("evaluates"));
        }
        let [found, expected] =
            [results, plain].map(|results| super::nested(&results[0], &results[1], &results[2], 256).expect("decodes"));
        // The means are summed in another order, so a number may take the neighboring code, 1 in 64 apart at most.
        assert!(relative_error(&found, &expected).expect("floats") < 2e-2);
    }
}

#[test]
fn dequantize_equals_its_decomposition_bit_for_bit() {
    for Case { layout, children } in cases() {
        let argnums = float_inputs(&children, 0);
        check(|| Dequantize { layout, dtype: Dtype::Float32 }, &children, &argnums, 0.0);
        for dtype in [Dtype::Float16, Dtype::Bfloat16] {
            check(|| Dequantize { layout, dtype }, &children, &[], 0.0);
        }
    }
}

#[test]
fn gather_rows_equals_its_decomposition_bit_for_bit() {
    for Case { layout, children } in cases() {
        let inputs = [&[Array::from_slice(&[2u32, 0, 2], &[3])], children.as_slice()].concat();
        let argnums = float_inputs(&children, 1);
        check(|| GatherRows { layout, dtype: Dtype::Float32 }, &inputs, &argnums, 0.0);
        check(|| GatherRows { layout, dtype: Dtype::Bfloat16 }, &inputs, &[], 0.0);
        let tokens = Array::from_slice(&[2u32, 0, 1, 1], &[2, 2]);
        let inputs = [&[tokens], children.as_slice()].concat();
        check(|| GatherRows { layout, dtype: Dtype::Float32 }, &inputs, &argnums, 0.0);
    }
}

/// Each format's matrix as one, as two or three, and as many matrices of a row.
pub(super) fn stacks(layout: Layout) -> impl Iterator<Item = StackLayout> {
    let counts = [1, 2, 3, layout.n].into_iter().filter(move |&count| layout.n.is_multiple_of(count));
    counts.flat_map(move |count| {
        [Orientation::Transposed, Orientation::Plain].map(|orientation| StackLayout {
            rows: layout,
            count,
            orientation,
        })
    })
}

#[test]
fn a_gradient_through_the_quantizer_reaches_only_the_largest_of_each_block() {
    let x = Array::from_slice(&[0.5f32, -2.0, 1.0], &[3]);
    let scheme = Nf4::from(32).scheme();
    let layout = Layout { scheme, n: 1, k: 3, block: 32 };
    let mut gradient = transforms::grad(|x: &Array| {
        let children = super::quantize(scheme, 32, std::slice::from_ref(x))?;
        super::dequantize(layout, &children, Dtype::Float32)?.sum(None)
    });
    let gradient = floats(&gradient(&x).expect("runs")).expect("floats");
    assert_eq!((gradient[0], gradient[2]), (0.0, 0.0));
    assert!(gradient[1] != 0.0);
}

/// The mapped results, moved to the front, and those of one example after the other.
fn mapped<K: Kernel>(kernel: impl Fn() -> K, inputs: &[Array], axis: usize) -> [Array; 2] {
    let axes: Vec<Option<usize>> = (0..inputs.len()).map(|at| (at == 0).then_some(axis)).collect();
    mapped_along(kernel, inputs, &axes)
}

pub(super) fn mapped_along<K: Kernel>(kernel: impl Fn() -> K, inputs: &[Array], axes: &[Option<usize>]) -> [Array; 2] {
    let (mut results, at) = kernel().vmap(inputs, axes).expect("has a rule").expect("maps");
    let mapped = results.remove(0).move_axis(at[0] as i32, 0).expect("in range");
    let examples: Vec<Array> = (0..mapped.dim(0))
        .map(|example| {
            let mut one = inputs.to_vec();
            for (input, axis) in one.iter_mut().zip(axes) {
                if let Some(axis) = *axis {
                    *input = input.take_axis(Array::from_int(example), axis as i32).expect("in range");
                }
            }
            apply(kernel(), &one).expect("fits").remove(0)
        })
        .collect();
    [mapped, ops::stack(&examples, 0).expect("stacks")]
}

/// The inputs of a sum on this base, without and with factors of its rows, and how they are read.
pub(super) fn sums(Case { layout, children }: Case) -> Vec<Summands> {
    let (n, k) = (layout.n as i32, layout.k as i32);
    let (left, right) = (normal(21, &[n, 3]), normal(22, &[3, k]));
    let stored = Summands { layout: Some(layout), base: children, left, right, factors: None };
    let halves = normal(23, &[n, k]).as_dtype(Dtype::Bfloat16).expect("halves");
    let dense = Summands { layout: None, base: vec![halves], ..stored.clone() };
    let scaled = Summands { factors: Some(normal(24, &[n])), ..stored.clone() };
    vec![stored, dense, scaled]
}

#[test]
fn sums_are_quantized_and_measured_as_their_decomposition_has_it() {
    let global = Array::from_f32(40.0);
    for sum in cases().into_iter().flat_map(sums) {
        let (read, inputs) = sum.inputs();
        let with_base = |own: &[&Array]| {
            let own = own.iter().map(|array| (*array).clone());
            inputs.iter().cloned().chain(own).chain(sum.base.clone()).collect::<Vec<_>>()
        };
        for by in [Measure::Norm, Measure::Absmax] {
            check(|| MeasureSum { read, by }, &with_base(&[]), &[], 1e-6);
        }
        let quantized = |format: &dyn Fn() -> (Scheme, usize), relative: bool| {
            let (scheme, block) = format();
            let own: &[&Array] = if relative { &[&global] } else { &[] };
            check(|| QuantizeSum { read, scheme, block, relative }, &with_base(own), &[], 1e-5);
        };
        quantized(&|| (Nf4::from(32).scheme(), 32), false);
        quantized(&|| (Int8 { granularity: Granularity::Block(7) }.scheme(), 7), false);
        let dynamic = Dynamic { bits: 4, block: 7, unsigned: false }.scheme();
        quantized(&|| (dynamic.reaching().expect("a table"), 7), false);
        if read.k.is_multiple_of(32) {
            quantized(&|| (Affine { bits: 3, group: 32 }.scheme(), 32), false);
            quantized(&|| (Mxfp8 { rule: ScaleRule::Ceil }.scheme(), 32), false);
            quantized(&|| (Nvfp4 { global: true }.scheme(), 16), true);
        }
    }
}

#[test]
fn a_block_far_longer_than_the_array_takes_no_more_than_it() {
    let (x, block) = (normal(1, &[100]), 1 << 30);
    assert_eq!(super::encode::blocks(&x, block).expect("pads").shape(), [1, 100]);
    let scheme = E4m3 { block }.scheme();
    check(|| Quantize::new(scheme, block), &[x], &[], 0.0);
}

/// What is lazy, and never evaluated: 2^29 elements, whose bits are more than an axis counts.
#[test]
fn an_array_of_many_codes_has_a_decomposition() {
    let (n, k) = (1 << 17, 1 << 12);
    let zeros = |last: i32, dtype| ops::zeros_dtype(&[n, last], dtype).expect("zeros");
    for bits in [4, 6] {
        let format = Affine { bits, group: 64 };
        let codes = k / 32 * bits as i32;
        let children = [zeros(codes, Dtype::Uint32), zeros(k / 64, Dtype::Float32), zeros(k / 64, Dtype::Float32)];
        let layout = Layout { scheme: format.scheme(), n: n as usize, k: k as usize, block: 64 };
        assert_eq!(layout.decoded(&children).expect("ops").shape(), [n, k]);
        let result = Quantize::new(format.scheme(), 64).decompose(&[zeros(k, Dtype::Float32)]);
        assert_eq!(result.expect("ops")[0].shape(), [n, codes]);
        // On CPUs, too, these are made by ops.
        let array = KQuantArray::quantize(&zeros(k, Dtype::Float32), KQuant { bits }).expect("ops");
        assert_eq!(array.codes().shape(), [(n / 8) * k * bits as i32]);
    }
}

/// Without its label a kernel would have the name of a primitive of MLX.
#[test]
fn a_kernel_has_the_whole_label_of_its_format() {
    let named = |label| Scheme::codebook(label, &[-1.0, 1.0]).kernel("Matmul");
    assert_eq!(["nf4", "ähnlich", "2bit"].map(named), ["Nf4Matmul", "ÄhnlichMatmul", "2bitMatmul"]);
}

//! Quantizing on a CPU that plays a GPU, in every format, against the CPU's kernels, bit for bit.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Kernel, Launch, apply};
use tacit_kernels::{fp4, nearest::Table, nf4};

use super::checks::{Checks, Within, avals};
use super::source::Target;
use super::tests::DTYPES;
use super::{encode_by, quantize};
use crate::format::{Affine, Binary, E4m3, F16, Format, Granularity, Int8, Nf4, Nvfp4, Symmetric, Ternary};
use crate::kernel::encode_by::EncodeBy;
use crate::kernel::quantize::Quantize;
use crate::kernel::tests::{normal, schemes};
use crate::kernel::{Encoding, Scheme};

/// The formats of the CPU's tests, and blocks of every other kind: shorter than a byte has codes, of an odd length, and of
/// several groups' length.
pub(super) fn all_schemes() -> Vec<(Scheme, usize)> {
    let mut all: Vec<(Scheme, usize)> = schemes().into_iter().map(|(scheme, block, _)| (scheme, block)).collect();
    for block in [3, 37, 1000, 4099] {
        let granularity = Granularity::Block(block);
        all.extend(
            [Int8 { granularity }.scheme(), Ternary { granularity }.scheme(), Binary { granularity }.scheme()]
                .map(|scheme| (scheme, block)),
        );
        all.extend([E4m3 { block }.scheme(), THREE_BITS, FEW_BYTES].map(|scheme| (scheme, block)));
    }
    all.push((THREE_BITS.reaching().expect("a table"), 37));
    all.push((Nvfp4 { global: true }.scheme(), 16));
    all.push((Affine { bits: 5, group: 128 }.scheme(), 128));
    all.extend([3, 5, 8].map(|bits| (Symmetric { bits, group: 32 }.scheme(), 32)));
    all
}

const THREE_BITS: Scheme = Scheme::codebook("three", &[0.0, 0.1, 0.3, -0.2, f32::NAN, 0.7, -1.5, f32::INFINITY]);

/// Bytes of which few stand for a number.
const FEW_BYTES: Scheme = Scheme::codebook("few", &FEW);

const FEW: [f32; 256] = {
    let mut values = [f32::NAN; 256];
    (values[3], values[16], values[77], values[254]) = (-1.0, 0.5, 0.0, 2.0);
    values
};

/// What `x` is in this type; 1 where that is not finite.
fn finite(x: f32, dtype: Dtype) -> f32 {
    let x = match dtype {
        Dtype::Float16 => half::f16::from_f32(x).to_f32(),
        Dtype::Bfloat16 => half::bf16::from_f32(x).to_f32(),
        _ => x,
    };
    if x.is_finite() { x } else { 1.0 }
}

/// Where one code ends and the next begins, for a block whose largest magnitude is the first number.
fn edges(scheme: &Scheme) -> Vec<f32> {
    let halves = |top: i32| (0..top).map(|at| at as f32 + 0.5).collect::<Vec<_>>();
    let (top, at) = match scheme.encoding {
        Encoding::Nearest | Encoding::Reaching => {
            let table = scheme.nearest().expect("a table");
            // Scales that reach both ends may be by the lower one.
            let [bottom, top] = table.ends();
            (if scheme.encoding == Encoding::Nearest { top } else { bottom }, table.thresholds().to_vec())
        }
        Encoding::Nf4 => (1.0, nf4::THRESHOLDS.to_vec()),
        Encoding::Fp4 => (1.0, Table::new(&fp4::CODEBOOK).expect("a table").thresholds().to_vec()),
        Encoding::Affine => {
            let top = (1 << scheme.bits()) - 1;
            (top as f32, halves(top))
        }
        Encoding::Symmetric => {
            let top = 1 << (scheme.bits() - 1);
            (top as f32, halves(top))
        }
        Encoding::Int8 => (127.0, halves(127)),
        Encoding::Mxfp4(_) | Encoding::Nvfp4 { global: false } => (6.0, HALFWAY.to_vec()),
        // The scale of such a block is the greatest.
        Encoding::Nvfp4 { global: true } => (6.0, HALFWAY.map(|x| x * 448.0 / (448.0 * 6.0 / GLOBAL)).to_vec()),
        Encoding::Mxfp8(_) => (448.0, (0..60).map(|at| 17.0 / 16.0 * 2_f32.powf(at as f32 * 0.25 - 11.0)).collect()),
        Encoding::Ternary | Encoding::Binary | Encoding::Rounded => {
            (1.0, vec![0.5, 1.0 + 1.0 / 2048.0, 1.0 + 1.0 / 256.0])
        }
    };
    let around = at.iter().flat_map(|x| [*x, x.next_up(), x.next_down()]);
    // Of a range from zero on, so that its step is a factor.
    let is_signed = scheme.encoding != Encoding::Affine;
    std::iter::once(top).chain(around.flat_map(|x| [x, if is_signed { -x } else { 0.0 }])).collect()
}

/// What lies halfway between two magnitudes of E2M1.
const HALFWAY: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

/// What NVFP4's scales are relative to.
const GLOBAL: f32 = 3.7;

/// Whole blocks of every kind that a rule has a case for, and at last some elements of one more.
pub(super) fn numbers(scheme: &Scheme, block: usize, dtype: Dtype) -> Vec<f32> {
    let drawn = |seed: u64, count: i32| normal(seed, &[count]).as_slice::<f32>().to_vec();
    let wide: Vec<f32> = drawn(1, 64).iter().zip(drawn(2, 64)).map(|(x, power)| x * 2_f32.powf(power * 20.0)).collect();
    let tiny = f32::MIN_POSITIVE;
    let mut patterns = vec![
        vec![0.0],
        vec![0.0, -0.0],
        vec![2.5],
        vec![-2.5],
        vec![-1.0, -3.0, -2.0],
        vec![tiny, tiny * 0.5, -tiny * 0.25, f32::from_bits(1), 0.0],
        vec![f32::from_bits(1), -f32::from_bits(3), 0.0],
        vec![tiny * 3.0, -tiny, tiny * 0.75],
        vec![3e38, -3e38, 1e38, -0.0],
        vec![6e4, -1e-7, -3e-5, 2e-8],
        wide,
    ];
    patterns.extend([1.0, 3.0, 7.0, 11.0, 0.7].map(|factor| edges(scheme).iter().map(|x| x * factor).collect()));
    let mut all = Vec::new();
    for pattern in &patterns {
        // The first number, such as a table's greatest, is in each of the blocks.
        let pieces = pattern.len().div_ceil(block.max(2) - 1).min(8);
        for piece in 0..pieces {
            let rest = pattern.iter().cycle().skip(1 + piece * (block - 1)).take(block - 1);
            all.extend(pattern[..1].iter().chain(rest));
        }
    }
    all.extend(drawn(3, 3 * block as i32));
    if !scheme.is_grouped() {
        all.extend(drawn(4, (block as i32 * 5 / 8).max(1)));
    }
    let most = if scheme.half() == Some(Dtype::Float16) { 65504.0 } else { 3.3e38 };
    all.iter().map(|&x| finite(x, dtype)).map(|x| if x.abs() > most { 1.0 } else { x }).collect()
}

fn array(numbers: &[f32], dtype: Dtype) -> Array {
    Array::from_slice(numbers, &[numbers.len() as i32]).as_dtype(dtype).expect("a float type")
}

/// The elements as the CPU's kernels take them.
fn wide(inputs: &[Array]) -> Vec<Array> {
    let mut inputs = inputs.to_vec();
    inputs[0] = inputs[0].as_dtype(Dtype::Float32).expect("floats");
    inputs
}

fn quantizing(checks: &mut Checks, scheme: Scheme, block: usize, x: &[f32], dtype: Dtype) {
    let global = scheme.is_relative().then(|| Array::from_f32(GLOBAL));
    let inputs: Vec<Array> = [array(x, dtype)].into_iter().chain(global).collect();
    let expected = apply(Quantize::new(scheme, block), &wide(&inputs)).expect("quantizes");
    checks.add(quantize(&scheme, block, &avals(&inputs), checks.target()), inputs, expected, Within::Each(0.0));
}

/// By the scales of other elements, which all are in the range of, half of them, or few.
fn coding(checks: &mut Checks, scheme: Scheme, block: usize, x: &[f32], dtype: Dtype) {
    let global = scheme.is_relative().then(|| Array::from_f32(GLOBAL));
    let others: Vec<f32> = normal(7, &[x.len() as i32]).as_slice::<f32>().iter().map(|other| other * 1.5).collect();
    let other: Vec<Array> = [array(&others, Dtype::Float32)].into_iter().chain(global.clone()).collect();
    let results = apply(Quantize::new(scheme, block), &other).expect("quantizes");
    let inputs: Vec<Array> = [array(x, dtype)].into_iter().chain(results[1..].iter().cloned()).chain(global).collect();
    let expected = apply(EncodeBy { scheme, block }, &wide(&inputs)).expect("codes");
    checks.add(encode_by(&scheme, block, &avals(&inputs), checks.target()), inputs, expected, Within::Each(0.0));
}

/// Every launch with its inputs and the dtypes of its results.
pub(super) fn launches(backend: GpuBackend) -> impl Iterator<Item = (Launch, Vec<Aval>, Vec<Dtype>)> {
    all_schemes().into_iter().enumerate().flat_map(move |(turn, (scheme, block))| {
        let shape = if scheme.is_grouped() { vec![4, block as i32] } else { vec![block as i32 * 9 / 4] };
        let x = Aval::new(&shape, DTYPES[turn % 3]);
        let global = scheme.is_relative().then(|| Aval::new(&[], Dtype::Float32));
        let results = scheme.output_avals(&shape, block);
        let dtypes: Vec<Dtype> = results.iter().map(|aval| aval.dtype).collect();
        let given: Vec<Aval> = [std::slice::from_ref(&x), &results[1..], global.as_slice()].concat();
        let inputs: Vec<Aval> = [x].into_iter().chain(global).collect();
        let coded = scheme.is_scaled().then(|| {
            let parts = encode_by(&scheme, block, &given, backend.into()).expect("has a source");
            (parts.launch(), given, dtypes[..1].to_vec())
        });
        let parts = quantize(&scheme, block, &inputs, backend.into()).expect("has a source");
        coded.into_iter().chain([(parts.launch(), inputs, dtypes)])
    })
}

#[test]
fn codes_scales_and_biases_are_those_of_the_kernels_of_a_cpu() {
    let mut checks = Checks::new("encode");
    for (turn, (scheme, block)) in all_schemes().into_iter().enumerate() {
        for (at, dtype) in DTYPES.into_iter().enumerate() {
            let x = numbers(&scheme, block, dtype);
            quantizing(&mut checks, scheme, block, &x, dtype);
            if at == turn % 3 && scheme.is_scaled() {
                coding(&mut checks, scheme, block, &x, dtype);
            }
            if at == 0 && !scheme.is_grouped() {
                for size in [1, 2, 7, 8, 9, block + 1] {
                    quantizing(&mut checks, scheme, block, &x[x.len() - size.min(x.len())..], dtype);
                }
            }
        }
    }
    checks.finish();
}

#[test]
fn what_a_cpu_refuses_is_coded_as_by_the_decomposition() {
    let mut checks = Checks::new("encode_not_finite");
    for (scheme, block) in all_schemes().into_iter().filter(|(_, block)| *block <= 64) {
        let global = scheme.is_relative().then(|| Array::from_f32(GLOBAL));
        let mut x = normal(5, &[8 * 64 * 3]).as_slice::<f32>()[..8 * block].to_vec();
        (x[block / 2], x[2 * block], x[3 * block + 1], x[6 * block - 1]) =
            (f32::NAN, f32::INFINITY, -f32::INFINITY, f32::NAN);
        x[5 * block] = f32::INFINITY;
        let inputs: Vec<Array> = [array(&x, Dtype::Float32)].into_iter().chain(global).collect();
        let mut expected = Quantize::new(scheme, block).decompose(&inputs).expect("quantizes");
        // Plain ops sum magnitudes in another order.
        let tolerance = if matches!(scheme.encoding, Encoding::Ternary | Encoding::Binary) { 1e-6 } else { 0.0 };
        // By its value, since NaN has several codes.
        if let Some(half) = scheme.half() {
            expected[0] = expected[0].view_dtype(half).expect("as wide");
        }
        checks.add(
            quantize(&scheme, block, &avals(&inputs), checks.target()),
            inputs,
            expected,
            Within::Each(tolerance),
        );
    }
    checks.finish();
}

#[test]
fn what_no_group_takes_has_no_source() {
    let source = |scheme: &Scheme, block, shape: &[i32]| {
        let x = Aval::new(shape, Dtype::Float32);
        quantize(scheme, block, &[x], Target::Host).map(|parts| parts.groups[0])
    };
    let granularity = Granularity::Row;
    let [int8, ternary] = [Int8 { granularity }.scheme(), Ternary { granularity }.scheme()];
    assert_eq!(source(&int8, 1 << 20, &[4, 1 << 20]), Some(4));
    assert_eq!(source(&int8, (1 << 20) + 1, &[2, 1 << 20]), None);
    assert_eq!(source(&int8, usize::MAX, &[3, 5]), Some(1));
    assert_eq!(source(&ternary, 1 << 14, &[1 << 15]), Some(2));
    assert_eq!(source(&ternary, 1 << 15, &[1 << 15]), None);
    assert_eq!(source(&Nf4::from(64).scheme(), 64, &[0, 64]), None);
    assert_eq!(source(&Affine { bits: 4, group: 64 }.scheme(), 64, &[2, 96]), None);
    assert_eq!(source(&F16.scheme(), 1, &[4097]), Some(3));
}

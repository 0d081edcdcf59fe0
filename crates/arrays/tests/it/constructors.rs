//! What constructors take, refuse, and give again.

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{
    Affine, Bf16, Binary, Dynamic, E4m3, E5m2, F16, Format, Fp4, Granularity, Int8, Mxfp4, Mxfp8, Nf4, Nvfp4,
    PackedArray, Parts, Symmetric, Ternary,
};
use tacit_arrays::{
    AffineArray, BinaryArray, Dynamic8Array, Fp4Array, Int8Array, Mxfp4Array, Mxfp8Array, Nf4Array, Nvfp4Array,
    ScaleRule, TernaryArray,
};
use tacit_core::store;
use tacit_core::{Aval, Error, ImplicitArray, Value};

use crate::messages::{check, said_of};
use crate::operands::{FLOATS, FORMATS, dense, every, normal, oracle};

const F32: Dtype = Dtype::Float32;

fn same(a: &Array, b: &Array) -> bool {
    a.shape() == b.shape() && a.dtype() == b.dtype() && a.eq_exact(b).expect("evaluates")
}

fn children(array: &dyn ImplicitArray) -> Vec<Value> {
    array.children().into_iter().map(|(_, child)| child).collect()
}

#[test]
fn an_array_that_is_not_contiguous_is_quantized_as_it_reads() {
    let x = normal(1, &[64, 128]);
    let views = [
        x.t(),
        x.try_index((..32, 64..)).expect("in range"),
        ops::broadcast_to(normal(2, &[64]), &[3, 64]).expect("fits"),
    ];
    for view in views {
        let copied = view.add(Array::from_f32(0.0)).expect("adds");
        for format in FORMATS {
            let [viewed, copied] = [&view, &copied].map(|x| dense(&(format.of)(x).expect("quantizes")));
            assert!(same(&viewed, &copied), "{}", format.name);
        }
    }
}

#[test]
fn half_types_are_quantized_as_their_f32_values() {
    for dtype in FLOATS {
        let x = normal(1, &[4, 64]).as_dtype(dtype).expect("a float type");
        let wide = x.as_dtype(F32).expect("f32");
        for format in FORMATS.iter().filter(|format| format.name != "affine") {
            let [half, wide] = [&x, &wide].map(|x| dense(&(format.of)(x).expect("quantizes")));
            assert!(same(&half, &wide.as_dtype(dtype).expect("rounds")), "{}", format.name);
        }
    }
}

/// The array made of its parts, if it is of the format `F`.
fn again<F: Format>(value: &Value) -> Option<Value> {
    let own = value.downcast::<PackedArray<F>>()?;
    let parts = Parts {
        biases: own.biases().cloned(),
        global_scale: own.global_scale().cloned(),
        scales: own.scales().cloned(),
        ..Parts::unscaled(own.codes().clone())
    };
    let made = PackedArray::<F>::from_parts(parts, own.format().clone(), value.aval().expect("an aval"));
    Some(made.expect("fits").into())
}

#[test]
fn the_parts_of_an_array_are_the_array() {
    let x = normal(1, &[6, 64]);
    for value in every(F32, 1, &[6, 64]) {
        let rebuilt = [
            again::<Nf4>,
            again::<Fp4>,
            again::<Int8>,
            again::<Ternary>,
            again::<Binary>,
            again::<Dynamic>,
            again::<E4m3>,
            again::<E5m2>,
            again::<F16>,
            again::<Bf16>,
            again::<Affine>,
            again::<Symmetric>,
            again::<Mxfp4>,
            again::<Mxfp8>,
            again::<Nvfp4>,
        ];
        let again = rebuilt.iter().find_map(|again| again(&value)).expect("it is one of them");
        assert!(same(&dense(&again), &dense(&value)), "{value}");
    }
    let absmax = x.reshape(&[-1]).expect("flat");
    let nested = Dynamic8Array::quantize(&absmax, 256).expect("quantizes");
    let [codes, scales, offset] = nested.parts();
    let again = Dynamic8Array::from_parts(codes, scales, offset, 256).expect("fits");
    assert!(same(&dense(&again.into()), &dense(&nested.into())));
}

#[test]
fn a_stored_array_is_the_array() {
    let columns = Int8Array::quantize(&normal(1, &[6, 64]), Granularity::Column).expect("quantizes");
    let columns = columns.with_int8_activations().expect("are integers");
    let scalar = Nf4Array::quantize(&normal(1, &[]), 64).expect("quantizes");
    for value in every(Dtype::Bfloat16, 1, &[6, 64]).into_iter().chain([columns.into(), scalar.into()]) {
        let Value::Implicit(array) = &value else { panic!("it is packed") };
        let (json, arrays) = store::collect(|| serde_json::to_string(array).expect("is stored"));
        let read: Box<dyn ImplicitArray> = store::provide(arrays, || serde_json::from_str(&json).expect("is read"));
        assert!(read.aux_eq(&**array) && read.nbytes() == array.nbytes(), "{json}");
        assert!(same(&dense(&read.into()), &dense(&value)), "{json}");
    }
}

#[test]
fn a_scale_for_each_column_is_a_view_of_one_for_each_row() {
    let x = normal(1, &[40, 96]);
    let w = Value::from(Int8Array::quantize(&x, Granularity::Column).expect("quantizes"));
    let rows = Value::from(Int8Array::quantize(&x.t(), Granularity::Row).expect("quantizes"));
    assert!(same(&dense(&w), &dense(&rows).t()));
    let operands = |columns| [Value::from(normal(2, &[3, columns])), w.clone()];
    oracle(F32).check("x W", &operands(40), |arrays| Ok(vec![arrays[0].matmul(&arrays[1])?]));
    oracle(F32).check("x W^T", &operands(96), |arrays| Ok(vec![arrays[0].matmul(arrays[1].t())?]));
    oracle(F32).check("W[:, a..b]", &[w], |arrays| Ok(vec![arrays[0].try_index((.., 32..64))?]));
}

#[test]
fn how_far_a_format_is_from_the_array() {
    let x = normal(1, &[64, 128]);
    // Mean magnitudes of the difference on N(0, 1), of each entry of the table of formats.
    let bounds = [
        0.075, 0.08, 0.1, 0.105, 0.08, 0.17, 0.08, 0.005, 0.01, 0.01, 0.12, 0.03, 0.1, 0.1, 0.4, 2e-4, 2e-3, 0.03,
        0.05, 0.01, 0.11, 0.5,
    ];
    for (format, bound) in FORMATS.iter().zip::<[f32; FORMATS.len()]>(bounds) {
        let change = dense(&(format.of)(&x).expect("quantizes")).subtract(&x).expect("subtracts");
        let mean = change.abs().and_then(|change| change.mean(None)).expect("a mean").item_exact::<f32>();
        assert!(mean < bound && mean > bound / 4.0, "{}: {mean}", format.name);
    }
}

#[test]
fn double_quantization_keeps_the_codes() {
    let x = normal(1, &[256, 128]);
    let single = Nf4Array::quantize(&x, 64).expect("quantizes");
    let double = Nf4Array::quantize(&x, Nf4 { block: 64, double: true }).expect("quantizes");
    assert!(same(single.codes(), double.codes()));
    let exact = single.scales().expect("scales").as_dense().expect("dense");
    let change = dense(double.scales().expect("scales"))
        .divide(exact)
        .and_then(|r| r.subtract(Array::from_f32(1.0))?.abs()?.max(None));
    // 8 bits of the distance from the mean.
    assert!(change.expect("a number").item_exact::<f32>() < 0.01);
    assert!(Value::from(double).nbytes() < Value::from(single).nbytes());
}

#[test]
fn arrays_that_no_format_takes() {
    let zeros = |shape: &[i32]| ops::zeros::<f32>(shape).expect("zeros");
    for format in FORMATS {
        let message = |x: &Array| (format.of)(x).expect_err("is refused").to_string();
        let label = format.name;
        let integers = Array::from_slice(&[1i32, 2], &[2]);
        assert_eq!(message(&integers), format!("i32[2] cannot be {label}\nhelp: quantize an f32, f16 or bf16 array"));
        let empty = "f32[0,32] has no elements to quantize\nhelp: keep an empty array dense";
        assert_eq!(message(&zeros(&[0, 32])), empty);
        let large = "f32[65536,65536] has more elements than MLX counts along one axis\n\
                     help: split the array and quantize the parts";
        assert_eq!(message(&zeros(&[65536, 65536])), large);
    }
    let said = [
        said_of(Int8Array::quantize(&zeros(&[64]), Granularity::Column)),
        said_of(Int8Array::quantize(&zeros(&[64]), 0)),
        said_of(Fp4Array::quantize(&zeros(&[64]), 48)),
        said_of(Mxfp4Array::quantize(&zeros(&[2, 48]), ScaleRule::Ceil)),
        said_of(Nvfp4Array::quantize(&zeros(&[2, 24]), Nvfp4::default())),
        said_of(Nvfp4Array::quantize_relative(&zeros(&[2, 32]), &zeros(&[1]))),
        said_of(Dynamic8Array::quantize(&zeros(&[2, 32]), 256)),
    ];
    expect![[r#"
        f32[64] is not a matrix, which alone has columns
        help: quantize rows or blocks
        the int8 block size 0 is not a number of elements
        help: give the number of elements that share a scale
        the fp4 block size 48 is not a power of two from 32 to 4096
        help: use 64, the usual choice
        the last axis of f32[2,48] is not whole groups of 32, as mxfp4 has them
        help: use a smaller group size, or an array type whose blocks may straddle rows
        the last axis of f32[2,24] is not whole groups of 16, as nvfp4 has them
        help: use a smaller group size, or an array type whose blocks may straddle rows
        the global scale is f32[1], where nvfp4 of f32[2,32] has f32[]
        help: take the parts of one array, with its shape and block size
        f32[2,32] cannot be dynamic8
        help: quantize a vector of f32
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn a_number_that_no_code_can_hold_is_an_error_of_the_eval() {
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut numbers = vec![1.0f32; 64];
        numbers[37] = special;
        let x = Array::from_slice(&numbers, &[1, 64]);
        // Half floats have codes for all of them.
        for format in FORMATS.iter().filter(|format| !format.name.ends_with("f16")) {
            let value = (format.of)(&x).expect("is lazy");
            let Value::Implicit(array) = &value else { panic!("it is packed") };
            let error = children(&**array)[0].as_dense().expect("codes").eval().expect_err("is refused");
            let message = Error::from(error).to_string();
            assert!(
                message.ends_with(&format!(
                    "Quantize failed: element 37 is {special}, which no code can hold\n\
                 help: replace NaN and infinities before quantizing"
                )),
                "{message}"
            );
        }
    }
}

#[test]
fn a_global_scale_that_is_none_is_an_error_of_the_eval() {
    let array = Nvfp4Array::quantize_relative(&normal(1, &[2, 32]), &Array::from_f32(-1.0)).expect("is lazy");
    check(
        array.codes().eval().map_err(Error::from),
        expect![[r#"
        kernel Nvfp4Quantize failed: the global scale is -1
        help: give the largest magnitude of the tensor, or `None` if that is zero"#]],
    );
}

#[test]
fn parts_that_a_format_has_not() {
    let zeros = |shape: &[i32], dtype| ops::zeros_dtype(shape, dtype).expect("zeros");
    let (codes, scales) = (zeros(&[4, 8], Dtype::Uint32), zeros(&[4, 2], F32));
    let bytes = zeros(&[4, 4], Dtype::Uint8);
    let aval = || Aval::new(&[4, 64], F32);
    let affine = Affine { bits: 4, group: 32 };
    check(
        AffineArray::from_parts(Parts::new(codes.clone(), &scales), affine, aval()),
        expect![[r#"
        affine:4:32 has biases, and none are given
        help: give one for each block"#]],
    );
    let biased = Parts { biases: Some(bytes.clone()), ..Parts::new(codes.clone(), &bytes) };
    check(
        Nvfp4Array::from_parts(biased, Nvfp4::default(), aval()),
        expect![[r#"
        nvfp4 has no biases
        help: leave them out"#]],
    );
    let global = Parts { global_scale: Some(zeros(&[], F32)), ..Parts::new(codes.clone(), &bytes) };
    assert!(Nvfp4Array::from_parts(global.clone(), Nvfp4::default(), aval()).is_ok());
    let global = Parts { biases: Some(scales.clone()), ..Parts { scales: Some(scales.into()), ..global } };
    check(
        AffineArray::from_parts(global, affine, aval()),
        expect![[r#"
        affine:4:32 has no global_scale
        help: leave them out"#]],
    );
    let nested = || Dynamic8Array::quantize(&zeros(&[4], F32), 256).expect("quantizes");
    let codes = zeros(&[128], Dtype::Uint8);
    check(
        Nf4Array::from_parts(Parts::new(codes.clone(), nested()), 64, aval()),
        expect![[r#"
        nf4:64 has scales that are floats, and was given scales that are quantized in blocks of 256
        help: name the format of the scales that there are"#]],
    );
    let double = Nf4 { block: 64, double: true };
    assert!(Nf4Array::from_parts(Parts::new(codes.clone(), nested()), double, aval()).is_ok());
    check(
        Nf4Array::from_parts(Parts::new(codes, zeros(&[4], F32)), double, aval()),
        expect![[r#"
        nf4:64:double has scales that are quantized in blocks of 256, and was given scales that are floats
        help: name the format of the scales that there are"#]],
    );
}

#[test]
fn parts_that_do_not_belong_together() {
    let zeros = |shape: &[i32], dtype| ops::zeros_dtype(shape, dtype).expect("zeros");
    let (u8, i8, u32) = (Dtype::Uint8, Dtype::Int8, Dtype::Uint32);
    let aval = || Aval::new(&[4, 64], F32);
    let said = [
        said_of(Fp4Array::from_parts(Parts::new(zeros(&[127], u8), zeros(&[4], F32)), 64, aval())),
        said_of(Int8Array::from_parts(Parts::new(zeros(&[256], i8), zeros(&[4], F32)), 64, aval())),
        said_of(TernaryArray::from_parts(Parts::new(zeros(&[64], u8), zeros(&[4, 1], F32)), 64, aval())),
        said_of(BinaryArray::from_parts(Parts::new(zeros(&[32], u8), zeros(&[4], u8)), 64, aval())),
        said_of(Mxfp4Array::from_parts(
            Parts::new(zeros(&[4, 8], u32), zeros(&[4, 1], u8)),
            Mxfp4::default(),
            Aval::new(&[4, 64], F32),
        )),
        said_of(Mxfp4Array::from_parts(
            Parts::new(zeros(&[4, 2], u32), zeros(&[4, 1], u8)),
            Mxfp4::default(),
            Aval::new(&[4, 16], F32),
        )),
        said_of(Mxfp8Array::from_parts(
            Parts::new(zeros(&[4, 16], u32), zeros(&[4, 2], F32)),
            Mxfp8::default(),
            Aval::new(&[4, 64], F32),
        )),
        said_of(Nvfp4Array::from_parts(
            Parts::new(zeros(&[4, 8], u32), zeros(&[4, 2], u8)),
            Nvfp4::default(),
            Aval::new(&[4, 64], F32),
        )),
        said_of(Nvfp4Array::from_parts(
            Parts::new(zeros(&[4, 8], u32), zeros(&[4, 4], u8)),
            Nvfp4::default(),
            Aval::new(&[4, 64], u8),
        )),
    ];
    expect![[r#"
        codes is u8[127], where fp4:64 of f32[4,64] has u8[128]
        help: take the parts of one array, with its shape and block size
        codes is i8[256], where int8:64 of f32[4,64] has i8[4,64]
        help: take the parts of one array, with its shape and block size
        scales is f32[4,1], where ternary:64 of f32[4,64] has f32[4]
        help: take the parts of one array, with its shape and block size
        scales is u8[4], where binary:64 of f32[4,64] has f32[4]
        help: take the parts of one array, with its shape and block size
        scales is u8[4,1], where mxfp4 of f32[4,64] has u8[4,2]
        help: take the parts of one array, with its shape and block size
        the last axis of f32[4,16] is not whole groups of 32, as mxfp4 has them
        help: use a smaller group size, or an array type whose blocks may straddle rows
        scales is f32[4,2], where mxfp8 of f32[4,64] has u8[4,2]
        help: take the parts of one array, with its shape and block size
        scales is u8[4,2], where nvfp4 of f32[4,64] has u8[4,4]
        help: take the parts of one array, with its shape and block size
        u8[4,64] cannot be nvfp4
        help: quantize an f32, f16 or bf16 array
    "#]]
    .assert_eq(&said.concat());
    let parts = |codes: &[i32], absmax: &[i32], offset: &[i32]| {
        let (codes, absmax, offset) = (zeros(codes, u8), zeros(absmax, F32), zeros(offset, F32));
        Dynamic8Array::from_parts(codes, absmax, offset, 256)
    };
    check(
        parts(&[300], &[1], &[]),
        expect![[r#"
        absmax is f32[1], where dynamic8 of f32[300] has f32[2]
        help: take the parts of one array, with its shape and block size"#]],
    );
    check(
        parts(&[300], &[2], &[1]),
        expect![[r#"
        offset is f32[1], where dynamic8 of f32[300] has f32[]
        help: take the parts of one array, with its shape and block size"#]],
    );
}

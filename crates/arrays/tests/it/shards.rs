//! Parts of stored arrays: which there are, in which blocks, and what is said where there are none.

use expect_test::{Expect, expect};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use tacit_arrays::format::{self, Affine, AnyFormat, KQuant, Nf4};
use tacit_arrays::{
    AffineArray, AsStored, Dora, Dynamic8Array, Identity, KQuantArray, Lora, Nf4Array, Prepared, QaLora, Rotated,
    Sparse24, cut, shard,
};
use tacit_core::{Policy, Value, implicit};

use crate::operands::{every, normal, oracle};

/// A matrix in the format of a text.
fn stored(text: &str, shape: &[i32]) -> Value {
    format::parse(text).and_then(|format| format.quantize(&normal(3, shape))).expect("quantizes")
}

/// The part `index` of `count` along the columns, none of which is built.
fn columns(whole: &Value, index: usize, count: usize) -> Value {
    let _deny = Policy::Deny.scope();
    shard(whole, -1, index, count).expect("is divided")
}

fn bits(value: &Value) -> Vec<u32> {
    let _allow = Policy::Allow.scope();
    let dense = value.dense().and_then(|dense| Ok(dense.contiguous()?)).expect("materializes");
    dense.as_slice::<f32>().iter().map(|x| x.to_bits()).collect()
}

/// A slice in a trace is such a part, but where that would take more than the floats: one scale for each element.
#[test]
fn a_slice_inside_blocks_is_a_part_where_that_is_smaller() {
    let slice = |text: &str, from: i32| {
        let whole = stored(text, &[6, 192]);
        let sliced = implicit(&whole, |w| w.try_index((.., from..from + 64)))?;
        let part = cut(&whole, 1, from..from + 64)?;
        assert_eq!(bits(&sliced), bits(&part), "{text} from {from}");
        Ok::<_, tacit_core::Error>(sliced.to_string())
    };
    let _deny = Policy::Deny.scope();
    assert_eq!(slice("nf4:64", 32).expect("blocks of 32"), "Nf4(f32[6,64])");
    assert_eq!(slice("int8:64", 16).expect("blocks of 16"), "Int8(f32[6,64])");
    let error = slice("int8:64", 1).expect_err("blocks of one").to_string();
    assert!(error.contains("declined: cut_slice: the part takes more bytes than its elements"), "{error}");
}

#[test]
fn a_block_that_is_cut_becomes_smaller_ones_with_its_scale() {
    for (whole, part, count) in [
        ("nf4:64", "nf4:32", 2),
        ("nf4:128", "nf4:64", 3),
        ("fp4:4096", "fp4:64", 3),
        ("nf4:64:double", "nf4:32:double", 2),
        ("nf4:64:double", "nf4:64:double", 3),
        ("affine:4:64", "affine:4:32", 2),
        ("affine:3:64", "affine:3:32", 2),
        ("affine:8:64", "affine:8:64", 3),
        ("int8", "int8:48", 4),
        ("ternary", "ternary:64", 3),
        ("binary:96", "binary:48", 4),
        ("e4m3:64", "e4m3:16", 4),
        ("e5m2:64", "e5m2:16", 4),
        ("codebook:64:-1,-0.5,0.5,1", "codebook:32:-1,-0.5,0.5,1", 2),
        ("f16", "f16", 4),
    ] {
        let whole = stored(whole, &[6, 192]);
        let part: AnyFormat = part.parse().expect("a format");
        let width = 192 / count as i32;
        for index in 0..count {
            let made = columns(&whole, index, count);
            assert!(part.stores(&made), "part {index} of {whole} is not in {part}");
            let from = index as i32 * width;
            let dense = {
                let _allow = Policy::Allow.scope();
                whole.dense().expect("materializes")
            };
            assert_eq!(bits(&made), bits(&cut(&dense.into(), 1, from..from + width).expect("is sliced")), "{part}");
        }
    }
}

#[test]
fn parts_have_equal_static_fields() {
    for whole in every(Dtype::Float32, 1, &[6, 192]) {
        for count in [2, 3] {
            let parts: Vec<Value> = (0..count).map(|index| columns(&whole, index, count)).collect();
            let structures: Vec<String> = parts.iter().map(|part| format!("{:?}", aux(part))).collect();
            assert!(structures.windows(2).all(|pair| pair[0] == pair[1]), "{structures:?}");
        }
    }
}

fn aux(value: &Value) -> Vec<(&'static str, String)> {
    let Value::Implicit(array) = value else { return Vec::new() };
    array.aux()
}

#[test]
fn products_of_parts_are_those_of_the_whole() {
    for (whole, text) in every(Dtype::Float32, 2, &[12, 192]).into_iter().zip(0..) {
        for (axis, view) in [(0, false), (1, false), (0, true), (1, true)] {
            let whole = if view {
                implicit(&whole, |w| Ok::<_, tacit_core::Error>(w.t())).expect("a view")
            } else {
                whole.clone()
            };
            let extents = whole.aval().expect("an aval").shape;
            let part = shard(&whole, axis, 1, 3).expect("is divided");
            let inputs = part.aval().expect("an aval").shape[1];
            oracle(Dtype::Float32).check("x part^T", &[normal(4, &[3, inputs]).into(), part], |arrays| {
                Ok(vec![arrays[0].matmul(arrays[1].t())?])
            });
            assert_eq!(extents.len(), 2, "case {text}");
        }
    }
}

#[test]
fn the_gradient_of_a_part_goes_to_the_elements_of_the_whole() {
    let gradient = |w: &Array| {
        let part = shard(&w.into(), 1, 1, 2)?;
        part.dense()?.sum(None)
    };
    let found = mlx_rs::transforms::grad(gradient)(&normal(1, &[1, 4])).expect("differentiates");
    assert_eq!(found.as_slice::<f32>(), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn scales_that_are_trained_are_cut_with_the_master() {
    let master = normal(5, &[4, 128]);
    let whole = Prepared::new(&master, Affine { bits: 4, group: 64 }).and_then(Prepared::with_trained_scales);
    let whole = Value::from(whole.expect("is prepared"));
    let part = shard(&whole, 1, 1, 2).expect("is divided");
    let found = part.downcast::<Prepared>().expect("is prepared");
    assert_eq!(found.scales().map(Array::shape), Some(&[4, 1][..]));
    let dense = {
        let _allow = Policy::Allow.scope();
        whole.dense().expect("materializes")
    };
    assert_eq!(bits(&part), bits(&cut(&dense.into(), 1, 64..128).expect("is sliced")));
}

#[test]
fn a_vector_of_8_bit_floats() {
    let x = normal(6, &[500]);
    let whole = Value::from(Dynamic8Array::quantize(&x, 64).expect("quantizes"));
    let dense = {
        let _allow = Policy::Allow.scope();
        whole.dense().expect("materializes")
    };
    for range in [0..64, 64..500, 8..72, 1..3, 499..500] {
        let part = cut(&whole, 0, range.clone()).expect("is cut");
        assert_eq!(bits(&part), bits(&cut(&(&dense).into(), 0, range).expect("is sliced")));
    }
}

fn prepared(text: &str) -> Value {
    let format: AnyFormat = text.parse().expect("a format");
    Prepared::new(&normal(1, &[4, 128]), format).expect("is prepared").into()
}

#[test]
fn what_is_not_cut_says_how_it_would_be() {
    let double =
        Value::from(Nf4Array::quantize(&normal(1, &[3, 40]), Nf4 { block: 32, double: true }).expect("quantizes"));
    let k = Value::from(KQuantArray::quantize(&normal(1, &[4, 512]), KQuant { bits: 4 }).expect("quantizes"));
    let cases: [(&str, tacit_core::Result<Value>, Expect); 9] = [
        (
            "parts",
            shard(&stored("nf4:64", &[8, 192]), 1, 0, 4),
            expect![[r#"
            Nf4(f32[8,192]) in blocks of 64 is not cut from 0 to 48 along axis 1
            help: divide it into 2, 3 or 6 parts, or keep it whole in each process"#]],
        ),
        (
            "uneven",
            shard(&stored("nf4:64", &[8, 192]), 1, 0, 5),
            expect![[r#"
            Nf4(f32[8,192]) is not divided into 5 equal parts along axis 1
            help: divide it into 2, 3 or 6 parts, or keep it whole in each process"#]],
        ),
        (
            "none",
            shard(&stored("mxfp4", &[7, 32]), 1, 0, 2),
            expect![[r#"
            Mxfp4(f32[7,32]) in blocks of 32 is not cut from 0 to 16 along axis 1
            help: cut it at multiples of 32, where codes and scales come apart"#]],
        ),
        (
            "no part",
            shard(&stored("nf4:64", &[8, 192]), 1, 2, 2),
            expect![[r#"
            there is no part 2 of 2
            help: number the parts from 0, as the ranks of a group"#]],
        ),
        (
            "axis",
            shard(&stored("nf4:64", &[8, 192]), 2, 0, 2),
            expect![[r#"
            f32[8,192] has no axis 2 to be cut along
            help: it has 2 axes, counted from zero, or from -1 backwards"#]],
        ),
        (
            "range",
            cut(&stored("nf4:64", &[8, 192]), 1, 16..48),
            expect![[r#"
            Nf4(f32[8,192]) in blocks of 64 is not cut from 16 to 48 along axis 1
            help: cut it at multiples of 32, where codes and scales come apart"#]],
        ),
        (
            "straddling",
            cut(&double, 1, 0..20),
            expect![[r#"
            Nf4(f32[3,40]) in blocks of 32 is not cut from 0 to 20 along axis 1
            help: its blocks reach over the ends of that axis: cut it along another one"#]],
        ),
        (
            "super-block",
            cut(&k, 1, 0..128),
            expect![[r#"
            KQuant(f32[4,512]) in blocks of 32 is not cut from 0 to 128 along axis 1
            help: cut it at multiples of 256, where codes and scales come apart"#]],
        ),
        (
            "empty",
            cut(&k, 1, 4..4),
            expect![[r#"
            KQuant(f32[4,512]) has no part from 4 to 4 along axis 1
            help: give a range that is not empty, from 0 to at most 512"#]],
        ),
    ];
    say(cases);
}

/// Each is an error with its text.
fn say<const N: usize>(cases: [(&str, tacit_core::Result<Value>, Expect); N]) {
    for (what, made, expected) in cases {
        let error = made.err().unwrap_or_else(|| panic!("{what} is cut"));
        expected.assert_eq(&error.to_string());
    }
}

#[test]
fn what_has_no_part_of_its_kind_says_so() {
    let lora = Lora::new(normal(1, &[6, 8]), normal(2, &[2, 8]), normal(3, &[6, 2]), 1.0).expect("a Lora");
    let lora = lora.with_dropout(0.5, mlx_rs::random::key(1).expect("a key")).expect("a Lora");
    let dora = Dora::new(normal(1, &[6, 8]), normal(2, &[2, 8]), normal(3, &[6, 2]), 1.0).expect("a Dora");
    let cases: [(&str, tacit_core::Result<Value>, Expect); 4] = [
        (
            "dropout",
            cut(&lora.into(), 1, 0..4),
            expect![[r#"
            a Lora of f32[6,8] that drops inputs is not cut along them
            help: cut it along its outputs, or train without dropout"#]],
        ),
        (
            "lengths",
            cut(&dora.into(), 1, 0..4),
            expect![[r#"
            a Dora of f32[6,8] is not cut along its inputs: the length of a row is that of all of it
            help: cut it along its outputs, or merge it first"#]],
        ),
        (
            "prepared",
            shard(&prepared("int8"), 1, 0, 2),
            expect![[r#"
            int8 makes other scales of f32[4,128] than of its part from 0 to 64 along axis 1
            help: cut it between its blocks, cut what it is converted to, or prepare each part"#]],
        ),
        (
            "identity",
            shard(&Identity::new(4, Dtype::Float32).expect("a matrix").into(), 0, 0, 2),
            expect![[r#"
            Identity(f32[4,4]) is not cut into parts
            help: keep it whole in each process, materialize it first, or let its type join the family `Cut`"#]],
        ),
    ];
    say(cases);
}

#[test]
fn what_is_cut_elsewhere_says_where() {
    let rotated = Rotated::new(normal(1, &[4, 64]), -1).expect("rotates");
    let sparse = Sparse24::prune(&normal(1, &[4, 32])).expect("prunes");
    let adapted = QaLora::new(stored("affine:4:64", &[8, 128]), normal(2, &[2, 2]), normal(3, &[8, 2]), 1.0);
    say([
        (
            "a rotation",
            cut(&rotated.into(), 1, 0..32),
            expect![[r#"
            f32[4,64] is rotated along axis 1, which cannot be cut
            help: cut it along another axis"#]],
        ),
        (
            "a byte of places",
            cut(&sparse.into(), 1, 0..4),
            expect![[r#"
            a Sparse24 of f32[4,32] is not cut from 0 to 4
            help: cut it at multiples of 8, where the bytes of its places end"#]],
        ),
        (
            "a group of inputs",
            cut(&adapted.expect("adapts").into(), 1, 0..32),
            expect![[r#"
            a QaLora of f32[8,128] in groups of 64 is not cut inside a group
            help: cut it along its inputs at multiples of 64"#]],
        ),
    ]);
}

#[test]
fn structures_are_cut_where_their_parts_stand_for_themselves() {
    let lora = Lora::new(normal(1, &[6, 8]), normal(2, &[2, 8]), normal(3, &[6, 2]), 1.0).expect("a Lora");
    let part = cut(&lora.into(), 1, 0..4).expect("is cut");
    let found = part.downcast::<Lora>().expect("a Lora");
    assert_eq!([found.a().shape(), found.b().shape()], [&[2, 4], &[6, 2]]);
    assert!(shard(&prepared("nf4:64:double"), 0, 0, 2).is_err(), "its scales have an offset in common");
    assert!(shard(&prepared("nvfp4:global"), 0, 0, 2).is_err(), "its scales have a factor in common");
    assert!(shard(&prepared("nf4:64"), 1, 0, 2).is_ok());
    let rotated = Rotated::new(stored("nf4:32", &[4, 64]), 1).expect("is rotated");
    assert!(cut(&rotated.clone().into(), 0, 0..2).is_ok() && cut(&rotated.into(), 1, 0..32).is_err());
    let affine = AffineArray::quantize(&normal(1, &[4, 64]), Affine { bits: 4, group: 32 }).expect("quantizes");
    assert!(cut(&affine.into(), 1, 8..32).is_err(), "MLX has no groups of 8");
}

/// What is quantized in each pass is either refused or quantized as the same part of the whole, whatever the ends are: of every
/// format, and whether blocks or super-blocks end there or not.
#[test]
fn parts_of_what_is_quantized_anew_are_those_of_the_whole() {
    let _allow = Policy::Allow.scope();
    let formats = [
        "nf4:64",
        "nf4:32",
        "nf4:64:double",
        "fp4:64",
        "affine:4:32",
        "int8",
        "int8:48",
        "int8:columns",
        "mxfp4",
        "nvfp4",
        "nvfp4:global",
        "ternary:96",
        "binary:64",
        "e4m3:32",
        "e5m2:32",
        "codebook:64:-1,-0.5,0.5,1",
        "k:2",
        "k:4",
        "k:6",
        "f16",
        "rotated:nf4:32",
    ];
    let (mut cut_ones, mut refused) = (0, 0);
    for text in formats {
        let format: AnyFormat = text.parse().expect("a format");
        for shape in [[5, 64], [9, 40], [3, 512], [8, 32], [1, 320], [320, 1]] {
            let x = normal(1, &shape);
            let Ok(prepared) = Prepared::new(&x, &format) else { continue };
            // With a factor of zero the sum is the base to the last bit.
            let zeros = mlx_rs::ops::zeros::<f32>(&[shape[0], 1]).expect("zeros");
            let sum = Lora::new(x, normal(2, &[1, shape[1]]), zeros, 1.0).expect("a Lora");
            let as_stored = AsStored::new(sum, format.clone()).expect("an adapter");
            for whole in [Value::from(prepared), as_stored.into()] {
                let dense = whole.dense().expect("materializes");
                for axis in [0, 1] {
                    let extent = shape[axis as usize];
                    let ends =
                        [0, 1, 2, 4, 5, 8, 16, 24, 32, 48, 64, 128, 256, 300].into_iter().filter(|&end| end < extent);
                    let ends: Vec<i32> = ends.chain([extent]).collect();
                    for (at, &start) in ends.iter().enumerate() {
                        for &end in &ends[at + 1..] {
                            let Ok(part) = cut(&whole, axis, start..end) else {
                                refused += 1;
                                continue;
                            };
                            cut_ones += 1;
                            let expected = cut(&(&dense).into(), axis, start..end).expect("is sliced");
                            assert_eq!(
                                bits(&part),
                                bits(&expected),
                                "{text} of {shape:?}, {start}..{end} along {axis}"
                            );
                        }
                    }
                }
            }
        }
    }
    assert!(cut_ones > 500 && refused > 500, "{cut_ones} cut, {refused} refused");
}

/// Rows are independent of one another, and so are their scales; the elements of a rotated one are not.
#[test]
fn trained_scales_of_rotated_rows_are_cut_with_the_master() {
    for dtype in [Dtype::Float32, Dtype::Float16] {
        let master = normal(5, &[4, 128]).as_dtype(dtype).expect("casts");
        let format: AnyFormat = "rotated:affine:4:64".parse().expect("a format");
        let whole = Prepared::new(&master, format).and_then(Prepared::with_trained_scales).expect("is prepared");
        let whole = Value::from(whole);
        let part = shard(&whole, 0, 1, 2).expect("rows are independent");
        let _allow = Policy::Allow.scope();
        let wide =
            |value: &Value| Value::from(value.dense().and_then(|x| Ok(x.as_dtype(Dtype::Float32)?)).expect("dense"));
        assert_eq!(bits(&wide(&part)), bits(&cut(&wide(&whole), 0, 2..4).expect("is sliced")));
        assert!(shard(&whole, 1, 0, 2).expect_err("rows are rotated").to_string().contains("makes other scales"));
    }
}

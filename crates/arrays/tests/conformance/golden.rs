//! What other programs write and read: the bytes of bitsandbytes and of MLX, whose scripts stand beside the files.

use std::collections::HashMap;
use std::path::Path;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Dynamic, Format, Fp4, Granularity, Mxfp4, Mxfp8, Nf4, Nvfp4, PackedArray, Parts};
use tacit_arrays::{
    AffineArray, Dynamic8Array, DynamicArray, Fp4Array, Int8Array, Mxfp4Array, Mxfp8Array, Nf4Array, Nvfp4Array,
    ScaleRule,
};
use tacit_core::{Aval, Policy, Result, Value};

/// The tensors of a file in `tests/golden`.
struct Golden(HashMap<String, Array>);

impl Golden {
    fn load(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
        let tensors = Array::load_safetensors(&path).expect("the file that its script wrote");
        for tensor in tensors.values() {
            tensor.eval().expect("reads");
        }
        Self(tensors)
    }

    #[track_caller]
    fn get(&self, key: &str) -> &Array {
        self.0.get(key).unwrap_or_else(|| panic!("the file has no {key}"))
    }

    /// What stands before `.packed` in each key, in order.
    fn formats(&self) -> Vec<&str> {
        let mut formats: Vec<&str> = self.0.keys().filter_map(|key| key.strip_suffix(".packed")).collect();
        formats.sort_unstable();
        formats
    }

    /// Compares each child of `value` with the tensor of its name.
    #[track_caller]
    fn has_children_of(&self, format: &str, value: &Value) {
        let Value::Implicit(array) = value else { panic!("{format} is dense") };
        for (name, child) in array.children() {
            let theirs = match name.field {
                "codes" if self.0.contains_key(&format!("{format}.packed")) => "packed",
                "scales" if self.0.contains_key(&format!("{format}.absmax")) => "absmax",
                own => own,
            };
            let key = format!("{format}.{theirs}");
            assert_same(&dense(&child), self.get(&key), &key);
        }
    }

    /// Compares what `value` materializes to with `FORMAT.dequantized`, if the file has it.
    #[track_caller]
    fn has_elements_of(&self, format: &str, value: &Value) -> usize {
        let Some(expected) = self.0.get(&format!("{format}.dequantized")) else { return 0 };
        assert_same(&dense(value), expected, format);
        1
    }
}

fn dense(value: &Value) -> Array {
    let _allow = Policy::Allow.scope();
    value.dense().expect("builds")
}

/// The same shape, dtype and bytes.
#[track_caller]
fn assert_same(found: &Array, golden: &Array, what: &str) {
    assert_eq!(Aval::from(found), Aval::from(golden), "{what}");
    let bytes = |array: &Array| {
        let flat = ops::flatten(array, None, None).and_then(|flat| flat.contiguous()?.view_dtype(Dtype::Uint8));
        flat.expect("bytes of any array").as_slice::<u8>().to_vec()
    };
    // Which zero stands for a code is not told apart.
    let zeros = |array: &Array| {
        if array.dtype().is_float() {
            array.add(Array::from_f32(0.0).as_dtype(array.dtype())?)
        } else {
            Ok(array.clone())
        }
    };
    let (found, golden) = (bytes(&zeros(found).expect("adds")), bytes(&zeros(golden).expect("adds")));
    let first = found.iter().zip(&golden).position(|(found, golden)| found != golden);
    assert!(first.is_none(), "{what}: byte {first:?} of {} differs", golden.len());
}

/// The number at a place between the dots of a format's name.
fn number(format: &str, place: usize) -> i32 {
    format.split('.').nth(place).and_then(|part| part.parse().ok()).expect("a number in the format's name")
}

/// Compares a format of bitsandbytes, in blocks of f32 scales: what `quantize` stores of `x`, and what is made of its bytes.
#[track_caller]
fn is_bitsandbytes<F: Format + From<usize>>() {
    let golden = Golden::load("bitsandbytes_golden.safetensors");
    let mut compared = 0;
    for format in golden.formats().into_iter().filter(|format| format.split('.').nth(1) == Some(F::NAME)) {
        let x = golden.get(&format!("{}.x", format.split('.').next().unwrap_or_default()));
        let block = number(format, 2) as usize;
        golden.has_children_of(format, &F::from(block).quantize(x).expect("quantizes"));
        let part = |name: &str| golden.get(&format!("{format}.{name}")).clone();
        let parts = Parts::new(part("packed"), part("absmax"));
        let read = PackedArray::<F>::from_parts(parts, block, Aval::from(x)).expect("fits");
        compared += golden.has_elements_of(format, &read.into());
    }
    assert_eq!(compared, 7);
}

#[test]
fn nf4_bytes_are_those_of_bitsandbytes() {
    is_bitsandbytes::<Nf4>();
}

#[test]
fn affine_bytes_are_those_of_mlx() {
    let golden = Golden::load("mlx_golden.safetensors");
    let (mut made, mut read) = (0, 0);
    for format in golden.formats().into_iter().filter(|format| format.starts_with("affine.")) {
        let (bits, group) = (number(format, 1), number(format, 2));
        let dtype = match format.split('.').nth(3) {
            Some("f16") => Dtype::Float16,
            Some("bf16") => Dtype::Bfloat16,
            _ => Dtype::Float32,
        };
        let x = golden.get("x").as_dtype(dtype).expect("a float type");
        golden.has_children_of(
            format,
            &AffineArray::quantize(&x, Affine { bits: bits as u32, group: group as usize }).expect("quantizes").into(),
        );
        let part = |name: &str| golden.get(&format!("{format}.{name}")).clone();
        let array = AffineArray::from_parts(
            Parts { biases: Some(part("biases")), ..Parts::new(part("packed"), part("scales")) },
            Affine { bits: bits as u32, group: group as usize },
            Aval::from(&x),
        )
        .expect("fits");
        made += 1;
        // In the half types MLX rounds the product and the sum, and we only the element.
        read += if dtype == Dtype::Float32 { golden.has_elements_of(format, &array.into()) } else { 0 };
    }
    assert_eq!((made, read), (20, 6));
}

/// Doubly quantized: the scales are decoded by their definition here, and by no array type.
#[test]
fn nf4_reads_scales_that_were_decoded_from_bitsandbytes_nested_ones() {
    let golden = Golden::load("bitsandbytes_nested_golden.safetensors");
    let x = golden.get("x");
    let absmax = nested_scales(&golden, "nf4").expect("decodes");
    let aval = Aval::from(x);
    let array = Nf4Array::from_parts(Parts::new(golden.get("nf4.packed").clone(), absmax), 32, aval).expect("fits");
    let found = dense(&array.into());
    let last = x.size() as i32;
    assert_same(&found.try_index(..64).expect("is long enough"), golden.get("nf4.head"), "the first elements");
    assert_same(&found.try_index(last - 75..).expect("is long enough"), golden.get("nf4.tail"), "the last elements");
}

/// `map[codes] * nested_absmax + offset`, in blocks of 256.
fn nested_scales(golden: &Golden, kind: &str) -> Result<Array> {
    let get = |name: &str| golden.get(&format!("{kind}.{name}"));
    let codes = get("absmax");
    let blocks: Vec<u32> = (0..codes.size() as u32).map(|i| i / 256).collect();
    let scales = get("nested_absmax").take_axis(Array::from_slice(&blocks, &[blocks.len() as i32]), 0)?;
    let decoded = get("nested_quant_map").take_axis(codes.as_dtype(Dtype::Uint32)?, 0)?;
    Ok(decoded.multiply(scales)?.add(get("offset"))?)
}

#[test]
fn fp4_bytes_are_those_of_bitsandbytes() {
    is_bitsandbytes::<Fp4>();
}

#[test]
fn dynamic8_bytes_are_those_of_bitsandbytes() {
    let golden = Golden::load("bitsandbytes_golden.safetensors");
    // `quantize_blockwise` subtracts no mean: read its bytes with an offset of zero.
    let part = |name: &str| golden.get(&format!("dynamic.{name}")).clone();
    let read = Dynamic8Array::from_parts(part("codes"), part("absmax"), Array::from_f32(0.0), 256).expect("fits");
    assert_eq!(golden.has_elements_of("dynamic", &read.into()), 1);
    let (x, format) = (golden.get("dynamic.x"), Dynamic { bits: 8, block: 256, unsigned: false });
    golden.has_children_of("dynamic", &DynamicArray::quantize(x, format).expect("quantizes").into());
    // Its scales are largest magnitudes, whichever sign has them.
    let negated = DynamicArray::quantize(&x.negative().expect("negates"), format).expect("quantizes");
    assert_same(&dense(negated.scales().expect("scales")), golden.get("dynamic.absmax"), "scales of the other sign");
}

#[test]
fn double_quantization_is_that_of_bitsandbytes() {
    let golden = Golden::load("bitsandbytes_nested_golden.safetensors");
    let x = golden.get("x");
    let last = x.size() as i32;
    let made: [(&str, Value); 2] = [
        ("nf4", Nf4Array::quantize(x, Nf4 { block: 32, double: true }).expect("quantizes").into()),
        ("fp4", Fp4Array::quantize(x, Fp4 { block: 32, double: true }).expect("quantizes").into()),
    ];
    for (kind, value) in made {
        let Value::Implicit(array) = &value else { panic!("{kind} is dense") };
        let children = array.children();
        assert_same(&dense(&children[0].1), golden.get(&format!("{kind}.packed")), kind);
        let Value::Implicit(absmax) = &children[1].1 else { panic!("{kind} keeps dense scales") };
        let scales = absmax.children();
        let codes = |array: &Array| array.as_dtype(Dtype::Int32).expect("codes").as_slice::<i32>().to_vec();
        let (own, theirs) = (codes(&dense(&scales[0].1)), codes(golden.get(&format!("{kind}.absmax"))));
        // The offset is a mean, which torch sums in an order of its own: a scale between two codes may go either way.
        let moved: Vec<i32> = own.iter().zip(&theirs).map(|(own, theirs)| (own - theirs).abs()).collect();
        assert!(moved.iter().all(|&step| step <= 1) && moved.iter().sum::<i32>() <= 3, "{moved:?}");
        // Read with their scales, every element is theirs to the bit.
        let part = |name: &str| golden.get(&format!("{kind}.{name}")).clone();
        let theirs =
            Dynamic8Array::from_parts(part("absmax"), part("nested_absmax"), part("offset"), 256).expect("fits");
        let children = vec![children[0].1.clone(), theirs.into()];
        let found = dense(&array.with_children(children).expect("fits").into());
        assert_same(&found.try_index(..64).expect("is long enough"), golden.get(&format!("{kind}.head")), kind);
        assert_same(&found.try_index(last - 75..).expect("is long enough"), golden.get(&format!("{kind}.tail")), kind);
    }
}

#[test]
fn int8_rows_are_those_of_bitsandbytes() {
    let golden = Golden::load("bitsandbytes_golden.safetensors");
    // bitsandbytes quantizes halves: `int8.x` must be rounded first.
    let x = golden.get("int8.x").as_dtype(Dtype::Float16).expect("a float type");
    golden.has_children_of("int8", &Int8Array::quantize(&x, Granularity::Row).expect("quantizes").into());
}

/// What MLX wrote in the format `F`.
fn read<F: Format + Default>(golden: &Golden) -> (&'static str, Value) {
    let part = |name: &str| golden.get(&format!("{}.{name}", F::NAME)).clone();
    let parts = Parts::new(part("packed"), part("scales"));
    let read = PackedArray::<F>::from_parts(parts, F::default(), Aval::from(golden.get("x")));
    (F::NAME, read.expect("fits").into())
}

#[test]
fn microscaled_bytes_are_those_of_mlx() {
    let golden = Golden::load("mlx_golden.safetensors");
    let x = golden.get("x");
    // MLX 0.32.2 takes the ceiling of the logarithm as the exponent: choose the ScaleRule of that name.
    golden.has_children_of("mxfp4", &Mxfp4Array::quantize(x, ScaleRule::Ceil).expect("quantizes").into());
    golden.has_children_of("mxfp8", &Mxfp8Array::quantize(x, ScaleRule::Ceil).expect("quantizes").into());
    golden.has_children_of("nvfp4", &Nvfp4Array::quantize(x, Nvfp4::default()).expect("quantizes").into());
    let read = [read::<Mxfp4>(&golden), read::<Mxfp8>(&golden), read::<Nvfp4>(&golden)];
    for (format, value) in read {
        assert_eq!(golden.has_elements_of(format, &value), 1);
    }
}

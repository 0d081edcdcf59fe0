//! Round trips, and the reference implementation as the judge of both directions.

use mlx_rs::{Array, Dtype};
use safetensors::SafeTensors;
use tacit_core::{Aval, dtype_named};
use tacit_io::{Metadata, Tensors, dtype_of_stored, write, write_sharded};

use crate::scratch::Scratch;

fn vector(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32])
}

/// One of each dtype, in an order that leaves none aligned by chance.
fn one_of_each() -> Vec<(String, Array)> {
    let names = ["bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "f32", "f64", "bf16", "c64"];
    let made = |name: &&str| {
        let dtype = dtype_named(name).expect("a dtype");
        let array = Array::from_slice(&[1f32, 0.0, 1.0], &[3, 1]).as_dtype(dtype).expect("casts");
        ((*name).to_owned(), array)
    };
    names.iter().map(made).collect()
}

fn metadata() -> Metadata {
    Metadata::from([("format".to_owned(), "mlx".to_owned()), ("note".to_owned(), "\"quoted\"\u{e9}".to_owned())])
}

fn same(a: &Array, b: &Array) -> bool {
    Aval::from(a) == Aval::from(b) && a.eq_values(b).expect("compares")
}

#[test]
fn every_dtype_comes_back_and_reads_the_same_by_the_reference() {
    let folder = Scratch::new();
    let path = folder.join("model.safetensors");
    let mut arrays = one_of_each();
    arrays.push(("scalar".to_owned(), Array::from_f32(2.5)));
    arrays.push(("none".to_owned(), mlx_rs::ops::zeros::<f32>(&[0, 4]).expect("empty")));
    arrays.push(("transposed".to_owned(), Array::from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3]).t()));
    write(&path, arrays.clone(), &metadata()).expect("writes");

    let tensors = Tensors::open(&path).expect("opens");
    assert_eq!(tensors.names().count(), arrays.len());
    assert_eq!(tensors.metadata(), &metadata());
    let bytes = std::fs::read(&path).expect("reads");
    let reference = SafeTensors::deserialize(&bytes).expect("the reference reads it");
    for (name, array) in &arrays {
        assert!(same(&tensors.get(name).expect("is there"), array), "{name}");
        let theirs = reference.tensor(name).expect("is there");
        assert_eq!(theirs.data(), tensors.bytes(name).expect("is there"), "{name}");
        assert_eq!(format!("{:?}", theirs.dtype()), tensors.stored_dtype(name).expect("is there"), "{name}");
        let shape: Vec<usize> = array.shape().iter().map(|&extent| extent as usize).collect();
        assert_eq!(theirs.shape(), shape, "{name}");
    }
    assert_eq!(folder.names(), ["model.safetensors"], "nothing is left beside it");
}

#[test]
fn tensors_stay_in_their_order_unless_one_would_not_be_aligned() {
    let folder = Scratch::new();
    let path = folder.join("model.safetensors");
    let order = |codes: i32| -> Vec<String> {
        let codes = || mlx_rs::ops::zeros_dtype(&[codes], Dtype::Uint8).expect("codes");
        let value = |name: &str| [(format!("{name}.codes"), codes()), (format!("{name}.scales"), vector(&[1.0]))];
        write(&path, ["b", "a"].into_iter().flat_map(value).collect(), &Metadata::new()).expect("writes");
        let tensors = Tensors::open(&path).expect("opens");
        let mut names: Vec<String> = tensors.names().map(str::to_owned).collect();
        names.sort_by_key(|name| tensors.bytes(name).expect("is there").as_ptr());
        names
    };
    assert_eq!(order(4), ["b.codes", "b.scales", "a.codes", "a.scales"]);
    assert_eq!(order(3), ["b.scales", "a.scales", "b.codes", "a.codes"]);
}

#[test]
fn what_the_reference_writes_is_read() {
    let folder = Scratch::new();
    let values: Vec<u8> = [1f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let views = [
        ("weight", safetensors::Dtype::F32, vec![2], &values[..]),
        ("codes", safetensors::Dtype::F8_E4M3, vec![3], &values[..3]),
    ];
    let views = views.map(|(name, dtype, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(dtype, shape, bytes).expect("fits"))
    });
    let path = folder.file("theirs.safetensors", safetensors::serialize(views, None).expect("writes"));
    let tensors = Tensors::open(&path).expect("opens");
    assert!(same(&tensors.get("weight").expect("is there"), &vector(&[1.0, 2.0])));
    assert_eq!(tensors.stored_dtype("codes").expect("is there"), "F8_E4M3");
    assert_eq!(tensors.aval("codes").expect("is there"), &Aval::new(&[3], Dtype::Uint8));
    assert_eq!(dtype_of_stored("F8_E4M3"), Some(Dtype::Uint8));
    assert!(tensors.metadata().is_empty());
}

#[test]
fn arrays_outlive_what_they_were_read_from_and_its_replacement() {
    let folder = Scratch::new();
    let path = folder.join("model.safetensors");
    write(&path, vec![("a".to_owned(), vector(&[1.0, 2.0]))], &Metadata::new()).expect("writes");
    let array = Tensors::open(&path).expect("opens").get("a").expect("is there");
    // The file is written anew from the very arrays that are parts of it.
    write(&path, vec![("b".to_owned(), &array + &array), ("a".to_owned(), array.clone())], &Metadata::new())
        .expect("writes");
    assert!(same(&array, &vector(&[1.0, 2.0])));
    let tensors = Tensors::open(&path).expect("opens");
    assert!(same(&tensors.get("b").expect("is there"), &vector(&[2.0, 4.0])));
}

#[test]
fn a_folder_and_an_index_are_opened_like_a_file() {
    let folder = Scratch::new();
    let place = folder.join("model.safetensors");
    let arrays: Vec<(String, Array)> = (0..5).map(|i| (format!("layers.{i}"), vector(&[i as f32; 4]))).collect();
    write_sharded(&place, arrays.clone(), &metadata(), 40).expect("writes");
    let shards = |prefix: &str| (1..=3).map(|i| format!("{prefix}-0000{i}-of-00003.safetensors")).collect::<Vec<_>>();
    let index = "model.safetensors.index.json".to_owned();
    assert_eq!(folder.names(), [shards("model"), vec![index.clone()]].concat());
    for path in [folder.to_path_buf(), folder.join(&index)] {
        let tensors = Tensors::open(&path).expect("opens");
        for (name, array) in &arrays {
            assert!(same(&tensors.get(name).expect("is there"), array), "{name}");
        }
        assert_eq!(tensors.metadata().get("total_size").map(String::as_str), Some("80"));
        assert_eq!(tensors.metadata().get("format").map(String::as_str), Some("mlx"));
        assert_eq!(tensors.folder(), &*folder);
    }
    // A second time, beside the first until it is complete.
    write_sharded(&place, arrays.clone(), &metadata(), 40).expect("writes");
    assert_eq!(folder.names(), [shards("model.2"), vec![index]].concat());
    // And in one, which takes the place of all; the index names it, as mlx-lm's does.
    write_sharded(&place, arrays, &metadata(), 1000).expect("writes");
    assert_eq!(folder.names(), ["model.safetensors", "model.safetensors.index.json"]);
    assert_eq!(Tensors::open(folder.join("model.safetensors.index.json")).expect("opens").names().count(), 5);
    assert_eq!(Tensors::open(&*folder).expect("opens").names().count(), 5);
}

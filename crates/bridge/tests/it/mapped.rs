use std::fs::{self, File};
use std::path::PathBuf;

use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, Dtype};
use tacit_bridge::{Aval, MappedFile, array_of_bytes, forget_pages, with_bytes};

use crate::arrays::{matrix, numbers, vector};

/// A file of its own for one test, which is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("tacit-{}-{name}", std::process::id()));
        fs::write(&path, bytes).expect("writes");
        Self(path)
    }

    fn map(&self) -> MappedFile {
        MappedFile::new(&File::open(&self.0).expect("opens")).expect("maps")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn f32s(shape: &[i32]) -> Aval {
    Aval::new(shape, Dtype::Float32)
}

/// Where the elements of an array are in memory.
fn place(array: &Array) -> usize {
    with_bytes(array, |bytes| bytes.as_ptr() as usize).expect("evaluates")
}

#[test]
fn a_part_of_a_file_is_an_array_without_being_copied() {
    let file = Scratch::new("part", &floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let mapped = file.map();
    let array = mapped.array(4, &f32s(&[2, 3])).expect("is within the file");
    assert_eq!(place(&array), mapped.bytes().as_ptr() as usize + 4);
    assert_eq!(numbers(&array), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(numbers(&array.t()), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn elements_that_are_not_aligned_are_copied() {
    let mut bytes = vec![7u8];
    bytes.extend(floats(&[1.0, 2.0]));
    let file = Scratch::new("odd", &bytes);
    let mapped = file.map();
    let array = mapped.array(1, &f32s(&[2])).expect("is within the file");
    assert_ne!(place(&array), mapped.bytes().as_ptr() as usize + 1);
    assert_eq!(numbers(&array), [1.0, 2.0]);
}

#[test]
fn arrays_outlive_the_map_and_the_file() {
    let file = Scratch::new("outlived", &floats(&[1.0, 2.0, 3.0]));
    let mapped = file.map();
    let (first, rest) = (mapped.array(0, &f32s(&[])), mapped.array(4, &f32s(&[2])));
    drop((mapped, file));
    let (first, rest) = (first.expect("is there"), rest.expect("is there"));
    assert_eq!((numbers(&first), numbers(&rest)), (vec![1.0], vec![2.0, 3.0]));
}

#[test]
fn what_mlx_writes_into_a_donated_buffer_reaches_neither_the_file_nor_another_array() {
    let written = floats(&vec![1.0; 4096]);
    let file = Scratch::new("donated", &written);
    let mapped = file.map();
    // Chains in which MLX may reuse the memory of what goes in, since nobody holds it afterwards.
    let chain = |array: Array| {
        let result = (array + vector(&[1.0])).exp().and_then(|x| x.negative()).expect("adds");
        numbers(&result)[0]
    };
    let other = mapped.array(0, &f32s(&[4096])).expect("is there");
    let expected = -(2f32.exp());
    assert!((chain(mapped.array(0, &f32s(&[4096])).expect("is there")) - expected).abs() < 1e-5);
    assert_eq!((numbers(&other)[0], &mapped.bytes()[..4]), (1.0, &1f32.to_le_bytes()[..]));
    // The last array of the memory: MLX may now write into it.
    drop(mapped);
    assert!((chain(other) - expected).abs() < 1e-5);
    assert_eq!(fs::read(&file.0).expect("reads"), written);
}

#[test]
fn an_array_that_is_not_within_the_file_is_an_error() {
    let file = Scratch::new("outside", &[0; 16]);
    let mapped = file.map();
    let message = |offset, shape: &[i32]| mapped.array(offset, &f32s(shape)).expect_err("is outside").to_string();
    assert_eq!(message(0, &[5]), "f32[5] from byte 0 on is not within the 16 bytes of the file");
    assert_eq!(message(4, &[4]), "f32[4] from byte 4 on is not within the 16 bytes of the file");
    assert_eq!(message(20, &[0]), "f32[0] from byte 20 on is not within the 16 bytes of the file");
    assert_eq!(
        message(usize::MAX, &[1]),
        format!("f32[1] from byte {} on is not within the 16 bytes of the file", usize::MAX)
    );
    assert!(message(0, &[i32::MAX, i32::MAX, i32::MAX]).contains("is not within"));
    assert_eq!(message(0, &[-1]), "the shape [-1] has a negative extent");
}

#[test]
fn an_empty_file_has_empty_arrays() {
    let file = Scratch::new("empty", &[]);
    let mapped = file.map();
    assert_eq!(mapped.bytes(), []);
    let array = mapped.array(0, &f32s(&[3, 0])).expect("has no elements");
    assert_eq!((array.shape(), with_bytes(&array, <[u8]>::len).expect("evaluates")), (&[3, 0][..], 0));
}

#[test]
fn the_bytes_of_an_array_are_row_by_row() {
    let columns = matrix(2, 3).t();
    let bytes = with_bytes(&columns, <[u8]>::to_vec).expect("evaluates");
    assert_eq!(bytes, floats(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    let broadcast = mlx_rs::ops::broadcast_to(vector(&[1.0]), &[3]).expect("broadcasts");
    assert_eq!(with_bytes(&broadcast, <[u8]>::to_vec).expect("evaluates"), floats(&[1.0; 3]));
    let row = matrix(4, 2).index(2);
    assert_eq!(with_bytes(&row, <[u8]>::to_vec).expect("evaluates"), floats(&[5.0, 6.0]));
}

#[test]
fn bytes_are_copied_into_an_array_of_as_many() {
    let mut bytes = vec![7u8];
    bytes.extend(floats(&[1.0, 2.0]));
    let array = array_of_bytes(&bytes[1..], &f32s(&[2, 1])).expect("fits");
    drop(bytes);
    assert_eq!((array.shape(), numbers(&array)), (&[2, 1][..], vec![1.0, 2.0]));
    assert_eq!(array_of_bytes(&[], &f32s(&[3, 0])).expect("has no elements").shape(), [3, 0]);
    let message = |shape: &[i32]| array_of_bytes(&[0; 8], &f32s(shape)).expect_err("does not fit").to_string();
    assert_eq!(message(&[3]), "f32[3] is not made of 8 bytes");
    assert_eq!(message(&[1, -2]), "the shape [1, -2] has a negative extent");
}

#[test]
fn pages_that_were_let_go_of_are_read_again() {
    let numbers: Vec<u8> = (0..64 * 4096).map(|at: u32| (at / 4096 + at) as u8).collect();
    let path = std::env::temp_dir().join(format!("tacit-forgotten-{}", std::process::id()));
    std::fs::write(&path, &numbers).expect("writes");
    let aval = Aval::new(&[60 * 4096], mlx_rs::Dtype::Uint8);
    let array = {
        let file = MappedFile::new(&File::open(&path).expect("opens")).expect("maps");
        file.array(100, &aval).expect("is within the file")
    };
    let expected = &numbers[100..100 + 60 * 4096];
    with_bytes(&array, |bytes| assert!(bytes == expected)).expect("is there");
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let own = text.split_once(path.to_str().expect("text")).map(|(_, own)| own.to_owned())?;
        let line = own.lines().find_map(|line| line.strip_prefix("Rss:").map(str::trim).map(str::to_owned))?;
        line.trim_end_matches(" kB").trim().parse::<usize>().ok()
    };
    let before = resident();
    forget_pages(&array).expect("evaluates");
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(before >= 60 * 4 && after <= 5 * 4, "{before} kB, then {after}");
    }
    with_bytes(&array, |bytes| assert!(bytes == expected)).expect("is read again");
    // What is of no file stays.
    let own = mlx_rs::Array::from_slice(&[1f32, 2.0], &[2]);
    forget_pages(&own).expect("evaluates");
    assert_eq!(own.as_slice::<f32>(), [1.0, 2.0]);
    std::fs::remove_file(path).ok();
}

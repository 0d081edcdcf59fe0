//! The zeros of layers of GPTQ, as `AutoGPTQ` and `GPTQModel` have written them.

use mlx_rs::{Array, Dtype, ops};
use tacit_io::{Metadata, Tensors, gptq, write};

use crate::golden::{dense, golden};
use crate::scratch::Scratch;

/// `GPTQModel` takes 1 from whole words of zeros, where a zero of 0 borrows from its neighbour.
#[test]
fn zeros_of_gptq_that_are_0_are_read_as_0() {
    let folder = Scratch::new();
    let zeros = [0_u32, 8, 3, 0, 0, 15, 1, 7];
    let word = zeros.iter().rev().fold(0_u32, |word, zero| (word << 4) | zero).wrapping_sub(0x1111_1111);
    let codes: Vec<u32> = (1..=32_u32).map(|at| at.wrapping_mul(2_654_435_761)).collect();
    let scales = ops::ones::<f32>(&[1, 8]).and_then(|ones| ones.as_dtype(Dtype::Float16)).expect("ones");
    let tensors = vec![
        ("proj.qweight".to_owned(), Array::from_slice(&codes, &[4, 8])),
        ("proj.qzeros".to_owned(), Array::from_slice(&[word], &[1, 1])),
        ("proj.scales".to_owned(), scales),
    ];
    write(folder.join("model.safetensors"), tensors, &Metadata::new()).expect("writes");
    let config = r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false, "checkpoint_format": "gptq"}"#;
    folder.file("config.json", format!(r#"{{"quantization_config": {config}}}"#));
    let read = gptq::read(&*folder).expect("reads");
    let weight = dense(&read["proj.weight"]).as_dtype(Dtype::Float32).expect("casts");
    weight.eval().expect("evaluates");
    for (at, found) in weight.as_slice::<f32>().iter().enumerate() {
        let (output, input) = (at / 32, at % 32);
        let code = (codes[input / 8 * 8 + output] >> (4 * (input % 8))) & 15;
        let expected = code as f32 - zeros[output] as f32;
        assert!((found - expected).abs() < 1e-6, "{output}, {input}: {found} for {expected}");
    }
}

/// `GPTQModel` has stored them as they are, and those of 3 bits less other numbers than 1, under the name of the format that has them
/// less 1.
#[test]
fn zeros_of_a_symmetric_gptq_model_are_the_middle_code() {
    let stored: [(u32, &[&[u32]]); 4] = [
        (2, &[&[0xaaaa_aaaa], &[0x5555_5555]]),
        (
            3,
            &[
                &[0x2492_4924, 0x4924_9249, 0x9249_2492],
                &[0xdb6d_b6db, 0xb6db_6db6, 0x6db6_db6d],
                &[0, 0xb6db_6db7, 0x4924_9249],
            ],
        ),
        (4, &[&[0x8888_8888], &[0x7777_7777]]),
        (8, &[&[0x8080_8080], &[0x7f7f_7f7f]]),
    ];
    for (bits, stored) in stored {
        let expected = with_zeros(bits, stored[0], r#""sym": false, "checkpoint_format": "gptq_v2""#);
        for words in stored {
            let found = with_zeros(bits, words, r#""sym": true, "checkpoint_format": "gptq""#);
            assert!(found.eq_values(&expected).expect("compares"), "{bits} bits, {words:x?}: {found:?}\n{expected:?}");
        }
    }
}

/// Words may repeat, as all of a small layer do, whose zeros are several numbers.
#[test]
fn zeros_that_are_several_numbers_are_read_as_they_are() {
    for (bits, word) in [(2, 0xaaaa_aaab_u32), (4, 0x8888_8887), (8, 0x8080_8081)] {
        let [found, expected] = ["true", "false"]
            .map(|sym| with_zeros(bits, &[word], &format!(r#""sym": {sym}, "checkpoint_format": "gptq_v2""#)));
        assert!(found.eq_values(&expected).expect("compares"), "{bits} bits: {found:?}\n{expected:?}");
    }
}

/// The weight of a golden model of so many bits whose zeros are these words, again and again.
fn with_zeros(bits: u32, words: &[u32], said: &str) -> Array {
    let folder = Scratch::new();
    let old = Tensors::open(golden(&format!("gptq/bits{bits}"))).expect("opens");
    let tensors = old.names().map(|name| {
        let array = old.get(name).expect("is there");
        let words: Vec<u32> = words.iter().copied().cycle().take(array.size()).collect();
        let zeros = name.ends_with("qzeros").then(|| Array::from_slice(&words, array.shape()));
        (name.to_owned(), zeros.unwrap_or(array))
    });
    write(folder.join("model.safetensors"), tensors.collect(), &Metadata::new()).expect("writes");
    let config = format!(r#"{{"quant_method": "gptq", "bits": {bits}, "group_size": 32, {said}}}"#);
    folder.file("config.json", format!(r#"{{"quantization_config": {config}}}"#));
    let weight = dense(&gptq::read(&*folder).expect("reads")["layers.0.proj.weight"]);
    weight.eval().expect("evaluates");
    weight
}

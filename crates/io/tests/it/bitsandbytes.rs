//! Checkpoints of bitsandbytes' own modules.

use std::fs;

use tacit_io::bitsandbytes::{self, BitsAndBytesLayout};

use crate::golden::{assert_reads, assert_same_tensors, golden};
use crate::scratch::Scratch;

#[test]
fn parameters_have_the_formats_of_the_file() {
    let listed = |file: &str| {
        let parameters = bitsandbytes::read(golden(file)).expect("reads");
        let line = |(name, value): (&String, &tacit_core::Value)| format!("{name}  {value:?}\n");
        parameters.iter().filter(|(_, value)| value.is_implicit()).map(line).collect::<String>()
    };
    expect_test::expect![[r#"
        model.layers.0.self_attn.k_proj.weight  Nf4(f16[80,112]) { format: Nf4 { block: 32, double: true }, int8_activations: false, transposed: false }
        model.layers.0.self_attn.o_proj.weight  Fp4(bf16[16,72]) { format: Fp4 { block: 128, double: true }, int8_activations: false, transposed: false }
        model.layers.0.self_attn.q_proj.weight  Nf4(bf16[24,64]) { format: Nf4 { block: 64, double: false }, int8_activations: false, transposed: false }
        model.layers.0.self_attn.v_proj.weight  Fp4(f32[5,13]) { format: Fp4 { block: 64, double: false }, int8_activations: false, transposed: false }
    "#]].assert_eq(&listed("bitsandbytes/4bit.safetensors"));
    expect_test::expect![[r#"
        model.layers.0.mlp.down_proj.weight  Int8(f16[16,48]) { format: Int8 { granularity: Block(48) }, int8_activations: false, transposed: false }
    "#]].assert_eq(&listed("bitsandbytes/int8.safetensors"));
    expect_test::expect![[r#"
        up_proj.weight  Nf4(bf16[8,64]) { format: Nf4 { block: 64, double: false }, int8_activations: false, transposed: false }
    "#]].assert_eq(&listed("bitsandbytes/storage.safetensors"));
}

#[test]
fn parameters_are_what_bitsandbytes_makes_of_them() {
    // Of an 8-bit weight it takes the reciprocal of 127, which before rounding to f16 is an ulp.
    for (file, within) in [("4bit", 0.0), ("storage", 0.0), ("int8", 1e-4)] {
        let parameters = bitsandbytes::read(golden(&format!("bitsandbytes/{file}.safetensors"))).expect("reads");
        assert_reads(&parameters, &format!("bitsandbytes/{file}_expected.safetensors"), within);
    }
}

#[test]
fn what_is_read_is_written_as_the_same_file() {
    let folder = Scratch::new();
    for file in ["4bit", "storage", "int8"] {
        let theirs = golden(&format!("bitsandbytes/{file}.safetensors"));
        let ours = folder.join("model.safetensors");
        let parameters = bitsandbytes::read(&theirs).expect("reads");
        bitsandbytes::write(&ours, &parameters, BitsAndBytesLayout::read(&theirs).expect("reads")).expect("writes");
        assert_same_tensors(&theirs, &ours);
        assert!(fs::read(&theirs).unwrap() == fs::read(&ours).unwrap(), "{file} is the same bytes");
    }
}

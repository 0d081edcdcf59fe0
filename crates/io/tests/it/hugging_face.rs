//! Float checkpoints.

use std::fs;

use expect_test::expect;
use tacit_io::{FileKind, hugging_face, read, save};

use crate::golden::golden;
use crate::scratch::Scratch;

#[test]
fn a_sharded_model_is_read_whole() {
    let parameters = hugging_face::read(golden("mlx_lm/shards")).expect("reads");
    assert_eq!(parameters.len(), 12);
    assert_eq!(parameters["model.layers.0.self_attn.q_proj.weight"].to_string(), "bf16[32,32]");
    assert_eq!(parameters["model.norm.weight"].to_string(), "bf16[32]");
}

#[test]
fn what_the_library_safetensors_wrote_is_written_as_the_same_file() {
    let (folder, theirs) = (Scratch::new(), golden("peft/base.safetensors"));
    let ours = folder.join("model.safetensors");
    hugging_face::write(&ours, hugging_face::read(&theirs).expect("reads")).expect("writes");
    // Torch's `save_file` has no metadata unless it is given some; transformers gives it, and so does this.
    let (theirs, ours) = (fs::read(theirs).expect("reads"), fs::read(ours).expect("reads"));
    let elements = |file: &[u8]| file[8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize..].to_vec();
    assert!(elements(&theirs) == elements(&ours));
}

#[test]
fn a_quantized_checkpoint_is_not_read_as_floats() {
    let files = [
        "bitsandbytes/4bit.safetensors",
        "bitsandbytes/int8.safetensors",
        "mlx_lm/uniform",
        "gptq/bits4",
        "awq/group32",
    ];
    let said = files.map(|file| {
        let error = hugging_face::read(golden(file)).expect_err("refused").to_string();
        error.replace(&golden("").display().to_string(), "") + "\n"
    });
    expect![[r#"
        bitsandbytes/4bit.safetensors: model.layers.0.self_attn.k_proj.weight.quant_state.bitsandbytes__nf4: the checkpoint is not of floats alone, and codes are no parameters
        help: read it by `bitsandbytes::read`
        bitsandbytes/int8.safetensors: model.layers.0.mlp.down_proj.SCB: the checkpoint is not of floats alone, and codes are no parameters
        help: read it by `bitsandbytes::read`
        mlx_lm/uniform/model.safetensors: lm_head.scales: the checkpoint is not of floats alone, and codes are no parameters
        help: read it by `mlx_lm::read`
        gptq/bits4/model.safetensors: layers.0.proj.qweight: the checkpoint is not of floats alone, and codes are no parameters
        help: read it by `gptq::read`
        awq/group32/model.safetensors: layers.0.proj.qweight: the checkpoint is not of floats alone, and codes are no parameters
        help: read it by `awq::read`
    "#]].assert_eq(&said.concat());
}

#[test]
fn a_checkpoint_is_read_whosever_it_is() {
    let kinds = [
        ("bitsandbytes/4bit.safetensors", FileKind::Bitsandbytes, "Nf4"),
        ("bitsandbytes/int8.safetensors", FileKind::Bitsandbytes, "Int8"),
        ("mlx_lm/mixed", FileKind::MlxLm, "Mxfp4"),
        ("mlx_lm/shards", FileKind::Floats, "bf16"),
        ("peft/base.safetensors", FileKind::Floats, "f32"),
        ("gptq/bits4", FileKind::Gptq, "Affine"),
        ("awq/group32", FileKind::Awq, "Affine"),
        ("gguf/llama.gguf", FileKind::Gguf, ""),
    ];
    for (file, kind, holds) in kinds {
        assert_eq!(FileKind::detect(golden(file)).expect("opens"), kind, "{file}");
        let read = read(golden(file)).expect("reads");
        assert!(read.values().any(|value| value.to_string().starts_with(holds)), "{file}");
    }
    for entry in fs::read_dir(golden("torchao")).expect("reads") {
        let path = entry.expect("reads").path();
        let theirs = !path.to_string_lossy().contains("expected");
        assert_eq!(FileKind::detect(&path).expect("opens") == FileKind::Torchao, theirs, "{}", path.display());
    }
    let folder = Scratch::new();
    let own = folder.join("own.safetensors");
    save(&own, &read(golden("bitsandbytes/4bit.safetensors")).expect("reads")).expect("saves");
    assert_eq!(FileKind::detect(&own).expect("opens"), FileKind::Tacit);
    assert_eq!(read(&own).expect("reads").len(), 6);
}

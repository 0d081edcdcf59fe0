//! Checkpoints of decoders: who takes their layers, and the names that several programs have for them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use expect_test::expect;
use mlx_rs::{ops, random};
use tacit_io::save;
use tacit_nn::Parameters;

use super::{Folder, tacit};

#[test]
fn who_takes_each_layer_is_told_and_drawn() {
    let folder = Folder::new();
    let (dense, packed) = (folder.layers(3), folder.at("packed.safetensors"));
    assert!(tacit(&["quantize", &dense, "--format", "rotated:nf4:64", "-o", &packed]).status.success());
    let (svg, html) = (folder.at("trace.svg"), folder.at("trace.html"));
    expect![[r#"
        parameters       of them  value                  call     taken by                    bytes built
        layers.*.weight        3  Rotated(f32[256,256])  x @ w.T  view_moving, linear_matmul
        3 calls for tokens [1,16], 0 arrays materialized (0 bytes)
    "#]]
    .assert_eq(
        &folder.said(&["explain", &packed, "--input-shape", "1,16", "--svg", &svg, "--html", &html, "--deny"], 0),
    );
    let (svg, html) = (fs::read_to_string(svg).expect("drawn"), fs::read_to_string(html).expect("written"));
    assert!(svg.starts_with("<svg") && svg.contains("layers.*.weight (3)"), "{svg}");
    assert!(html.contains("<table>") && html.contains("matmul"), "{html}");
    let json = tacit(&["explain", &packed, "--only", "layers.1.*", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("json");
    let layers = json["layers"].as_array().expect("a list");
    assert_eq!((layers.len(), &layers[0]["path"], &json["materialized"]), (1, &"layers.1.weight".into(), &0.into()));
    assert!(json["trace"].is_null(), "{json}");
    let json = tacit(&["explain", &packed, "--only", "layers.1.*", "--json", "--trace"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("json");
    let trace = json["trace"].as_str().expect("a text");
    assert!(trace.starts_with("{ lambda") && trace.contains("matmul"), "{trace}");
    expect![[r#"
        error: FOLDER/packed.safetensors has no matrix of a path nothing
        help: see what there is with `tacit inspect`
    "#]]
    .assert_eq(&folder.said(&["explain", &packed, "--only", "nothing"], 1));
    assert_eq!(tacit(&["explain", &packed, "--input-shape", "0"]).status.code(), Some(2));
}

#[test]
fn a_known_model_is_told_as_a_whole() {
    let folder = Folder::new();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/affine/llama");
    let svg = folder.at("model.svg");
    let golden = golden.to_str().expect("text");
    let output = tacit(&["explain", golden, "--input-shape", "1,16", "--deny", "--svg", &svg, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert!(output.status.success(), "{json}");
    let of_model = |key: &str| json["model"][key].as_u64().expect("a number");
    assert!(of_model("ops") > 100 && of_model("handled") > 20, "{json}");
    assert_eq!((of_model("materialized"), json["unbuilt"].is_null()), (0, true));
    let svg = fs::read_to_string(svg).expect("drawn");
    assert!(svg.contains(">rsqrt<") && svg.contains(">gather<"), "{svg}");
    let experts = format!("{}/qwen3_moe", golden.rsplit_once('/').expect("a folder").0);
    let told = String::from_utf8(tacit(&["explain", &experts, "--input-shape", "1,16"]).stdout).expect("text");
    assert!(told.contains("x @ w[chosen].T"), "{told}");
    // On a GPU, which need not be here, its products and its embedding have sources.
    for gpu in ["cuda", "metal"] {
        let told = tacit(&["explain", golden, "--input-shape", "1,16", "--deny", "--gpu", gpu]);
        let text = String::from_utf8(told.stdout).expect("text");
        assert!(told.status.success() && text.contains(", 0 kernels as plain ops on the GPU"), "{text}");
    }
    let mut without = Command::new(env!("CARGO_BIN_EXE_tacit"));
    without.args(["explain", golden, "--input-shape", "1,16", "--gpu", "metal"]).env("TACIT_GPU_SOURCES", "off");
    let text = String::from_utf8(without.output().expect("starts").stdout).expect("text");
    let told = " kernels as plain ops on the GPU, since TACIT_GPU_SOURCES is off";
    assert!(text.contains(told) && !text.contains(&format!(", 0{told}")), "{text}");
    // Of a model that lacks a tensor, its layers are told; nobody knows what it would materialize.
    let config = fs::read(format!("{golden}/config.json")).expect("reads");
    fs::write(folder.at("config.json"), config).expect("writes");
    let lacking = folder.layers(1);
    for (options, code) in [(&[][..], 0), (&["--deny"], 1)] {
        let told = tacit(&[&["explain", lacking.as_str()][..], options].concat());
        let text = String::from_utf8(told.stdout).expect("text");
        assert!(text.contains("layers.0.weight") && text.contains("the model cannot be built: "), "{text}");
        assert_eq!(told.status.code(), Some(code), "{options:?}");
    }
}

/// Their caches are codes in a step.
#[test]
fn models_of_half_floats_are_told_as_a_whole() {
    for name in ["float/llama", "float/gemma2", "float/qwen3_next", "tokenizers/spm.gguf"] {
        let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden").join(name);
        let output = tacit(&["explain", golden.to_str().expect("text"), "--input-shape", "2,5", "--deny", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        assert!(output.status.success() && json["unbuilt"].is_null(), "{name}: {}", json["unbuilt"]);
        assert_eq!(json["model"]["materialized"].as_u64(), Some(0), "{name}");
    }
}

#[test]
fn what_would_be_materialized_fails_where_that_is_denied() {
    let folder = Folder::new();
    let (dense, packed) = (folder.at("dense.safetensors"), folder.at("packed.safetensors"));
    let table = ops::ones::<f32>(&[32, 64]).expect("ones");
    save(&dense, &Parameters::from([("embed_tokens.weight".to_owned(), table.into())])).expect("saves");
    // A row of codes whose scales belong to columns is no such row.
    assert!(tacit(&["quantize", &dense, "--format", "int8:columns", "-o", &packed]).status.success());
    expect![[r#"
        parameters           of them  value             call       taken by                         bytes built
        embed_tokens.weight        1  Int8(f32[32,64])  x @ w.T    linear_transpose, linear_matmul
        embed_tokens.weight        1  Int8(f32[32,64])  w[tokens]                                          8192
        embed_tokens.weight declined: linear_gather: only whole rows are gathered from packed codes
        2 calls for tokens [1,1], 1 arrays materialized (8192 bytes)
    "#]]
    .assert_eq(&folder.said(&["explain", &packed, "--deny"], 1));
    assert!(tacit(&["explain", &packed]).status.success());
    assert!(tacit(&["explain", &dense, "--deny"]).status.success());
}

#[test]
fn layers_are_compared_by_what_they_give() {
    let folder = Folder::new();
    let (dense, packed) = (folder.layers(2), folder.at("packed.safetensors"));
    assert!(tacit(&["quantize", &dense, "--format", "affine:8:64", "-o", &packed]).status.success());
    let (inputs, svg) = (folder.at("inputs.safetensors"), folder.at("errors.svg"));
    let ramp = ops::arange::<_, f32>(0, 512, None).expect("a ramp").reshape(&[2, 256]).expect("rows");
    save(&inputs, &Parameters::from([("layers.1.weight".to_owned(), ramp.into())])).expect("saves");
    let output = tacit(&["compare", &dense, &packed, "--inputs", &inputs, "--svg", &svg, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    for row in json["parameters"].as_array().expect("rows") {
        let error = |of: &str| row[of]["error"].as_f64();
        let given = row["path"] == "layers.1.weight";
        assert!(error("distance").is_some_and(|error| error > 1e-4 && error < 0.02), "{row}");
        assert_eq!(error("outputs").is_some_and(|error| error > 1e-6 && error < 0.02), given, "{row}");
    }
    let svg = fs::read_to_string(svg).expect("drawn");
    assert!(svg.starts_with("<svg") && svg.contains("What layers give") && svg.contains("layers.0.weight"), "{svg}");
    let output = tacit(&["compare", &dense, &packed, "--outputs", "--max-error", "0.02"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && text.contains("of outputs: error") && text.lines().count() == 3, "{text}");
    let wrong = Parameters::from([("layers.0.weight".to_owned(), ops::ones::<f32>(&[2, 3]).expect("ones").into())]);
    save(&inputs, &wrong).expect("saves");
    expect![[r#"
        error: FOLDER/inputs.safetensors: layers.0.weight: the layer takes 256 numbers, and its inputs are f32[2,3]
        help: give floats whose last axis is that of the weight
    "#]]
    .assert_eq(&folder.said(&["compare", &dense, &packed, "--inputs", &inputs], 1));
}

/// A GGUF file, the folder of Hugging Face that it was made of, and what is written of it have the same parameters.
#[test]
fn models_of_several_programs_have_the_same_names() {
    let folder = Folder::new();
    let golden = |name: &str| format!("{}/../../tests/decoder/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let (file, own) = (golden("gguf/qwen3_moe.gguf"), golden("gguf/qwen3_moe"));
    let mut said = String::new();
    for target in ["tacit", "mlx-lm", "hugging-face"] {
        let made = folder.at(target);
        said += &String::from_utf8(tacit(&["convert", &file, "--as", target, "-o", &made]).stdout).expect("text");
        for (a, b) in [(&file, &made), (&made, &own)] {
            let output = tacit(&["compare", a, b, "--max-error", "0"]);
            let said = String::from_utf8(output.stdout).expect("text");
            assert_eq!((output.status.code(), said.contains("only in")), (Some(0), false), "{said}");
        }
    }
    for (at, source) in [&file, &own, &folder.at("tacit"), &folder.at("mlx-lm")].into_iter().enumerate() {
        let made = folder.at(&format!("{at}.gguf"));
        said += &String::from_utf8(tacit(&["convert", source, "--as", "gguf", "-o", &made]).stdout).expect("text");
        assert_eq!(tacit(&["compare", &file, &made, "--max-error", "0"]).status.code(), Some(0), "{source}");
    }
    expect![[r#"
        26 parameters, 34752 bytes before, 34752 after
        26 parameters, 34752 bytes before, 34752 after
        44 parameters, 34752 bytes before, 34752 after
        26 parameters, 34752 bytes before, 37120 after
        44 parameters, 17376 bytes before, 20224 after
        26 parameters, 34752 bytes before, 37120 after
        26 parameters, 34752 bytes before, 37120 after
    "#]]
    .assert_eq(&said);
    // What a device takes of it is not counted.
    let said = tacit(&["convert", &file, "--as", "gguf", "-o", "/dev/null"]).stdout;
    assert_eq!(String::from_utf8(said).expect("text"), "26 parameters, 34752 bytes before\n");
    let rules = folder.at("rules.json");
    assert_eq!(tacit(&["advise", &file, "--bits", "8", "--formats", "nf4:64", "-o", &rules]).status.code(), Some(0));
    for input in [&file, &folder.at("mlx-lm")] {
        let arguments = ["quantize", input, "--rules", &rules, "-o", &folder.at("packed.safetensors"), "--force"];
        assert_eq!(tacit(&arguments).status.code(), Some(0), "{input}");
    }
    let strange = folder.at("strange.json");
    fs::write(&strange, r#"{"blk.*.ffn_up.weight": "nf4:64"}"#).expect("writes");
    fs::write(folder.at("own.json"), r#"{"blk.*.ffn_up_exps.weight": "nf4:64"}"#).expect("writes");
    let arguments = ["quantize", &file, "--rules", &folder.at("own.json"), "-o", &folder.at("own.safetensors")];
    let said = String::from_utf8(tacit(&arguments).stdout).expect("text");
    let quantized =
        said.lines().filter(|line| line.contains("Nf4(") && line.contains(".mlp.switch_mlp.up_proj.weight "));
    assert_eq!(quantized.count(), 2, "{said}");
    let dense = folder.checkpoint();
    let refused: [&[&str]; 7] = [
        &["convert", &file, "--as", "gguf", "--format", "q4_9", "-o", &folder.at("none.gguf")],
        &["convert", &file, "--as", "gguf", "--format", "q6_k", "-o", &folder.at("none.gguf")],
        &["convert", &file, "--as", "mlx-lm", "--format", "q8_0", "-o", &folder.at("none")],
        &["convert", &dense, "--as", "gguf", "-o", &folder.at("none.gguf")],
        &["compare", &file, &dense],
        &["quantize", &dense, "--rules", &strange, "-o", &folder.at("none.safetensors")],
        &["convert", &dense, "--as", "hugging-face", "-o", &folder.at("none")],
    ];
    let said = refused.map(|arguments| {
        let output = tacit(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).expect("text").replace(folder.0.path().to_str().expect("text"), "FOLDER")
    });
    expect![[r#"
        error: GGUF has no type q4_9
        help: take one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        error: there is no quantizing to Q6_K
        help: take one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1 and q8_0
        error: `--format` is a type of GGUF, and another checkpoint is written
        help: leave it out, or quantize by `tacit quantize` first
        error: FOLDER/none.gguf: nothing says of what model it would be: FOLDER has no config.json
        help: name a GGUF file, or the folder of a model with its config.json
        error: the two have no parameter in common: a begins with model.embed_tokens.weight, b with layer.bias
        help: compare two checkpoints of one model; `tacit inspect` lists their parameters
        error: no rule gives a parameter of FOLDER/dense.safetensors a format: the first is layer.bias
        help: name parameters as `tacit inspect` lists them, or, of a GGUF file, as the file does
        error: FOLDER/none/model.safetensors: nothing says of what model it would be: FOLDER has no config.json
        help: name a GGUF file, or the folder of a model with its config.json
    "#]]
    .assert_eq(&said.concat());
    let packed = folder.at("k.safetensors");
    let wide = Parameters::from([("a.weight".to_owned(), ops::ones::<f32>(&[8, 256]).expect("ones").into())]);
    save(folder.at("wide.safetensors"), &wide).expect("saves");
    assert_eq!(
        tacit(&["quantize", &folder.at("wide.safetensors"), "--format", "k:6", "-o", &packed]).status.code(),
        Some(0)
    );
    expect![[r#"
        1 parameters, 1696 bytes before, 8192 after
        1 are floats now: mlx-lm does not have their format
    "#]]
    .assert_eq(&folder.said(&["convert", &packed, "--as", "mlx-lm", "-o", &folder.at("floats")], 0));
    expect![[r#"
        1 parameters, 1696 bytes before, 8192 after
        1 are floats now
    "#]]
    .assert_eq(&folder.said(&["convert", &packed, "--as", "floats", "-o", &folder.at("floats.safetensors")], 0));
}

/// They are one parameter for mlx-lm.
#[test]
fn experts_of_a_layer_are_counted_once() {
    let folder = Folder::new();
    let experts = folder.at("experts");
    fs::create_dir(&experts).expect("makes a folder");
    fs::write(folder.at("experts/config.json"), r#"{"model_type": "qwen3_moe"}"#).expect("writes");
    let expert = |expert| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
    let wide = ops::ones::<f32>(&[8, 64]).expect("ones");
    let codes = || tacit_arrays::Nf4Array::quantize(&wide, 64).expect("whole blocks");
    let parameters: Parameters = (0..3).map(|number| (expert(number), codes().into())).collect();
    save(folder.at("experts/model.safetensors"), &parameters).expect("saves");
    expect![[r#"
        1 parameters, 864 bytes before, 6144 after
        1 are floats now: mlx-lm does not have their format
    "#]]
    .assert_eq(&folder.said(&["convert", &experts, "--as", "mlx-lm", "-o", &folder.at("of_experts")], 0));
}

/// A checkpoint of two experts as Hugging Face has them.
fn experts(folder: &Folder) -> String {
    let path = folder.at("experts.safetensors");
    let expert = |expert: u64| {
        let weight =
            random::normal::<f32>(&[8, 64], None, None, &random::key(expert).expect("a key")).expect("numbers");
        (format!("model.layers.0.mlp.experts.{expert}.up_proj.weight"), weight.into())
    };
    save(&path, &(0..2).map(expert).collect()).expect("saves");
    path
}

/// Rules name experts as either library does, and those that name nothing are told.
#[test]
fn rules_name_experts_as_either_library_does() {
    let folder = Folder::new();
    let (path, rules, made) = (experts(&folder), folder.at("rules.json"), folder.at("made.safetensors"));
    let outputs =
        ["model.layers.0.mlp.switch_mlp.up_proj.weight", "model.layers.*.mlp.experts.*.up_proj.weight"].map(|named| {
            let text = format!("{{\"{named}\": \"affine:8:64\", \"model.layers.7.*\": \"nf4:64\"}}");
            fs::write(&rules, text).expect("writes");
            tacit(&["quantize", &path, "--rules", &rules, "-o", &made, "--force"])
        });
    let said = String::from_utf8_lossy(&outputs[0].stdout);
    expect![[r#"
        parameter                                    value                error  before  after
        model.layers.0.mlp.experts.0.up_proj.weight  Affine(f32[8,64])  0.00518    2048    576
        model.layers.0.mlp.experts.1.up_proj.weight  Affine(f32[8,64])  0.00517    2048    576
        4096 bytes before, 1152 after
        these rules name no parameter: model.layers.7.*
    "#]]
    .assert_eq(&said);
    assert_eq!(outputs[1].stdout, outputs[0].stdout);
}

/// What is made of a hybrid decoder is one that loads, whatever the format.
#[test]
fn filters_of_a_hybrid_decoder_stay_floats() {
    let folder = Folder::new();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/float/qwen3_next");
    fs::copy(golden.join("config.json"), folder.at("config.json")).expect("copies");
    let (golden, output) = (golden.to_str().expect("text"), folder.at("model.safetensors"));
    for format in ["int8", "nf4:32", "k:4", "ternary"] {
        let made = tacit(&["quantize", golden, "--format", format, "-o", &output, "--force"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let table = String::from_utf8(made.stdout).expect("text");
        let row =
            table.lines().find(|row| row.starts_with("model.layers.0.linear_attn.conv1d.weight ")).expect("a row");
        assert!(row.contains("[64,1,4] ") && row.ends_with("  it is no matrix"), "{row}");
        let loaded = tacit_models::load(&folder.0);
        assert!(loaded.is_ok(), "{format}: {}", loaded.err().map(|error| error.to_string()).unwrap_or_default());
    }
    let rules = folder.at("advised.json");
    let advised = tacit(&["advise", golden, "--bits", "8.5", "--formats", "int8,nf4:32", "-o", &rules]);
    assert!(advised.status.success(), "{}", String::from_utf8_lossy(&advised.stderr));
    assert!(!fs::read_to_string(rules).expect("reads").contains("conv1d"));
}

/// Inputs of a parameter that is no layer would be a comparison that nobody made.
#[test]
fn inputs_of_no_layer_are_refused() {
    let folder = Folder::new();
    let (path, inputs) = (folder.checkpoint(), folder.at("inputs.safetensors"));
    let x = ops::ones::<f32>(&[2, 64]).expect("ones");
    save(&inputs, &Parameters::from([("layer.wieght".to_owned(), x.into())])).expect("saves");
    expect![[r#"
        error: FOLDER/inputs.safetensors: layer.wieght: a has no such parameter
        help: name inputs by the weights of the layers, as `tacit inspect` lists them
    "#]]
    .assert_eq(&folder.said(&["compare", &path, &path, "--inputs", &inputs, "--max-error", "0.1"], 1));
}

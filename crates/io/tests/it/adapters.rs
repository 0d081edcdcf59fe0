//! Adapters that mlx-lm and PEFT trained.

use std::fs;
use std::path::Path;

use mlx_rs::{Array, Dtype};
use tacit_arrays::format::Parts;
use tacit_arrays::{AffineArray, Dora, Lora};
use tacit_core::{Aval, Policy, Value};
use tacit_io::json::Json;
use tacit_io::{Metadata, Tensors, hugging_face, mlx_adapter, mlx_lm, peft, write};
use tacit_nn::Parameters;

use crate::golden::{assert_reads, assert_same_tensors, golden};
use crate::scratch::Scratch;

/// A value in f32, in which the adapters of the goldens were merged.
fn wide((name, value): (String, Value)) -> (String, Value) {
    let f32 = |array: &Array| array.as_dtype(Dtype::Float32).expect("casts");
    let value = match value.downcast::<AffineArray>() {
        None => f32(&value.dense().expect("dense")).into(),
        Some(array) => {
            let biases = array.biases().map(f32);
            let scales = Some(f32(&array.scales().expect("scales").dense().expect("dense")).into());
            let parts = Parts { codes: array.codes().clone(), scales, biases, global_scale: None };
            let aval = Aval { dtype: Dtype::Float32, ..value.aval().expect("an aval") };
            AffineArray::from_parts(parts, *array.format(), aval).expect("fits").into()
        }
    };
    (name, value)
}

fn float() -> Parameters {
    hugging_face::read(golden("mlx_lm/shards")).expect("reads").into_iter().map(wide).collect()
}

fn quantized() -> Parameters {
    mlx_lm::read(golden("mlx_lm/uniform")).expect("reads").into_iter().map(wide).collect()
}

/// The model of each adapter of mlx-lm's.
fn of_mlx_lm() -> [(&'static str, Parameters); 4] {
    [("lora", float()), ("dora", float()), ("qlora", quantized()), ("qdora", quantized())]
}

fn adapted(parameters: &Parameters) -> Parameters {
    let kept = |(_, value): &(&String, &Value)| ["Lora", "Dora"].iter().any(|kind| value.to_string().starts_with(kind));
    parameters.iter().filter(kept).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path.join("adapter_config.json")).expect("reads")
}

#[test]
fn adapters_of_mlx_lm_merge_to_what_mlx_lm_merges_them_to() {
    for (name, model) in of_mlx_lm() {
        let folder = golden(&format!("mlx_lm/adapters/{name}"));
        let read = {
            let _deny = Policy::Deny.scope();
            mlx_adapter::read(folder, &model).expect("reads without building the model")
        };
        assert_eq!(read.len(), model.len());
        assert_reads(&adapted(&read), &format!("mlx_lm/adapters/{name}_expected.safetensors"), 1e-6);
    }
}

#[test]
fn adapters_of_mlx_lm_are_written_as_they_were_read() {
    let scratch = Scratch::new();
    for (name, model) in of_mlx_lm() {
        let (theirs, ours) = (golden(&format!("mlx_lm/adapters/{name}")), scratch.join(name));
        let config = Json::open(theirs.join("adapter_config.json")).expect("reads");
        let read = mlx_adapter::read(&theirs, &model).expect("reads");
        mlx_adapter::write(&ours, &read, &config).expect("writes");
        assert_same_tensors(&theirs.join("adapters.safetensors"), &ours.join("adapters.safetensors"));
        assert_eq!(text(&theirs), text(&ours));
    }
}

#[test]
fn a_model_that_mlx_lm_trained_as_a_whole_is_read_and_written() {
    let (scratch, theirs) = (Scratch::new(), golden("mlx_lm/adapters/full"));
    let read = mlx_adapter::read(&theirs, &float()).expect("reads");
    let config = Json::open(theirs.join("adapter_config.json")).expect("reads");
    let trained = |name: &String| name.contains("self_attn");
    assert_eq!(read["model.layers.0.self_attn.q_proj.weight"].to_string(), "bf16[32,32]");
    let trained: Parameters = read.into_iter().filter(|(name, _)| trained(name)).collect();
    mlx_adapter::write(&*scratch, &trained, &config).expect("writes");
    assert_same_tensors(&theirs.join("adapters.safetensors"), &scratch.join("adapters.safetensors"));
    assert_eq!(text(&theirs), text(&scratch));
}

#[test]
fn an_adapter_without_a_configuration_gets_one_that_mlx_lm_reads() {
    let scratch = Scratch::new();
    let read = mlx_adapter::read(golden("mlx_lm/adapters/qdora"), &quantized()).expect("reads");
    mlx_adapter::write(&*scratch, &read, &Json::Object(Vec::new())).expect("writes");
    expect_test::expect![[r#"
        {
            "fine_tune_type": "dora",
            "lora_parameters": {
                "rank": 4,
                "scale": 20.0,
                "dropout": 0.0,
                "keys": [
                    "self_attn.q_proj",
                    "self_attn.v_proj"
                ]
            },
            "num_layers": 1
        }"#]]
    .assert_eq(&text(&scratch));
}

#[test]
fn adapters_of_peft_merge_to_what_peft_merges_them_to_and_are_written_as_they_were_read() {
    let scratch = Scratch::new();
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    for name in ["lora", "rslora", "dora"] {
        let (theirs, ours) = (golden(&format!("peft/{name}")), scratch.join(name));
        let read = peft::read(&theirs, &model).expect("reads");
        assert_reads(&adapted(&read), &format!("peft/{name}_expected.safetensors"), 1e-6);

        let config = Json::open(theirs.join("adapter_config.json")).expect("reads");
        peft::write(&ours, &read, &config).expect("writes");
        assert_eq!(text(&theirs), text(&ours));
        let file = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).expect("reads");
        assert!(file(&theirs) == file(&ours), "{name} is the same bytes");
    }
}

#[test]
fn an_adapter_goes_from_one_library_to_the_other() {
    let scratch = Scratch::new();
    let model = float();
    let read = mlx_adapter::read(golden("mlx_lm/adapters/lora"), &model).expect("reads");
    peft::write(&*scratch, &read, &Json::Object(Vec::new())).expect("writes");
    expect_test::expect![[r#"
        {
          "alpha_pattern": {},
          "base_model_name_or_path": null,
          "bias": "none",
          "inference_mode": true,
          "lora_alpha": 80,
          "lora_dropout": 0.0,
          "peft_type": "LORA",
          "r": 4,
          "rank_pattern": {},
          "target_modules": [
            "model.embed_tokens",
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.v_proj"
          ],
          "task_type": null,
          "use_dora": false
        }"#]]
    .assert_eq(&text(&scratch));
    let again = peft::read(&*scratch, &model).expect("reads");
    for (name, value) in adapted(&read) {
        let (value, again) = (value.dense().unwrap(), again[&name].dense().unwrap());
        assert!(value.eq_values(again).unwrap(), "{name}");
    }
}

/// A copy of a golden folder with a setting of its own, and with these tensors alone.
fn changed(folder: &str, setting: Option<(&str, Json)>, kept: impl Fn(&str) -> bool) -> Scratch {
    let (from, to) = (golden(folder), Scratch::new());
    let mut config = Json::open(from.join("adapter_config.json")).expect("reads");
    if let Some((key, value)) = setting {
        config.set(key, value);
    }
    fs::write(to.join("adapter_config.json"), config.line()).expect("writes");
    for name in ["adapter_model.safetensors", "adapters.safetensors"] {
        if let Ok(tensors) = Tensors::open(from.join(name)) {
            let kept = tensors.names().filter(|name| kept(name));
            let kept = kept.map(|name| (name.to_owned(), tensors.get(name).expect("reads"))).collect();
            write(to.join(name), kept, tensors.metadata()).expect("writes");
        }
    }
    to
}

fn words(text: &str) -> Json {
    Json::Text(text.to_owned())
}

/// What changes the base or when the adapter is on is refused by its name, read or written.
#[test]
fn settings_of_peft_that_change_the_result_are_refused() {
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    let list = || Json::List(vec![Json::List(vec![Json::Integer(0), Json::Integer(1)])]);
    let mut settings: Vec<(&str, Json)> = ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "unheard"]
        .map(|text| ("init_lora_weights", words(text)))
        .into();
    settings.extend([("alora_invocation_tokens", list()), ("layer_replication", list())]);
    let object = Json::Object(vec![("nblocks".to_owned(), Json::Integer(2))]);
    settings.extend([("use_qalora", Json::Bool(true)), ("lora_bias", Json::Bool(true))]);
    settings.extend([("use_bdlora", object.clone()), ("kasa_config", object)]);
    let mut messages = Vec::new();
    for (key, value) in settings {
        let folder = changed("peft/lora", Some((key, value)), |_| true);
        let error = peft::read(&*folder, &model).expect_err("refused");
        messages.push(folder.message(&error).lines().next().unwrap_or_default().to_owned());
        let config = Json::open(folder.join("adapter_config.json")).expect("reads");
        let lora = peft::read(golden("peft/lora"), &model).expect("reads");
        let other = Scratch::new();
        peft::write(&*other, &lora, &config).expect_err("refused as well");
        assert!(other.names().is_empty(), "nothing is written");
    }
    expect_test::expect![[r#"
        FOLDER/adapter_config.json: init_lora_weights: it is "pissa", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "pissa_niter_4", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "olora", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "corda", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "loftq", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "lora_ga", which changes the weights under the adapter
        FOLDER/adapter_config.json: init_lora_weights: it is "unheard", which changes the weights under the adapter
        FOLDER/adapter_config.json: alora_invocation_tokens: it changes what the adapter does, and is not read
        FOLDER/adapter_config.json: layer_replication: it changes what the adapter does, and is not read
        FOLDER/adapter_config.json: use_qalora: it is not read
        FOLDER/adapter_config.json: lora_bias: it is not read
        FOLDER/adapter_config.json: use_bdlora: it changes what the adapter does, and is not read
        FOLDER/adapter_config.json: kasa_config: it changes what the adapter does, and is not read"#]].assert_eq(&messages.join("\n"));
    for value in [Json::Null, Json::Bool(true), Json::Bool(false), words("gaussian"), words("eva")] {
        let folder = changed("peft/lora", Some(("init_lora_weights", value.clone())), |_| true);
        assert!(peft::read(&*folder, &model).is_ok(), "{value}");
    }
}

/// An adapter of which a part is missing is another one.
#[test]
fn folders_that_lack_an_adapter_are_refused() {
    type Read = fn(&Path, &Parameters) -> tacit_core::Result<Parameters>;
    let libraries: [(&str, Parameters, Read); 2] = [
        ("peft/lora", hugging_face::read(golden("peft/base.safetensors")).expect("reads"), |f, m| peft::read(f, m)),
        ("mlx_lm/adapters/lora", float(), |f, m| mlx_adapter::read(f, m)),
    ];
    let mut messages = Vec::new();
    for (folder, model, read) in libraries {
        for lost in ["q_proj", "embed_tokens", ""] {
            let folder = changed(folder, None, |name| !name.contains(lost));
            let error = read(&folder, &model).expect_err("refused");
            messages.push(folder.message(&error));
        }
        assert!(read(&changed(folder, None, |_| true), &model).is_ok());
    }
    expect_test::expect![[r#"
        FOLDER/adapter_model.safetensors: it has no adapter of q_proj.weight, which target_modules of FOLDER/adapter_config.json names
        help: fetch the folder again, or name in target_modules what is adapted
        FOLDER/adapter_model.safetensors: it has no adapter of embed_tokens.weight, which target_modules of FOLDER/adapter_config.json names
        help: fetch the folder again, or name in target_modules what is adapted
        FOLDER/adapter_model.safetensors: it has no adapter at all
        help: fetch the folder again
        FOLDER/adapters.safetensors: it has no adapter of model.layers.0.self_attn.q_proj, which FOLDER/adapter_config.json names
        help: fetch the folder again, or set `keys` and `num_layers` as it was trained
        FOLDER/adapters.safetensors: it has no adapter of model.embed_tokens, which FOLDER/adapter_config.json names
        help: fetch the folder again, or set `keys` and `num_layers` as it was trained
        FOLDER/adapters.safetensors: it has no adapter at all
        help: fetch the folder again"#]].assert_eq(&messages.join("\n"));
}

/// Numbers of this shape: `from` and those after it.
pub(crate) fn numbers(shape: &[i32], from: f32) -> Array {
    let count = shape.iter().product::<i32>();
    Array::from_slice(&(0..count).map(|at| from + at as f32 / 8.0).collect::<Vec<_>>(), shape)
}

/// With PEFT the magnitudes are those of the outputs, whichever axis they lie along.
#[test]
fn magnitudes_of_columns_are_not_taken_for_those_of_rows() {
    let folder = Scratch::new();
    let model = Parameters::from([("c_proj.weight".to_owned(), numbers(&[4, 4], 1.0).into())]);
    let prefix = "base_model.model.c_proj";
    let tensors = vec![
        (format!("{prefix}.lora_A.weight"), numbers(&[2, 4], 0.5)),
        (format!("{prefix}.lora_B.weight"), numbers(&[4, 2], 0.25)),
        (format!("{prefix}.lora_magnitude_vector"), numbers(&[4], 2.0)),
    ];
    write(folder.join("adapter_model.safetensors"), tensors, &Metadata::new()).expect("writes");
    let config = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "use_dora": true, "fan_in_fan_out": true}"#;
    folder.file("adapter_config.json", config);
    let read = peft::read(&*folder, &model).expect_err("has a magnitude for each column");
    // And an embedding, which has a magnitude for each row with mlx-lm, or a weight as [in, out].
    let dora = Dora::new(numbers(&[4, 4], 1.0), numbers(&[2, 4], 0.5), numbers(&[4, 2], 0.25), 2.0).expect("fits");
    let tuned = |name: &str| Parameters::from([(name.to_owned(), dora.clone().into())]);
    let none = Json::Object(Vec::new());
    let embedding = peft::write(folder.join("written"), &tuned("embed_tokens.weight"), &none).expect_err("refused");
    let config = Json::parse(config).expect("JSON");
    let by_column = peft::write(folder.join("written"), &tuned("c_proj.weight"), &config).expect_err("refused");
    assert!(!folder.join("written").exists());
    expect_test::expect![[r#"
        FOLDER/adapter_config.json: use_dora: c_proj has its weight as [in, out], and a magnitude for each of its columns
        help: merge the adapter into the model by PEFT, and read the model
        FOLDER/written/adapter_model.safetensors: embed_tokens.weight: PEFT has a magnitude for each of its columns, and a Dora has one for each row
        help: merge it, or write it by `mlx_adapter::write`
        FOLDER/written/adapter_model.safetensors: c_proj.weight: PEFT has a magnitude for each of its columns, and a Dora has one for each row
        help: merge it, or write it by `mlx_adapter::write`"#]].assert_eq(&[read, embedding, by_column].map(|error| folder.message(&error)).join("\n"));
}

/// A folder of PEFT's with more tensors in its file.
fn with(more: impl FnOnce(&Tensors) -> Vec<(String, Array)>) -> Scratch {
    let folder = changed("peft/lora", None, |_| true);
    let file = folder.join("adapter_model.safetensors");
    let tensors = Tensors::open(&file).expect("opens");
    let own = tensors.names().map(|name| (name.to_owned(), tensors.get(name).expect("reads")));
    write(&file, own.chain(more(&tensors)).collect(), tensors.metadata()).expect("writes");
    folder
}

#[test]
fn an_embedding_that_peft_saved_beside_its_adapter_is_the_base() {
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    let saved = numbers(&model["embed_tokens.weight"].aval().expect("an aval").shape, 3.0);
    let folder = with(|_| vec![("base_model.model.embed_tokens.base_layer.weight".to_owned(), saved.clone())]);
    let read = peft::read(&*folder, &model).expect("reads");
    let lora = read["embed_tokens.weight"].downcast::<Lora>().expect("is adapted");
    let change = lora.b().matmul(lora.a()).and_then(|product| product.multiply(Array::from_f32(lora.scale())));
    let expected = change.and_then(|change| change.add(&saved)).expect("adds");
    let found = read["embed_tokens.weight"].dense().expect("dense");
    assert!(found.all_close(&expected, 1e-5, 1e-5, None).expect("compares"));
    // What the model has no place for is an error as before.
    let tensors = vec![("base_model.model.other.base_layer.bias".to_owned(), numbers(&[4], 0.0))];
    write(folder.join("adapter_model.safetensors"), tensors, &Metadata::new()).expect("writes");
    let error = peft::read(&*folder, &model).expect_err("is of no module");
    assert!(folder.message(&error).contains("the model has no other.bias"), "{error}");
}

#[test]
fn a_module_that_peft_s_file_has_by_two_names_is_refused() {
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    let folder = with(|tensors| {
        let own = |end: &str| tensors.get(&format!("base_model.model.q_proj.{end}")).expect("is there");
        ["lora_A.weight", "lora_B.weight"].map(|end| (format!("q_proj.{end}"), own(end))).into()
    });
    let error = peft::read(&*folder, &model).expect_err("is there twice");
    let said = "base_model.model.q_proj.lora_A.weight: it is there without base_model.model. as well\n";
    assert!(folder.message(&error).contains(said), "{error}");
}

#[test]
fn a_module_that_peft_s_file_adapts_as_a_matrix_and_as_an_embedding_is_refused() {
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    let folder = with(|_| {
        let adapter = [("lora_embedding_A", [4, 32]), ("lora_embedding_B", [24, 4])];
        adapter.map(|(end, shape)| (format!("base_model.model.q_proj.{end}"), numbers(&shape, 0.5))).into()
    });
    let error = peft::read(&*folder, &model).expect_err("has two adapters");
    let said = "q_proj.lora_embedding_A: it is the adapter of an embedding, and q_proj has that of a matrix as well\n";
    assert!(folder.message(&error).contains(said), "{error}");
}

/// An adapter of rank 2 and scale 2 over a matrix.
pub(crate) fn lora(shape: [i32; 2]) -> Value {
    let [outputs, inputs] = shape;
    Lora::new(numbers(&shape, 1.0), numbers(&[2, inputs], 0.5), numbers(&[outputs, 2], 0.25), 4.0).expect("fits").into()
}

#[test]
fn what_a_library_does_not_have_is_not_written() {
    let folder = Scratch::new();
    let path = folder.join("written");
    let of = |parts: &[(&str, Value)]| -> Parameters {
        parts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    };
    let dora = Dora::new(numbers(&[8, 8], 1.0), numbers(&[2, 8], 0.5), numbers(&[8, 2], 0.25), 4.0).expect("fits");
    let wider = Lora::new(numbers(&[8, 8], 1.0), numbers(&[4, 8], 0.5), numbers(&[8, 4], 0.25), 4.0).expect("fits");
    let (one, none) = (lora([8, 8]), Json::Object(Vec::new()));
    let full = Json::parse(r#"{"fine_tune_type": "full"}"#).expect("JSON");
    let refused = [
        peft::write(&path, &of(&[("a.weight", one.clone()), ("b.weight", dora.into())]), &none),
        peft::write(&path, &of(&[("a.bias", one.clone())]), &none),
        mlx_adapter::write(&path, &of(&[("a.weight", one.clone()), ("b.weight", wider.into())]), &none),
        mlx_adapter::write(&path, &of(&[("a.weight", one.clone())]), &full),
        hugging_face::write(folder.join("model.safetensors"), of(&[("a.weight", one)])),
    ];
    let said = refused.map(|outcome| folder.message(&outcome.expect_err("is refused")));
    expect_test::expect![[r"
        FOLDER/written/adapter_model.safetensors: b.weight: its kind is not that of a.weight
        help: PEFT has LoRA or DoRA for all modules: write the others by themselves
        FOLDER/written/adapter_model.safetensors: a.bias: an adapter of PEFT's cannot hold Lora(f32[8,8])
        help: adapt the `weight` of a module, as the module has it
        FOLDER/written/adapters.safetensors: b.weight: its rank, scale or kind is not that of a.weight
        help: mlx-lm has one for all modules: write the others by themselves, or all by `peft::write`
        FOLDER/written/adapters.safetensors: a.weight: a model trained as a whole cannot hold Lora(f32[8,8])
        help: write adapters as `lora` or `dora`, and a quantized model by `mlx_lm::write`
        FOLDER/model.safetensors: a.weight: a float checkpoint cannot hold Lora(f32[8,8])
        help: make it dense by `tacit::io::dense`, or write it in a format that has it"]]
    .assert_eq(&said.join("\n"));
    assert!(!path.exists());
}

/// A library makes adapters of the modules that the configuration names, and of no others.
#[test]
fn a_configuration_of_fewer_modules_does_not_fit() {
    let scratch = Scratch::new();
    let name = |module: &str| format!("model.layers.0.self_attn.{module}.weight");
    let tuned: Parameters = ["q_proj", "v_proj"].map(|module| (name(module), lora([8, 8]))).into();
    let names = r#""model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj""#;
    let of_peft = |said: &str| format!(r#"{{"peft_type": "LORA", "r": 2, "lora_alpha": 4, {said}}}"#);
    for (said, stays) in [
        (r#""target_modules": ["q_proj", "v_proj"]"#, true),
        (r#""target_modules": ".*_proj""#, true),
        (r#""target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0]"#, true),
        (r#""target_modules": ["q_proj"]"#, false),
        (r#""target_modules": ["proj"]"#, false),
        (r#""target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]"#, false),
        (r#""target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]"#, false),
        (r#""base_model_name_or_path": null"#, false),
    ] {
        let config = Json::parse(&of_peft(said)).expect("JSON");
        peft::write(scratch.join("peft"), &tuned, &config).expect("writes");
        let written = Json::open(scratch.join("peft/adapter_config.json")).expect("reads");
        assert_eq!(written == config, stays, "{said}");
        if !stays {
            assert_eq!(written.get("target_modules").map(Json::line), Some(format!("[{names}]")), "{said}");
            assert!(written.get("layers_to_transform").or(written.get("exclude_modules")).is_none(), "{said}");
        }
    }
    let of_mlx = |said: &str| {
        let parameters = format!(r#"{{"rank": 2, "scale": 2.0, "dropout": 0.0{said}}}"#);
        format!(r#"{{"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": {parameters}}}"#)
    };
    for (said, stays) in [
        (r#", "keys": ["self_attn.q_proj", "self_attn.v_proj"]"#, true),
        ("", true),
        (r#", "keys": ["self_attn.q_proj"]"#, false),
    ] {
        let config = Json::parse(&of_mlx(said)).expect("JSON");
        mlx_adapter::write(scratch.join("mlx"), &tuned, &config).expect("writes");
        let written = Json::open(scratch.join("mlx/adapter_config.json")).expect("reads");
        assert_eq!(written == config, stays, "{said}");
        let keys = written.get("lora_parameters").and_then(|lora| lora.get("keys"));
        assert!(stays || keys.map(Json::line) == Some(format!("[{names}]")), "{written}");
    }
}

#[test]
fn the_head_of_a_gpt_neox_is_no_embedding() {
    let scratch = Scratch::new();
    let tuned = Parameters::from([("embed_out.weight".to_owned(), lora([16, 8]))]);
    peft::write(scratch.join("peft"), &tuned, &Json::Object(Vec::new())).expect("writes");
    let tensors = Tensors::open(scratch.join("peft/adapter_model.safetensors")).expect("opens");
    assert_eq!(tensors.aval("base_model.model.embed_out.lora_A.weight").expect("is there").shape, [2, 8]);
    mlx_adapter::write(scratch.join("mlx"), &tuned, &Json::Object(Vec::new())).expect("writes");
    let tensors = Tensors::open(scratch.join("mlx/adapters.safetensors")).expect("opens");
    assert_eq!(tensors.aval("embed_out.lora_a").expect("is there").shape, [8, 2]);
}

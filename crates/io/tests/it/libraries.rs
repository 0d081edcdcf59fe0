//! Models through the files of other libraries: what a model computes is what it computed.

use mlx_rs::module::Module;
use mlx_rs::{Array, nn, ops, random};
use tacit_arrays::Lora;
use tacit_arrays::format::{Affine, Nf4};
use tacit_core::{Policy, Value};
use tacit_io::json::Json;
use tacit_io::mlx_lm::ConfigFile;
use tacit_io::{bitsandbytes, mlx_adapter, mlx_lm, peft};
use tacit_nn::{LoraConfig, Method, Missing, Model, Parameters};

use crate::models::dense;
use crate::scratch::Scratch;

fn forward(model: &mut Model<nn::Sequential>) -> Array {
    let _deny = Policy::Deny.scope();
    let x = ops::ones::<f32>(&[2, 64]).expect("ones");
    let y = model.forward(&x).expect("nothing is built");
    y.eval().expect("evaluates");
    y
}

#[test]
fn a_quantized_model_computes_the_same_through_mlx_lm_and_bitsandbytes() {
    let folder = Scratch::new();
    let mut of_mlx = dense().quantize("*.weight", Affine { bits: 4, group: 32 }).expect("quantizes");
    mlx_lm::write(&*folder, &of_mlx.values().unwrap(), &ConfigFile::new(Json::Object(Vec::new()))).expect("writes");
    let mut again = dense();
    again.assign(mlx_lm::read(&*folder).expect("reads"), Missing::Refuse).expect("fits");
    assert!(forward(&mut again).eq_values(forward(&mut of_mlx)).unwrap());

    let path = folder.join("bitsandbytes.safetensors");
    let mut of_bnb = dense().quantize("*.weight", Nf4 { block: 64, double: true }).expect("quantizes");
    bitsandbytes::write(&path, of_bnb.values().unwrap(), bitsandbytes::BitsAndBytesLayout::default()).expect("writes");
    again.assign(bitsandbytes::read(&path).expect("reads"), Missing::Refuse).expect("fits");
    assert!(forward(&mut again).eq_values(forward(&mut of_bnb)).unwrap());
}

#[test]
fn a_trained_adapter_computes_the_same_through_mlx_lm_and_peft() {
    let folder = Scratch::new();
    let base = dense().quantize("*.weight", Nf4 { block: 64, double: false }).expect("quantizes").values().unwrap();
    let with = |parameters: Parameters| {
        let mut model = dense();
        model.assign(parameters, Missing::Refuse).expect("fits");
        model
    };
    let config = LoraConfig { rank: 4, alpha: 6.0, ..LoraConfig::default() };
    for method in [Method::Lora, Method::Dora] {
        let config = LoraConfig { method, ..config.clone() };
        let mut tuned = with(base.clone()).lora("*.weight", config).expect("adapts");
        // As if it were trained: the second factors begin as zeros.
        for path in ["layers.0.weight.b", "layers.2.weight.b"] {
            let mut leaves = mlx_rs::module::ModuleParameters::parameters_mut(&mut tuned).flatten();
            let b = leaves.get_mut(path).expect("is trained");
            **b = random::normal::<f32>(b.shape(), None, None, None).expect("draws");
        }
        let y = forward(&mut tuned);
        let no_config = Json::Object(Vec::new());
        mlx_adapter::write(folder.join("mlx"), &tuned.adapters().unwrap(), &no_config).expect("writes");
        peft::write(folder.join("peft"), &tuned.adapters().unwrap(), &no_config).expect("writes");
        for read in [mlx_adapter::read(folder.join("mlx"), &base), peft::read(folder.join("peft"), &base)] {
            assert!(forward(&mut with(read.expect("reads"))).eq_values(&y).unwrap());
        }
    }
}

#[test]
fn what_a_library_has_no_adapter_for_is_refused() {
    let folder = Scratch::new();
    let base = dense().quantize("*.weight", Affine { bits: 4, group: 32 }).expect("quantizes");
    let config = LoraConfig { rank: 4, ..LoraConfig::default() }.as_stored(Affine { bits: 4, group: 32 });
    let tuned = base.lora("*.weight", config).expect("adapts");
    let (adapters, config) = (tuned.adapters().unwrap(), Json::Object(Vec::new()));
    let errors = [
        mlx_adapter::write(&*folder, &adapters, &config).expect_err("refused"),
        peft::write(&*folder, &adapters, &config).expect_err("refused"),
        peft::write(&*folder, &dense().values().unwrap(), &config).expect_err("refused"),
    ];
    assert!(folder.names().is_empty());
    let text: Vec<String> = errors.iter().map(|error| folder.message(error)).collect();
    expect_test::expect![[r#"
        FOLDER/adapters.safetensors: layers.0.weight: an adapter of mlx-lm cannot hold AsStored(f32[64,64])
        help: merge it, or train a Lora or a Dora

        FOLDER/adapter_model.safetensors: layers.0.weight: an adapter of PEFT's cannot hold AsStored(f32[64,64])
        help: merge it, or train a Lora or a Dora

        FOLDER/adapter_model.safetensors: no parameter is an adapter
        help: give the model's parameters with a Lora or a Dora in the place of those that are adapted"#]]
    .assert_eq(&text.join("\n\n"));
}

/// A key of PEFT's tables names each path that ends so, unless it begins with a caret.
#[test]
fn a_module_whose_path_ends_another_one_has_its_own_alpha() {
    let folder = Scratch::new();
    let lora = |alpha| -> Value {
        let [base, a, b] = [[8, 8], [2, 8], [8, 2]].map(|shape| ops::ones::<f32>(&shape).expect("ones"));
        Lora::new(base, a, b, alpha).expect("fits").into()
    };
    let tuned = Parameters::from(
        [("block.proj", 4.0), ("proj", 8.0)].map(|(module, alpha)| (format!("{module}.weight"), lora(alpha))),
    );
    peft::write(&*folder, &tuned, &Json::Object(Vec::new())).expect("writes");
    let config = Json::open(folder.join("adapter_config.json")).expect("reads");
    assert_eq!(config.get("alpha_pattern").map(Json::line).as_deref(), Some(r#"{"^proj": 8}"#));
    let model: Parameters =
        tuned.keys().map(|path| (path.clone(), ops::ones::<f32>(&[8, 8]).expect("ones").into())).collect();
    let read = peft::read(&*folder, &model).expect("reads");
    for (path, value) in &tuned {
        assert!(read[path].dense().unwrap().eq_values(value.dense().unwrap()).unwrap(), "{path}");
    }
}

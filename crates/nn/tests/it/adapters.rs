//! Adapters on models: initialized, trained, merged, taken out again.

mod within;

use std::collections::BTreeMap;

use expect_test::expect;
use mlx_rs::module::Module;
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, Dtype, nn, random};
use tacit_arrays::format::{Affine, Nf4};
use tacit_core::compile::CompileOptions;
use tacit_core::{Aval, Counters, ImplicitArray, Materialize, Policy, Result, Value, compile_with_state};
use tacit_nn::{LoraConfig, Method, Model, ParameterFilter, Stateful};

use crate::types::{error, normal, numbers, said_of};

const NF4: Nf4 = Nf4 { block: 64, double: true };
const AFFINE: Affine = Affine { bits: 2, group: 32 };

fn config() -> LoraConfig {
    LoraConfig { rank: 4, alpha: 8.0, ..LoraConfig::default() }
}

fn base() -> Model<nn::Sequential> {
    random::seed(7).expect("seeds");
    let linear = |inputs, outputs| nn::Linear::new(inputs, outputs).expect("builds");
    let layers = nn::Sequential::new().append(linear(64, 32)).append(nn::Relu).append(linear(32, 4));
    Model::new(layers).and_then(|model| model.quantize("*.weight", AFFINE)).expect("quantizes")
}

/// Every way to adapt.
fn configs() -> Vec<LoraConfig> {
    vec![
        config(),
        LoraConfig { method: Method::Dora, ..config() },
        LoraConfig { method: Method::QaLora, ..config() },
        config().as_stored(AFFINE),
        LoraConfig { method: Method::Dora, ..config() }.as_stored(NF4),
    ]
}

fn adapted(config: &LoraConfig) -> Model<nn::Sequential> {
    base().lora("*.weight", config.clone()).expect("adapts")
}

fn step(model: &mut Model<nn::Sequential>, optimizer: &mut Adam) -> f32 {
    let (x, y) = (normal(1, &[16, 64]), normal(2, &[16, 4]));
    let loss = |model: &mut Model<nn::Sequential>, (x, y): (&Array, &Array)| {
        model.forward(x)?.subtract(y)?.square()?.mean(None)
    };
    let (value, gradients) = model.value_and_grad(ParameterFilter::Lora, (&x, &y), loss).expect("a step");
    optimizer.update(model, &gradients).expect("an update");
    numbers(&value)[0]
}

fn forward(model: &mut Model<nn::Sequential>) -> Vec<f32> {
    numbers(&model.forward(&normal(3, &[5, 64])).expect("runs"))
}

fn bytes(model: &Model<nn::Sequential>) -> BTreeMap<String, Vec<u8>> {
    let of = |array: &Array| {
        let flat = array.reshape(&[-1]).and_then(|flat| flat.view_dtype(Dtype::Uint8)).expect("bytes");
        flat.eval().expect("evaluates");
        flat.as_slice::<u8>().to_vec()
    };
    model.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, of(array))).collect()
}

#[test]
fn the_factors_alone_are_trained_and_nothing_is_built() {
    let _deny = Policy::Deny.scope();
    for config in configs() {
        let mut model = adapted(&config);
        let trained: Vec<String> = model.leaves(&ParameterFilter::Lora).into_iter().map(|(path, _)| path).collect();
        let before = bytes(&model);
        let mut optimizer = Adam::new(1e-2);
        let (losses, counters) =
            Counters::during(|| (0..30).map(|_| step(&mut model, &mut optimizer)).collect::<Vec<_>>());
        // Codes of two bits jump, so that the loss does.
        let least = losses.iter().copied().fold(f32::MAX, f32::min);
        assert!(least < 0.5 * losses[0], "{config:?}: {losses:?}");
        assert_eq!(counters.materialized, 0, "{config:?}");
        for (path, after) in bytes(&model) {
            assert_eq!(before[&path] != after, trained.contains(&path), "{config:?}: {path}");
        }
    }
}

#[test]
fn an_adapter_starts_as_its_base() {
    let plain = forward(&mut base());
    for method in [Method::Lora, Method::Dora, Method::QaLora] {
        let mut model = adapted(&LoraConfig { method, ..config() });
        assert_eq!(forward(&mut model), plain, "{method:?}");
        let leaves = model.leaves(&ParameterFilter::Lora);
        let a = leaves.iter().find(|(path, _)| path == "layers.0.weight.a").map(|(_, a)| numbers(a)).expect("a factor");
        assert!(a.iter().all(|a| a.abs() <= 0.125) && a.iter().any(|a| a.abs() > 0.06), "{method:?}");
    }
    let seeded = |seed| bytes(&adapted(&LoraConfig { seed, ..config() }))["layers.0.weight.a"].clone();
    assert!(seeded(0) == seeded(0) && seeded(0) != seeded(1));
    let model = adapted(&config());
    assert_ne!(bytes(&model)["layers.0.weight.a"][..64], bytes(&model)["layers.2.weight.a"][..64]);
}

#[test]
fn each_parameter_has_an_adapter_of_its_own() -> Result<()> {
    let model = base()
        .lora("layers.0.*", LoraConfig { rank: 2, ..config() })?
        .lora("layers.2.*", LoraConfig { rank: 8, method: Method::Dora, ..config() })?;
    let leaves: Vec<String> = model
        .leaves(&ParameterFilter::Lora)
        .into_iter()
        .map(|(path, leaf)| format!("{path} {:?}", leaf.shape()))
        .collect();
    expect![[r#"
        layers.0.weight.a [2, 64]
        layers.0.weight.b [32, 2]
        layers.2.weight.a [8, 32]
        layers.2.weight.b [4, 8]
        layers.2.weight.m [4]"#]]
    .assert_eq(&leaves.join("\n"));
    Ok(())
}

#[test]
fn an_error_of_a_merge_that_is_no_number_is_the_worst() -> Result<()> {
    let mut report = base().lora("*.weight", config())?.merge(AFFINE)?;
    report.rows.values_mut().next().expect("two").loss.relative = -f64::NAN;
    assert!(report.worst().is_nan());
    Ok(())
}

#[test]
fn dropout_is_on_by_its_key() -> Result<()> {
    for config in [config(), LoraConfig { method: Method::Dora, ..config() }, config().as_stored(AFFINE)] {
        let mut model = adapted(&LoraConfig { dropout: 0.5, ..config });
        let mut optimizer = Adam::new(1e-2);
        model.drop_features(Some(&random::key(0)?))?;
        for _ in 0..3 {
            step(&mut model, &mut optimizer);
        }
        model.drop_features(None)?;
        let still = forward(&mut model);
        let mut keyed = |seed: Option<u64>| -> Result<Vec<f32>> {
            let key = seed.map(random::key).transpose()?;
            model.drop_features(key.as_ref())?;
            Ok(forward(&mut model))
        };
        let first = keyed(Some(1))?;
        assert_ne!(first, still);
        assert_ne!(keyed(Some(2))?, first);
        assert_eq!(keyed(Some(1))?, first);
        assert_eq!(keyed(None)?, still);
        keyed(Some(1))?;
        step(&mut model, &mut optimizer);
        assert_eq!(model.leaves(&ParameterFilter::Paths("*.key".parse()?)).len(), 2);
        assert_eq!(model.used_values()?, model.values()?);
        model.training_mode(false);
        assert_ne!(model.used_values()?, model.values()?);
    }
    Ok(())
}

/// The keys are leaves, so that each step has its own without a retrace.
#[test]
fn compiled_steps_with_dropout() -> Result<()> {
    let model = adapted(&LoraConfig { dropout: 0.5, ..config() });
    let mut state = (model, Stateful(Adam::new(1e-2)));
    let mut run = compile_with_state(
        CompileOptions::default(),
        |(model, optimizer): &mut (Model<nn::Sequential>, Stateful<Adam>), x: Array| -> Result<Array> {
            let loss = |model: &mut Model<nn::Sequential>, x: &Array| model.forward(x)?.square()?.mean(None);
            let (loss, gradients) = model.value_and_grad(ParameterFilter::Lora, &x, loss)?;
            optimizer.update(model, &gradients)?;
            Ok(loss)
        },
    );
    for seed in 0..6 {
        state.0.drop_features(Some(&random::key(seed)?))?;
        run.call(&mut state, normal(1, &[5, 64]))?;
    }
    // The second call has the optimizer's moments, which the first one makes.
    assert!(run.stats().traces <= 2, "{:?}", run.stats());
    Ok(())
}

#[test]
fn merging_and_taking_out_again() -> Result<()> {
    let _deny = Policy::Deny.scope();
    for config in configs() {
        let mut model = adapted(&config);
        let mut optimizer = Adam::new(1e-2);
        for _ in 0..5 {
            step(&mut model, &mut optimizer);
        }
        let (trained, before) = (forward(&mut model), bytes(&model));
        let lossless = config.stored.is_some() || config.method == Method::QaLora;
        let report = if lossless { model.merge_exactly()? } else { model.merge(NF4)? };
        assert_eq!(report.rows.len(), 2);
        assert_eq!(report.worst() == 0.0, lossless, "{config:?}: {report}");
        assert!(model.leaves(&ParameterFilter::Lora).is_empty());
        assert_eq!(forward(&mut model) == trained, lossless, "{config:?}");
        model.unmerge(report)?;
        assert_eq!(bytes(&model), before);
        assert_eq!(forward(&mut model), trained);
    }
    Ok(())
}

#[test]
fn a_report_and_the_bases_as_they_were() -> Result<()> {
    let mut model = adapted(&config());
    let plain = bytes(&base());
    let report = model.merge(AFFINE)?;
    expect![[r#"
        parameter        merged                  error  of change        before         after
        layers.0.weight  Affine(f32[32,64])     0.00e0       0.0%          2560          1024
        layers.2.weight  Affine(f32[4,32])      0.00e0       0.0%           640            64"#]]
    .assert_eq(&report.to_string());
    assert_eq!(bytes(&model), plain);
    // Another model has not these parameters, and the report stays.
    assert!(Model::new(nn::Linear::new(4, 4)?)?.unmerge(&report).is_err());
    model.unmerge(report)?;
    let mut optimizer = Adam::new(1e-2);
    step(&mut model, &mut optimizer);
    let adapters = model.without_adapters()?;
    assert_eq!(bytes(&model), plain);
    assert_eq!(adapters.keys().collect::<Vec<_>>(), ["layers.0.weight", "layers.2.weight"]);
    Ok(())
}

#[test]
fn messages() -> Result<()> {
    let mut said = [
        said_of(base().lora("*.wait", config())),
        said_of(base().lora("layers.0.bias", config())),
        said_of(base().lora("*", LoraConfig { rank: 0, ..config() })),
        said_of(base().lora("*", LoraConfig { rank: (1 << 32) + 8, ..config() })),
        said_of(base().lora("*", LoraConfig { dropout: 1.5, ..config() })),
        said_of(base().lora("*", LoraConfig { dropout: 0.5, method: Method::QaLora, ..config() })),
        said_of(adapted(&config()).lora("*", config())),
        said_of(base().merge_exactly()),
    ]
    .concat();
    let nf4 = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", NF4)?;
    said += &said_of(nf4.lora("*", LoraConfig { method: Method::QaLora, ..config() }));
    let mut model = adapted(&LoraConfig { dropout: 0.5, ..config() });
    let gradient = |model: &mut Model<nn::Sequential>| {
        model.value_and_grad(ParameterFilter::Lora, normal(1, &[5, 64]), |model, x| model.forward(&x)?.sum(None))
    };
    said += &said_of(gradient(&mut model));
    model.training_mode(false);
    gradient(&mut model)?;
    model.training_mode(true);
    said += &said_of(model.drop_features(Some(&normal(1, &[2]))));
    let _deny = Policy::Deny.scope();
    said += &said_of(model.merge_exactly());
    expect![[r#"
        *.wait names no matrix of the model
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
        the parameter layers.0.bias: f32[32] is no matrix
        help: adapt matrices alone
        the parameter layers.0.weight: the rank of the adapter is 0
        help: give at least 1 and fewer than 2^31; 16 is the usual choice
        the parameter layers.0.weight: the rank of the adapter is 4294967304
        help: give at least 1 and fewer than 2^31; 16 is the usual choice
        the parameter layers.0.weight: the dropout probability is 1.5
        help: give one that is at least 0 and below 1
        the parameter layers.0.weight: a change of biases has no dropout
        help: leave it at 0, or use `Method::Lora`
        the parameter layers.0.weight: Lora(f32[32,64]) is adapted already
        help: merge the adapter first, or train that one
        the model has no adapter to merge
        help: adapt it first, such as by `Model::lora`
        the parameter weight: the base is Nf4(f32[64,64]), which has no biases to move
        help: give a matrix in the affine format, or adapt this one by a `Lora`
        the adapter of layers.0.weight drops features with a probability of 0.5, and has no random key
        help: give each step a key by `model.drop_features(Some(&key))`, or take a `dropout` of 0; in evaluation mode nothing is dropped
        the parameter layers.0.weight: the dropout key is f32[2], and a key is u32[2]
        help: make one with `mlx_rs::random::key`
        a dense array of Lora(f32[32,64]) needs Lora materialized, which the policy forbids
        of: layers.0.weight
        help: allow it here with `Policy::Allow.scope()`
    "#]]
    .assert_eq(&said);
    Ok(())
}

#[test]
fn the_base_of_an_adapter_is_frozen_where_it_is_trained_by_itself() -> Result<()> {
    let mut model = Model::new(nn::Linear::new(64, 8)?)?.prepare("weight", NF4)?.lora("weight", config())?;
    let paths = |model: &Model<nn::Linear>, part: &ParameterFilter| {
        model.leaves(part).into_iter().map(|(path, _)| path).collect::<Vec<_>>()
    };
    assert_eq!(paths(&model, &ParameterFilter::default()), ["bias", "weight.a", "weight.b"]);
    assert!(paths(&model, &ParameterFilter::Masters).is_empty());
    // Named, it is trained.
    let master: ParameterFilter = ParameterFilter::Paths("weight.base.master".parse()?);
    assert_eq!(paths(&model, &master), ["weight.base.master"]);
    model.without_adapters()?;
    assert_eq!(paths(&model, &ParameterFilter::default()), ["bias", "weight.master"]);
    Ok(())
}

#[test]
fn leaves_are_loaded_into_the_format_that_they_were_trained_in() -> Result<()> {
    let stored = |format: &str| {
        let config = config().as_stored(format.parse::<tacit_arrays::format::AnyFormat>()?);
        Model::new(nn::Linear::new(64, 8)?)?.quantize("weight", AFFINE)?.lora("weight", config)
    };
    let trained = stored("nf4:64")?;
    let leaves = || {
        let leaves = trained.lasting_leaves(&ParameterFilter::Lora).into_iter();
        leaves.map(|(path, array)| (path, array.clone())).collect::<Vec<_>>()
    };
    let kinds = trained.leaf_kinds(&ParameterFilter::Lora)?;
    stored("nf4:64")?.load_leaves(leaves(), Some(&kinds))?;
    expect![[r#"
        the leaf weight.sum.a was saved of tacit.Lora (alpha 8, transposed false) in tacit.AsStored (format nf4:64, transposed false), and is of tacit.Lora (alpha 8, transposed false) in tacit.AsStored (format int8, transposed false) in the model
        help: make the model as it was when the leaves were saved, with the same kinds, alphas and formats"#]]
    .assert_eq(&error(stored("int8")?.load_leaves(leaves(), Some(&kinds))).to_string());
    // Files of earlier versions say the array that holds a leaf alone.
    let mut earlier = serde_json::to_value(&kinds).expect("is written");
    for leaf in earlier["leaves"].as_object_mut().expect("a map").values_mut() {
        leaf.as_object_mut().expect("a kind").remove("around");
    }
    let earlier = serde_json::from_value(earlier).expect("is read");
    stored("int8")?.load_leaves(leaves(), Some(&earlier))
}

/// A type of another crate, whose fields are named as those of ours that leaves do not depend on.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Switched")]
struct Switched {
    array: Value,
    #[implicit(aux)]
    on: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Switched {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone())
    }
}

#[test]
fn leaves_depend_on_the_fields_of_another_crate_whatever_their_names() -> Result<()> {
    let switched = |on: bool| -> Result<Model<nn::Linear>> {
        let mut model = Model::new(nn::Linear::new(64, 8)?)?;
        let array = Value::from(normal(1, &[8, 64]));
        let aval = array.aval()?;
        model.set("weight", Switched { array, on, aval })?;
        Ok(model)
    };
    let trained = switched(true)?;
    let leaves = || {
        let leaves = trained.lasting_leaves(&ParameterFilter::All).into_iter();
        leaves.map(|(path, array)| (path, array.clone())).collect::<Vec<_>>()
    };
    let kinds = trained.leaf_kinds(&ParameterFilter::All)?;
    switched(true)?.load_leaves(leaves(), Some(&kinds))?;
    let said = error(switched(false)?.load_leaves(leaves(), Some(&kinds))).to_string();
    let expected = "the leaf weight.array was saved of test.Switched (on true), and is of test.Switched (on false)";
    assert!(said.starts_with(expected), "{said}");
    // Whether a prepared weight is quantized at the moment is nothing that its leaves depend on.
    let prepared = || Model::new(nn::Linear::new(64, 8)?)?.prepare("weight", NF4);
    let kinds = prepared()?.leaf_kinds(&ParameterFilter::All)?;
    assert!(!serde_json::to_string(&kinds).expect("is written").contains("\"on\""));
    Ok(())
}

#[test]
fn an_adapter_that_comes_back_is_as_frozen_as_it_was() -> Result<()> {
    use mlx_rs::module::ModuleParameters;
    let mut model = adapted(&config());
    model.freeze_parameters(true);
    let report = model.merge(AFFINE)?;
    model.unmerge(report)?;
    assert_eq!((model.all_frozen(), model.trainable_parameters().entries.len()), (Some(true), 0));
    Ok(())
}

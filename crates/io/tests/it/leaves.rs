//! Files of leaves: what they mean is saved with them, and checked where they are loaded.

use std::fs;

use expect_test::{Expect, expect};
use mlx_rs::{Array, nn, random};
use tacit_arrays::format::{Affine, Nf4};
use tacit_core::store::{StoredChild, collect, named};
use tacit_core::{Result, Value};
use tacit_io::{Metadata, ModelFile, Tensors, Training, load, save, write};
use tacit_nn::{LoraConfig, Method, Model, ParameterFilter, Parameters};

use crate::scratch::Scratch;

type Layers = nn::Sequential;

const AFFINE: Affine = Affine { bits: 4, group: 64 };
const NF4: Nf4 = Nf4 { block: 64, double: false };

fn dense() -> Model<Layers> {
    random::seed(3).expect("seeds");
    let linear = || nn::Linear::new(64, 64).expect("builds");
    Model::new(nn::Sequential::new().append(linear()).append(nn::Relu).append(linear())).expect("a model")
}

fn config() -> LoraConfig {
    LoraConfig { rank: 4, alpha: 32.0, ..LoraConfig::default() }
}

fn adapted(config: LoraConfig) -> Model<Layers> {
    dense().quantize("*.weight", AFFINE).and_then(|model| model.lora("*.weight", config)).expect("adapts")
}

#[track_caller]
fn check<T>(result: Result<T>, expected: &Expect) {
    let Err(error) = result else { panic!("it should fail") };
    expected.assert_eq(&error.to_string());
}

/// Saves a part of one model, alone and in a run, and loads it into another.
fn into(saved: &Model<Layers>, only: &ParameterFilter, other: &mut Model<Layers>) -> [Result<()>; 2] {
    let folder = Scratch::new();
    let [alone, run] = ["leaves.safetensors", "run.safetensors"].map(|name| folder.join(name));
    saved.save(&alone, only).expect("saves");
    Training::new(1).with_model(saved, only).and_then(|run_of| run_of.save(&run)).expect("saves");
    let restored = Training::load(&run).expect("loads").restore_model(other);
    [other.load(&alone), restored]
}

/// The message of the error, and a line's end; the other model stays as it is.
#[track_caller]
fn refused(saved: &Model<Layers>, only: &ParameterFilter, other: &mut Model<Layers>) -> String {
    let before: Vec<(String, Array)> =
        other.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, array.clone())).collect();
    let [alone, run] = into(saved, only, other).map(|result| result.expect_err("refused").to_string());
    assert_eq!(alone, run);
    for ((path, before), (_, after)) in before.iter().zip(other.leaves(&ParameterFilter::All)) {
        assert!(before.eq_exact(after).expect("compares"), "{path} is as it was");
    }
    alone + "\n"
}

#[test]
fn scales_and_kinds_are_checked() {
    let saved = adapted(config());
    assert!(
        into(&saved, &ParameterFilter::Lora, &mut adapted(LoraConfig { seed: 9, dropout: 0.1, ..config() }))
            .iter()
            .all(Result::is_ok)
    );
    let dora = adapted(LoraConfig { method: Method::Dora, ..config() });
    let mut said = [
        refused(&saved, &ParameterFilter::Lora, &mut adapted(LoraConfig { alpha: 1.0, ..config() })),
        refused(&saved, &ParameterFilter::Lora, &mut adapted(LoraConfig { method: Method::QaLora, ..config() })),
        refused(&saved, &ParameterFilter::Lora, &mut adapted(LoraConfig { method: Method::Dora, ..config() })),
        refused(&dora, &ParameterFilter::Lora, &mut adapted(config())),
        refused(&saved, &ParameterFilter::Lora, &mut adapted(LoraConfig { rank: 8, ..config() })),
    ]
    .concat();
    // Over a base of another format the adapter is the same.
    let mut over_floats = dense().lora("*.weight", config()).expect("adapts");
    assert!(into(&saved, &ParameterFilter::Lora, &mut over_floats).iter().all(Result::is_ok));
    // Scales mean nothing without their format.
    let quantized = |bits| dense().quantize("*.weight", Affine { bits, group: 64 }).expect("quantizes");
    said += &refused(&quantized(4), &ParameterFilter::Scales, &mut quantized(8));
    expect![[r#"
        the leaf layers.0.weight.a was saved of tacit.Lora (alpha 32, transposed false), and is of tacit.Lora (alpha 1, transposed false) in the model
        help: make the model as it was when the leaves were saved, with the same kinds, alphas and formats
        the leaf layers.0.weight.a was saved of tacit.Lora (alpha 32, transposed false), and is of tacit.QaLora (alpha 32) in the model
        help: make the model as it was when the leaves were saved, with the same kinds, alphas and formats
        the leaf layers.0.weight.a was saved of tacit.Lora (alpha 32, transposed false), and is of tacit.Dora (alpha 32, transposed false) in the model
        help: make the model as it was when the leaves were saved, with the same kinds, alphas and formats
        the leaf layers.0.weight.a was saved of tacit.Dora (alpha 32, transposed false), and is of tacit.Lora (alpha 32, transposed false) in the model
        help: make the model as it was when the leaves were saved, with the same kinds, alphas and formats
        the leaf layers.0.weight.a is f32[8,64] and was given f32[4,64]
        help: give an array of the leaf's own shape and dtype, or set the whole parameter
        the leaf layers.0.weight.biases was saved of tacit.Affine (format Affine { bits: 4, group: 64 }, transposed false), and is of tacit.Affine (format Affine { bits: 8, group: 64 }, transposed false) in the model
        help: make the model as it was when the leaves were saved, with the same kinds, alphas and formats
    "#]]
    .assert_eq(&said);
    assert!(into(&quantized(4), &ParameterFilter::Scales, &mut quantized(4)).iter().all(Result::is_ok));
}

/// What it would save nothing could be restored into.
#[test]
fn a_run_refuses_a_model_that_lost_leaves_that_it_has() -> Result<()> {
    let run = Training::new(1).with_model(&adapted(config()), &ParameterFilter::Lora)?;
    let lost = dense().quantize("*.weight", AFFINE)?.lora("layers.0.weight", config())?;
    check(
        run.clone().with_model(&lost, &ParameterFilter::Lora),
        &expect![[r#"
            the model does not have these leaves: layers.2.weight.a, layers.2.weight.b
            help: take the leaves of the model as it is now, without those that it had before"#]],
    );
    let biases = ParameterFilter::Paths("*.bias".parse()?);
    check(
        run.clone().with_model(&adapted(LoraConfig { alpha: 1.0, ..config() }), &biases),
        &expect![[r#"
            the leaf layers.0.weight.a was saved of tacit.Lora (alpha 32, transposed false), and is of tacit.Lora (alpha 1, transposed false) in the model
            help: make the model as it was when the leaves were saved, with the same kinds, alphas and formats"#]],
    );
    let half = Training::new(1).with_model(&lost, &ParameterFilter::Lora)?;
    check(
        half.with_model(&adapted(config()), &biases),
        &expect![[r#"
            leaves of the model are not given, of Lora: layers.2.weight.a, layers.2.weight.b
            help: take all leaves of that part from the model as it is now"#]],
    );
    // All of it takes the place of what there was.
    run.clone().with_model(&lost, &ParameterFilter::All)?.restore_model(&mut dense())?;
    run.with_model(&adapted(config()), &biases)?.restore_model(&mut adapted(config()))
}

/// Runs of earlier versions say nothing of kinds: what can be checked without is.
#[test]
fn a_run_without_kinds_has_all_leaves_of_a_part() -> Result<()> {
    let mut run = Training::new(1).with_model(&adapted(config()), &ParameterFilter::Lora)?;
    run.kinds = None;
    run.restore_model(&mut adapted(config()))?;
    run.states.get_mut("leaves").expect("has leaves").remove("layers.2.weight.b");
    check(
        run.restore_model(&mut adapted(config())),
        &expect![[r#"
            leaves of the model are not given, of Lora: layers.2.weight.b
            help: give all leaves of the file that they were saved in; `ParameterFilter::Paths` saves and loads some by themselves"#]],
    );
    Ok(())
}

#[test]
fn all_leaves_of_a_part_are_there() -> Result<()> {
    let saved = adapted(config());
    let one = |pattern: &str| Ok::<_, tacit_core::Error>(ParameterFilter::Paths(pattern.parse()?));
    // What is named by its path is what is meant.
    assert!(into(&saved, &one("layers.0.*.a")?, &mut adapted(config())).iter().all(Result::is_ok));
    let half = dense().quantize("*.weight", AFFINE)?.lora("layers.0.weight", config())?;
    let said = [
        refused(&half, &ParameterFilter::Lora, &mut adapted(config())),
        refused(&saved, &ParameterFilter::Lora, &mut dense()),
    ]
    .concat();
    expect![[r#"
        leaves of the model are not given, of Lora: layers.2.weight.a, layers.2.weight.b
        help: give all leaves of the file that they were saved in; `ParameterFilter::Paths` saves and loads some by themselves
        the model has no leaf layers.0.weight.a
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
    "#]]
    .assert_eq(&said);

    // A file that lost a leaf, with what it says of them and, as earlier versions wrote it, without.
    let folder = Scratch::new();
    let [whole, part] = ["whole.safetensors", "part.safetensors"].map(|name| folder.join(name));
    saved.save(&whole, ParameterFilter::Lora)?;
    let tensors = Tensors::open(&whole)?;
    let mut told = String::new();
    for (kept, says) in [(1, true), (1, false), (0, true), (0, false)] {
        let mut metadata: Metadata = tensors.metadata().clone();
        if !says {
            metadata.remove("tacit.leaves");
        }
        let kept = tensors.names().take(kept).map(|name| Ok((name.to_owned(), tensors.get(name)?)));
        write(&part, kept.collect::<Result<_>>()?, &metadata)?;
        told.extend([adapted(config()).load(&part).expect_err("leaves are missing").to_string().as_str(), "\n"]);
    }
    expect![[r#"
        leaves that were saved are not given: layers.0.weight.b, layers.2.weight.a, layers.2.weight.b
        help: give all leaves of the file that they were saved in; `ParameterFilter::Paths` saves and loads some by themselves
        leaves of the model are not given, of Lora: layers.0.weight.b, layers.2.weight.a, layers.2.weight.b
        help: give all leaves of the file that they were saved in; `ParameterFilter::Paths` saves and loads some by themselves
        there is no leaf to load
        help: save the leaves that are trained
        there is no leaf to load
        help: save the leaves that are trained
    "#]]
    .assert_eq(&told);
    let all = tensors.names().map(|name| Ok((name.to_owned(), tensors.get(name)?)));
    let mut metadata: Metadata = tensors.metadata().clone();
    metadata.remove("tacit.leaves");
    write(&part, all.collect::<Result<_>>()?, &metadata)?;
    adapted(config()).load(&part)
}

#[test]
fn a_file_of_which_nothing_is_loaded_is_an_error() -> Result<()> {
    let folder = Scratch::new();
    let path = folder.join("file.safetensors");
    let plain = |error: String| error.replace(&path.display().to_string(), "file.safetensors");
    save(&path, &Parameters::new())?;
    let error = dense().load(&path).expect_err("it is empty").to_string();
    expect![[r#"
        file.safetensors: it has no values to load
        help: save a model, or a part of it"#]]
    .assert_eq(&plain(error));

    // A run has what its model had, and no less.
    let saved = adapted(config());
    Training::new(3).with_model(&saved, &ParameterFilter::Lora)?.save(&path)?;
    let mut other = adapted(LoraConfig { seed: 9, ..config() });
    other.load(&path)?;
    for ((path, saved), (_, loaded)) in
        saved.leaves(&ParameterFilter::Lora).into_iter().zip(other.leaves(&ParameterFilter::Lora))
    {
        assert!(saved.eq_exact(loaded)?, "{path}");
    }
    Training::new(3).with_note("a", "b").save(&path)?;
    check(
        other.load(&path),
        &expect![[r#"
        no model was saved with the run
        help: save it with `Training::with_model`"#]],
    );
    Ok(())
}

/// Between the steps of a training run an adapter has a key, which is not saved, by whichever way.
#[test]
fn what_a_step_drops_is_not_saved() -> Result<()> {
    use mlx_rs::module::Module;
    let folder = Scratch::new();
    let path = folder.join("file.safetensors");
    let x = random::normal::<f32>(&[4, 64], None, None, &random::key(1)?)?;
    for config in [config(), LoraConfig { method: Method::Dora, ..config() }, config().as_stored(NF4)] {
        let config = LoraConfig { dropout: 0.5, ..config };
        let mut model = adapted(config.clone());
        // Factors of a training run are no zeros.
        let moved = model
            .leaves(&ParameterFilter::Lora)
            .into_iter()
            .map(|(path, array)| Ok((path, array.add(Array::from_f32(0.1))?)));
        model.set_leaves(moved.collect::<Result<Vec<_>>>()?)?;
        let still = model.forward(&x)?;
        model.drop_features(Some(&random::key(2)?))?;
        assert!(!model.forward(&x)?.eq_exact(&still)?);
        let key =
            |model: &Model<Layers>| model.leaves(&ParameterFilter::All).iter().any(|(path, _)| path.ends_with("key"));
        assert!(key(&model));

        let mut loaded: Vec<(&str, Model<Layers>)> = Vec::new();
        let empty = || adapted(config.clone());
        for (name, only) in [
            ("whole", ParameterFilter::All),
            ("lora", ParameterFilter::Lora),
            ("paths", ParameterFilter::Paths("*".parse()?)),
        ] {
            let mut other = if name == "whole" { dense() } else { empty() };
            model.save(&path, &only)?;
            other.load(&path)?;
            loaded.push((name, other));
            let mut other = if name == "whole" { dense() } else { empty() };
            Training::new(1).with_model(&model, &only)?.save(&path)?;
            Training::load(&path)?.restore_model(&mut other)?;
            loaded.push((name, other));
        }
        save(&path, &model.values()?)?;
        let mut other = dense();
        other.assign(load(&path)?, tacit_nn::Missing::Refuse)?;
        loaded.push(("values", other));
        for (name, mut other) in loaded {
            assert!(!key(&other), "{name}");
            assert!(other.forward(&x)?.eq_exact(&still)?, "{name}");
        }
    }
    // Files of earlier versions have it.
    let mut model = adapted(LoraConfig { dropout: 0.5, ..config() });
    model.drop_features(Some(&random::key(2)?))?;
    let (values, arrays) = collect(|| {
        let one = |(path, value): (&String, &Value)| {
            let json = named(path, || serde_json::to_value(value.stored()).expect("serializes"));
            (path.clone(), json)
        };
        model.values().map(|values| values.iter().map(one).collect::<serde_json::Map<_, _>>())
    });
    assert!(arrays.keys().any(|key| key.ends_with("key")));
    let said = [("tacit.version", "1".to_owned()), ("tacit.values", serde_json::Value::Object(values?).to_string())];
    write(&path, arrays.into_iter().collect(), &said.map(|(key, text)| (key.to_owned(), text)).into())?;
    let mut other = dense();
    other.load(&path)?;
    assert!(!other.leaves(&ParameterFilter::All).iter().any(|(path, _)| path.ends_with("key")));
    Ok(())
}

/// An export of a tied decoder has the parameter under the name that the tie says, and a file may name it by either.
#[test]
fn a_tied_parameter_is_saved_once_and_loaded_by_each_of_its_names() -> Result<()> {
    use mlx_rs::macros::ModuleParameters;

    #[derive(Debug, ModuleParameters)]
    #[module(root = mlx_rs)]
    struct Decoder {
        #[param]
        embed_tokens: nn::Embedding,
        #[param]
        lm_head: nn::Linear,
    }

    let model = || {
        let (embed_tokens, lm_head) = (nn::Embedding::new(16, 64)?, nn::Linear::new(64, 16)?);
        Model::new(Decoder { embed_tokens, lm_head })?.tie("lm_head.weight", "embed_tokens.weight")
    };
    let folder = Scratch::new();
    let path = folder.join("file.safetensors");
    for quantized in [false, true] {
        let mut model_of = model()?;
        if quantized {
            model_of = model_of.quantize("lm_head.weight", NF4)?;
        }
        let values = model_of.values()?;
        assert_eq!(values.keys().collect::<Vec<_>>(), ["embed_tokens.weight", "lm_head.bias"]);
        model_of.save(&path, ParameterFilter::All)?;
        assert!(Tensors::open(&path)?.names().all(|name| !name.starts_with("lm_head.weight")));
        let mut other = model()?;
        other.load(&path)?;
        let same = |a: &Value, b: &Value| a.dense()?.eq_exact(b.dense()?).map_err(tacit_core::Error::from);
        assert!(same(&other.get("lm_head.weight")?, &values["embed_tokens.weight"])?);

        let renamed = |path: &str| path.replace("embed_tokens.weight", "lm_head.weight");
        save(&path, &values.iter().map(|(path, value)| (renamed(path), value.clone())).collect())?;
        let mut other = model()?;
        other.load(&path)?;
        assert!(same(&other.get("embed_tokens.weight")?, &values["embed_tokens.weight"])?);
    }
    fs::remove_file(&path).ok();
    Ok(())
}

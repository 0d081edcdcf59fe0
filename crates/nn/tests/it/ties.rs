//! Parameters that are one, and parameters that were one array.

use expect_test::expect;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{FlattenedModuleParam, Module, ModuleParameters, Param, Parameter};
use mlx_rs::optimizers::{Adam, Sgd};
use mlx_rs::{Array, Dtype, builder::Builder, error::Exception, nn};
use tacit_arrays::format::{Affine, Nf4};
use tacit_arrays::{Gptq, Nf4Array};
use tacit_core::{Error, Policy, Result, Value};
use tacit_nn::{LoraConfig, Missing, Model, Observations, ParameterFilter, Parameters, Pattern, Rules};

use crate::log::Log;
use crate::types::{error, normal, numbers, said_of};

const NF4: Nf4 = Nf4 { block: 64, double: true };

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Tied {
    #[param]
    embedding: nn::Embedding,
    #[param]
    head: nn::Linear,
}

/// The paths of the one parameter, and which is its own: alphabetical order is nothing to a tie.
const PATHS: [[&str; 2]; 2] = [["head.weight", "embedding.weight"], ["embedding.weight", "head.weight"]];

fn module() -> Tied {
    let embedding = nn::Embedding::new(32, 64).expect("builds");
    let mut head = nn::LinearBuilder::new(64, 32).bias(false).build().expect("builds");
    head.weight.value = embedding.weight.value.clone();
    Tied { embedding, head }
}

fn tied([path, to]: [&str; 2]) -> Model<Tied> {
    Model::new(module()).and_then(|model| model.tie(path, to)).expect("a model")
}

fn logits(module: &mut Tied, tokens: &Array) -> Result<Array, Exception> {
    let x = module.embedding.forward(tokens)?;
    module.head.forward(&x)
}

fn tokens() -> Array {
    Array::from_slice(&[3u32, 1, 2], &[1, 3])
}

fn shown(model: &Model<Tied>) -> Vec<String> {
    model.values().expect("values").iter().map(|(path, value)| format!("{path} {value}")).collect()
}

/// Each is quantized once, held once, trained as one.
#[test]
fn tied_parameters_are_one() {
    let _deny = Policy::Deny.scope();
    for paths in PATHS {
        let mut model = tied(paths);
        let leaves: Vec<String> = model.leaves(&ParameterFilter::All).into_iter().map(|(path, _)| path).collect();
        assert_eq!(leaves, [paths[1]]);
        for path in paths {
            model.set(path, normal(5, &[32, 64])).expect("the one parameter");
            let first = model.run(|m| logits(m, &tokens())).expect("runs");
            let embedded = model.run(|m| m.embedding.forward(&tokens())).expect("runs");
            let expected = embedded.matmul(normal(5, &[32, 64]).t()).expect("multiplies");
            assert_eq!(numbers(&first), numbers(&expected));
            model.set(path, normal(6, &[32, 64])).expect("another value");
        }

        let first = model.run(|m| logits(m, &tokens())).expect("runs");
        let mut model = model.quantize("*.weight", NF4).expect("quantizes");
        let packed = Nf4Array::quantize(&normal(6, &[32, 64]), NF4).expect("packs");
        assert_eq!(model.nbytes(), Value::from(packed).nbytes());
        let quantized = model.run(|m| logits(m, &tokens())).expect("runs");
        assert_ne!(numbers(&quantized), numbers(&first));

        let mut model = tied(paths);
        let (_, gradients) = model
            .value_and_grad(ParameterFilter::All, &tokens(), |m, t: &Array| {
                m.run(|m| logits(m, t))?.square()?.mean(None)
            })
            .expect("differentiates");
        assert_eq!(gradients.keys().map(|path| &**path).collect::<Vec<_>>(), [paths[1]]);
        model.update(&mut Sgd::new(0.1), &gradients).expect("a step");
        let head = model.run(|m| Ok::<_, Error>(m.head.weight.value.clone())).expect("runs");
        let embedding = model.run(|m| Ok::<_, Error>(m.embedding.weight.value.clone())).expect("runs");
        assert_eq!(numbers(&head), numbers(&embedding));
    }
}

#[test]
fn what_a_call_has_is_listed_under_every_path() -> Result<()> {
    for paths in PATHS {
        let model = tied(paths).quantize("*.weight", NF4)?;
        let used = model.used_values()?;
        assert_eq!(used.keys().collect::<Vec<_>>(), ["embedding.weight", "head.weight"]);
        for (path, value) in &used {
            assert!(value.is_implicit() && *value == model.used(path)? && *value == model.get(path)?, "{path}");
        }
    }
    Ok(())
}

/// A run that goes on with the tie declared the other way round would begin its moments anew.
#[test]
fn moments_by_the_other_path_of_a_tie_are_refused() {
    let step = |model: &mut Model<Tied>, adam: &mut Adam| {
        let (_, gradients) = model.value_and_grad(ParameterFilter::All, &tokens(), |m, t: &Array| {
            m.run(|m| logits(m, t))?.square()?.mean(None)
        })?;
        model.update(adam, &gradients)
    };
    let mut adam = Adam::new(0.1);
    for _ in 0..2 {
        step(&mut tied(PATHS[0]), &mut adam).expect("a step");
    }
    expect![[r#"
        the optimizer has moments of embedding.weight, which is tied to head.weight, and none of head.weight
        help: tie head.weight to embedding.weight, as the run did that made them, or begin with a new optimizer"#]]
    .assert_eq(&error(step(&mut tied(PATHS[1]), &mut adam)).to_string());
    // Where the one parameter is not moved, nothing begins anew.
    tied(PATHS[1]).update(&mut adam, FlattenedModuleParam::new()).expect("a step of others");
    step(&mut tied(PATHS[0]), &mut adam).expect("a step");
}

/// Whatever takes a path takes each path of the one parameter.
#[test]
fn every_path_of_a_tie_obeys() -> Result<()> {
    let affine = Affine { bits: 4, group: 64 };
    for paths in PATHS {
        for path in paths {
            let own = paths[1];
            let is = |model: &Model<Tied>, value: &str| assert_eq!(shown(model), [format!("{own} {value}")], "{path}");
            let rules = Rules::new().skip(path)?.quantize("*", affine)?;
            assert!(tied(paths).quantize("*", &rules).is_err(), "nothing is quantized");
            assert!(tied(paths).prepare("*", &rules).is_err(), "nothing is prepared");
            is(&tied(paths).quantize(path, affine)?, "Affine(f32[32,64])");
            is(&tied(paths).prepare(path, affine)?, "Prepared(f32[32,64])");
            is(&tied(paths).lora(path, LoraConfig::default())?, "Lora(f32[32,64])");
            let rules = Rules::new().quantize(path, affine)?.quantize("*", NF4)?;
            let mut model = tied(paths).quantize("*", &rules)?;
            is(&model, "Affine(f32[32,64])");
            assert_eq!(model.report().unused, ["*"]);
            assert_eq!(model.report().rows.keys().collect::<Vec<_>>(), [own]);
            model.replace(path, |_, value| Ok(Some(value.dense()?.as_dtype(Dtype::Float16)?.into())))?;
            is(&model, "f16[32,64]");
            assert_eq!(model.get(path)?.to_string(), "f16[32,64]");
            model.assign(Parameters::from([(path.to_owned(), normal(1, &[32, 64]).into())]), Missing::Refuse)?;
            assert_eq!(model.leaves(&ParameterFilter::Paths(path.parse::<Pattern>()?)).len(), 1);
            let leaf = tied(paths).quantize(own, affine)?;
            let leaf = leaf.leaves(&ParameterFilter::Paths(format!("{path}.scales").parse::<Pattern>()?)).len();
            assert_eq!(leaf, 1, "{path}");
            model.set_leaves([(path.to_owned(), normal(2, &[32, 64]))])?;
            assert_eq!(numbers(&model.get(own)?.dense()?), numbers(&normal(2, &[32, 64])));

            // Frozen in the module under one of its paths.
            let mut module = module();
            if path == "head.weight" {
                module.head.weight.freeze(true);
            } else {
                module.embedding.weight.freeze(true);
            }
            let mut model = Model::new(module)?.tie(paths[0], paths[1])?;
            assert!(model.trainable_parameters().flatten().is_empty(), "{path}");
            assert!(
                model.value_and_grad(ParameterFilter::All, (), |_, ()| Ok::<_, Error>(Array::from_f32(0.0))).is_err()
            );
        }
    }
    Ok(())
}

/// By each of its paths it is the one weight, whose rows are those of its products: its lookups are none.
#[test]
fn a_tied_weight_is_observed_by_each_path() -> Result<()> {
    let run = |model: &mut Model<Tied>| model.run(|m| logits(m, &tokens()));
    for paths in PATHS {
        let own = paths[1];
        let mut model = tied(paths);
        for pattern in ["*", "head.weight", "embedding.weight"] {
            assert_eq!(model.observation_groups(pattern, 1)?, [[own]], "{pattern}");
            let (products, squares) = (model.observe(pattern, run)?, model.observe_squares(pattern, run)?);
            let means = |seen: &Observations| -> Result<Array> {
                assert_eq!(seen.paths().collect::<Vec<_>>(), [own], "{pattern}");
                assert_eq!(seen.get(own)?.rows(), [3], "{pattern}");
                seen.get(own)?.mean_squares()
            };
            assert!(means(&products)?.all_close(means(&squares)?, 1e-5, 0.0, None)?, "{pattern}");
            let affine = Affine { bits: 4, group: 64 };
            let model = tied(paths).quantize_observed(pattern, affine, &products, &Gptq::default())?;
            assert_eq!(shown(&model), [format!("{own} Affine(f32[32,64])")], "{pattern}");
        }
    }
    Ok(())
}

#[test]
fn different_values_for_the_paths_of_a_tie_are_refused() -> Result<()> {
    for paths in PATHS {
        let given = |seeds: [u64; 2]| -> Parameters {
            let value = |(path, seed): (&str, u64)| (path.to_owned(), normal(seed, &[32, 64]).into());
            paths.into_iter().zip(seeds).map(value).collect()
        };
        let mut model = tied(paths);
        model.assign(given([1, 1]), Missing::Refuse)?;
        assert_eq!(numbers(&model.get(paths[0])?.dense()?), numbers(&normal(1, &[32, 64])));
        expect![[r#"
            the parameters embedding.weight and head.weight are tied, and were given different values
            help: give one of them, or make the model without the tie"#]]
        .assert_eq(&error(model.assign(given([1, 2]), Missing::Refuse)).to_string());
        let stored = |format: &str| tacit_arrays::format::parse(format)?.quantize(&normal(1, &[32, 64]));
        for (other, fits) in [("nf4:64", true), ("affine:4:64", false)] {
            let pair = paths.into_iter().zip([stored("nf4:64")?, stored(other)?]);
            let pair: Parameters = pair.map(|(path, value)| (path.to_owned(), value)).collect();
            assert_eq!(model.assign(pair, Missing::Keep).is_ok(), fits, "{other}");
        }
    }
    Ok(())
}

/// A file of leaves may come from a model that is tied the other way round, or not at all.
#[test]
fn leaves_are_loaded_by_each_name_of_a_tie() -> Result<()> {
    let owned = |model: &Model<Tied>| -> Vec<(String, Array)> {
        model.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path, array.clone())).collect()
    };
    for paths in PATHS {
        let mut saved = tied([paths[1], paths[0]]);
        saved.set(paths[0], normal(5, &[32, 64]))?;
        let saved = saved.quantize("*.weight", NF4)?;
        let kinds = saved.leaf_kinds(&ParameterFilter::Scales)?;
        let scales = saved.leaves(&ParameterFilter::Scales);
        let scales: Vec<_> = scales.into_iter().map(|(path, array)| (path, array.clone())).collect();
        assert!(!scales.is_empty() && scales.iter().all(|(path, _)| path.starts_with(paths[0])));
        let mut model = tied(paths).quantize(paths[1], NF4)?;
        for kinds in [Some(&kinds), None] {
            model.load_leaves(scales.clone(), kinds)?;
            for ((_, own), (path, array)) in model.leaves(&ParameterFilter::Scales).into_iter().zip(&scales) {
                assert!(own.eq_exact(array)?, "{path}");
            }
        }

        let untied = |seeds: [u64; 2]| -> Result<Model<Tied>> {
            let mut model = Model::new(module())?;
            paths.into_iter().zip(seeds).try_for_each(|(path, seed)| model.set(path, normal(seed, &[32, 64])))?;
            Ok(model)
        };
        let mut model = tied(paths);
        let equal = untied([1, 1])?;
        model.load_leaves(owned(&equal), Some(&equal.leaf_kinds(&ParameterFilter::All)?))?;
        assert_eq!(numbers(&model.get(paths[0])?.dense()?), numbers(&normal(1, &[32, 64])));
        let other = untied([1, 2])?;
        let message = format!(
            "the leaf {} was given different values, as embedding.weight and as head.weight\n\
             help: give one of them, or make the model without the tie",
            paths[1]
        );
        let loaded = model.load_leaves(owned(&other), Some(&other.leaf_kinds(&ParameterFilter::All)?));
        assert_eq!(loaded.expect_err("two values").to_string(), message);
        assert_eq!(model.set_leaves(owned(&other)).expect_err("two values").to_string(), message);
        assert_eq!(numbers(&model.get(paths[0])?.dense()?), numbers(&normal(1, &[32, 64])));
    }
    Ok(())
}

#[test]
fn bad_ties() {
    let mut said = said_of(Model::new(module()).and_then(|model| model.tie("head.weight", "embed.weight")));
    let other = Tied { head: nn::Linear::new(64, 16).expect("builds"), ..module() };
    said += &[
        said_of(Model::new(other).and_then(|model| model.tie("head.weight", "embedding.weight"))),
        said_of(tied(PATHS[0]).run(|m| {
            (m.head.weight.value, m.embedding.weight.value) = (normal(1, &[32, 64]), normal(2, &[32, 64]));
            Ok::<_, Error>(Array::from_f32(0.0))
        })),
        said_of(
            Model::new(module())
                .and_then(|untied| tied(PATHS[0]).check_leaves(&untied.leaf_kinds(&ParameterFilter::All)?)),
        ),
    ]
    .concat();
    expect![[r#"
        the module has no parameter embed.weight
        help: its parameters are embedding.weight, head.weight
        the parameter head.weight is f32[16,64], and embedding.weight is f32[32,64]
        help: tie parameters of one shape
        the function assigned embedding.weight and head.weight, which are tied, different arrays
        help: assign one of them
        embedding.weight and head.weight are one leaf of the model
        help: take the leaves of the model as it is now, without those that it had before
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_tie_takes_what_is_tied_to_it_along() -> Result<()> {
    #[derive(Debug, ModuleParameters)]
    #[module(root = mlx_rs)]
    struct Three {
        #[param]
        a: Param<Array>,
        #[param]
        b: Param<Array>,
        #[param]
        c: Param<Array>,
    }
    let of = |seed| Param::new(normal(seed, &[2, 2]));
    let mut model = Model::new(Three { a: of(1), b: of(2), c: of(3) })?.tie("a", "b")?.tie("b", "c")?.tie("c", "a")?;
    assert_eq!(model.values()?.keys().collect::<Vec<_>>(), ["c"]);
    let sum = model.run(|m| m.a.value.add(&m.b.value)?.add(&m.c.value))?;
    assert_eq!(numbers(&sum), numbers(&normal(3, &[2, 2]).multiply(Array::from_f32(3.0))?));
    Ok(())
}

/// mlx-rs clones a layer with its arrays, and trains each clone by itself; so does a model.
#[test]
fn clones_are_parameters_of_their_own() -> Result<()> {
    let linear = nn::Linear::new(4, 4)?;
    let layers = nn::Sequential::new().append(linear.clone()).append(linear.clone()).append(linear);
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let mut model = Model::new(layers)?;
    assert_eq!(model.leaves(&ParameterFilter::All).len(), 6);
    expect![[r#"
        parameter        aval      format    bits     error        before         after
        layers.0.bias    f32[4]    -                                   16            16  no rule names it
        layers.0.weight  f32[4,4]  -                                   64            64  no rule names it
        layers.1.bias    f32[4]    -                                   16            16  no rule names it
        layers.1.weight  f32[4,4]  -                                   64            64  no rule names it
        layers.2.bias    f32[4]    -                                   16            16  no rule names it
        layers.2.weight  f32[4,4]  -                                   64            64  no rule names it
                                                                      240           240
        one array, and no tie: layers.0.bias, layers.1.bias, layers.2.bias
        one array, and no tie: layers.0.weight, layers.1.weight, layers.2.weight"#]]
    .assert_eq(&model.report().to_string());
    for _ in 0..2 {
        let (_, gradients) = model.value_and_grad(ParameterFilter::All, normal(4, &[2, 4]), |m, x: Array| {
            m.forward(&x)?.square()?.mean(None)
        })?;
        assert_eq!(gradients.len(), 6);
        model.update(&mut Sgd::new(0.1), &gradients)?;
    }
    expect![[r#"
        parameters that were one array in the module are trained each by itself: layers.0.bias, layers.1.bias, layers.2.bias; where they are to be one, declare it by `Model::tie`"#]]
    .assert_eq(&log.lines().join("\n"));
    let weight = |layer: usize| Ok::<_, Error>(numbers(&model.get(&format!("layers.{layer}.weight"))?.dense()?));
    assert!(weight(0)? != weight(1)? && weight(1)? != weight(2)?);

    let path = |layer: u64| format!("layers.{layer}.weight");
    let given = (0..3).map(|layer| (path(layer), normal(layer, &[4, 4]).into())).collect();
    model.assign(given, Missing::Keep)?;
    for layer in 0..3 {
        assert_eq!(numbers(&model.get(&path(layer))?.dense()?), numbers(&normal(layer, &[4, 4])));
    }
    Ok(())
}

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Two {
    #[param]
    a: nn::Linear,
    #[param]
    b: nn::Linear,
}

#[test]
fn a_transaction_that_fails_unties() -> Result<()> {
    let mut model = Model::new(Two { a: nn::Linear::new(4, 4)?, b: nn::Linear::new(4, 4)? })?;
    let before = model.get("b.weight")?.dense()?;
    before.eval()?;
    let failed = model.transaction(|model| -> Result<()> {
        *model = model.clone().tie("b.weight", "a.weight")?;
        Err(tacit_core::Error::invalid("not now", "try again"))
    });
    assert!(failed.is_err());
    assert!(model.values()?.contains_key("b.weight"));
    assert!(model.get("b.weight")?.dense()?.eq_exact(&before)?);
    Ok(())
}

//! Models that are observed, and quantized by what was seen.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use expect_test::expect;
use mlx_rs::module::Module;
use mlx_rs::{Array, nn, ops};
use tacit_arrays::format::{AnyFormat, Nf4, Quantizer};
use tacit_arrays::{Awq, Calibrate, Gptq, Lora, Observation, Observed};
use tacit_core::{Counters, Error, Policy, Result, Value};
use tacit_nn::{Advice, Advisor, LoraConfig, Model, Observations, ParameterFilter, Parameters, Pattern, Rules};

use crate::types::{error, normal, said_of};

const NF4: Nf4 = Nf4 { block: 64, double: false };

fn linear(seed: u64, inputs: i32, outputs: i32) -> nn::Linear {
    let eighth = |shape: &[i32]| normal(seed, shape).divide(Array::from_f32(8.0)).expect("divides");
    let mut linear = nn::Linear::new(inputs, outputs).expect("builds");
    *linear.weight = eighth(&[outputs, inputs]);
    *linear.bias = Some(eighth(&[outputs]));
    linear
}

fn layers() -> nn::Sequential {
    nn::Sequential::new().append(linear(5, 128, 128)).append(nn::Relu).append(linear(6, 128, 16))
}

fn model() -> Model<nn::Sequential> {
    Model::new(layers()).expect("a model")
}

/// Inputs that are mixtures of 16.
fn batch(seed: u64) -> Array {
    let mixed = normal(seed, &[64, 16]).matmul(normal(100, &[16, 128])).expect("mixes");
    mixed.add(normal(seed + 1, &[64, 128]).multiply(Array::from_f32(0.3)).expect("small")).expect("adds")
}

fn number(array: &Array) -> f32 {
    array.eval().expect("evaluates");
    array.item_exact::<f32>()
}

fn distance(a: &Array, b: &Array) -> f32 {
    number(&a.subtract(b).and_then(|x| x.square()?.mean(None)).expect("a mean"))
}

fn dense(value: &Value) -> Array {
    value.dense().expect("dense")
}

#[test]
fn a_model_quantized_by_what_was_seen_loses_less() {
    let mut observed = model();
    let (seen, counters) = {
        let _deny = Policy::Deny.scope();
        Counters::during(|| {
            observed.observe("*", |model| {
                model.forward(&batch(1))?;
                model.forward(&batch(3))
            })
        })
    };
    let seen = seen.expect("runs");
    assert_eq!(counters.materialized_bytes, 0);
    assert_eq!(seen.paths().collect::<Vec<_>>(), ["layers.0.weight", "layers.2.weight"]);
    let both = ops::concatenate(&[batch(1), batch(3)], 0).expect("rows");
    let first = seen.get("layers.0.weight").expect("seen");
    assert_eq!(first.rows(), [128]);
    let expected = Observation::from_inputs(&both).expect("finite");
    let [first, expected] = [first, &expected].map(|seen| seen.gram().expect("products"));
    let off = number(&first.subtract(expected).and_then(|x| x.abs()?.max(None)).expect("a maximum"));
    assert!(off <= 1e-5 * number(&expected.max(None).expect("a maximum")), "off by {off}");

    // On inputs that were not observed.
    let (x, y) = (batch(5), observed.forward(&batch(5)).expect("runs"));
    for text in ["affine:3:64", "nf4:64", "affine:4:32"] {
        let plain = model().quantize("*", text).expect("quantizes").forward(&x).expect("runs");
        for (method, at_most) in [(&Gptq::default() as &dyn Calibrate, 0.5), (&Awq::default(), 0.99)] {
            let mut calibrated = model().quantize_observed("*", text, &seen, method).expect("quantizes");
            assert!(calibrated.get("layers.0.weight").expect("there").is_implicit());
            let found = distance(&calibrated.forward(&x).expect("runs"), &y);
            assert!(found <= at_most * distance(&plain, &y), "{text}: {found}, rounding {}", distance(&plain, &y));
        }
    }
}

#[test]
fn the_weights_are_back_afterwards() {
    let fails = |_: &mut Model<nn::Sequential>| Err::<(), _>(Error::invalid("it fails", "no help"));
    let mut model = Model::new(layers()).and_then(|model| model.quantize("layers.2.*", NF4)).expect("a model");
    let before = model.values().expect("values");
    let same = |model: &Model<nn::Sequential>| {
        for (path, value) in model.values().expect("values") {
            assert!(value.downcast::<Observed>().is_none(), "{path} is still observed");
            assert!(dense(&value).eq_exact(dense(&before[&path])).expect("compares"), "{path} is another one");
        }
    };
    let x = batch(1);
    let y = model.forward(&x).expect("runs");
    model
        .observe("*", |model| {
            assert!(model.get("layers.0.weight")?.downcast::<Observed>().is_some());
            assert!(model.forward(&x)?.eq_exact(&y)?);
            Ok::<_, Error>(())
        })
        .expect("runs");
    same(&model);
    expect![[r#"
        it fails
        help: no help"#]]
    .assert_eq(&error(model.observe("*", fails)).to_string());
    same(&model);
    let panicked =
        catch_unwind(AssertUnwindSafe(|| model.observe("*", |_| -> Result<()> { panic!("on purpose") }).map(|_| ())));
    assert!(panicked.is_err());
    same(&model);
    assert!(model.forward(&x).expect("runs").eq_exact(&y).expect("compares"));
}

/// So what is seen of a weight does not depend on which others are observed.
#[test]
fn an_observed_model_computes_the_same_bits() {
    // The sums of so many products are added up in parts, of which the first is added to the bias.
    let layers = || nn::Sequential::new().append(linear(5, 1024, 1024)).append(nn::Relu).append(linear(6, 1024, 16));
    let x = normal(1, &[2, 16, 1024]);
    for text in [None, Some(NF4)] {
        let mut model = Model::new(layers()).expect("a model");
        if let Some(format) = text {
            model = model.quantize("layers.0.*", format).expect("fits");
        }
        let y = model.forward(&x).expect("runs");
        let seen = model
            .observe("*", |model| {
                assert!(model.forward(&x)?.eq_exact(&y)?);
                Ok::<_, Error>(())
            })
            .expect("runs");
        for path in ["layers.0.weight", "layers.2.weight"] {
            let alone = model.observe(path, |model| model.forward(&x)).expect("runs");
            let [found, expected] = [&alone, &seen].map(|seen| seen.get(path).expect("seen").gram().expect("products"));
            assert!(found.eq_exact(expected).expect("compares"), "{path}");
        }
    }
}

#[test]
fn an_adapter_stays_frozen() {
    let mut model = Model::new(layers()).and_then(|m| m.lora("*.weight", LoraConfig::default())).expect("adapts");
    mlx_rs::module::ModuleParameters::freeze_parameters(&mut model, true);
    let trained = |model: &Model<nn::Sequential>| model.leaves(&ParameterFilter::default()).len();
    let before = trained(&model);
    let seen = model.observe("*", |model| model.forward(&batch(1))).expect("runs");
    assert_eq!(trained(&model), before);
    assert!(model.get("layers.0.weight").expect("there").downcast::<Lora>().is_some());
    assert_eq!(seen.get("layers.0.weight").expect("seen").rows(), [64]);
}

/// What another rank met has been met, and an error of the group is not an error of a weight.
#[test]
fn what_was_seen_over_ranks_is_the_same_on_each() {
    let mut embedding = Model::new(nn::Embedding::new(32, 64).expect("builds")).expect("a model");
    let tokens = Array::from_slice(&[3u32, 1, 2], &[1, 3]);
    let seen = embedding.observe("*", |model| model.forward(&tokens)).expect("runs");
    assert!(!seen.met("weight"));
    // The other rank has a product with the same weight.
    let more = Array::from_slice(&[0i64, 0, 0, 1, 1], &[5]);
    let all = seen.over_ranks(|told| Ok(told.add(told)?.add(&more)?)).expect("adds");
    assert!(all.met("weight") && all.get("weight").is_err());

    let seen = model().observe("*", |model| model.forward(&batch(1))).expect("runs");
    let mut calls = 0;
    let lost = seen.over_ranks(|sums| {
        calls += 1;
        if calls == 1 { Ok(sums.clone()) } else { Err(Error::Mlx("a rank is lost".to_owned())) }
    });
    assert!(matches!(lost, Err(Error::Mlx(_))));
}

#[test]
fn a_tied_head_is_seen_and_lookups_are_not() {
    let mut model = Model::new(nn::Embedding::new(32, 64).expect("builds")).expect("a model");
    let tokens = Array::from_slice(&[3u32, 1, 2], &[1, 3]);
    let seen = model.observe("*", |model| {
        model.run(|embedding| {
            let x = embedding.forward(&tokens)?;
            embedding.as_linear(&x)
        })
    });
    let seen = seen.expect("runs");
    assert_eq!(seen.get("weight").expect("seen").rows(), [3]);
    assert!(seen.met("weight") && !seen.met("bias"));
    let seen = model.observe("*", |model| model.forward(&tokens)).expect("runs");
    expect![[r#"
        the parameter weight: the weight f32[32,64] was not multiplied while it was observed
        help: run the model on inputs that reach it, or leave it out"#]]
    .assert_eq(&error(seen.get("weight")).to_string());
    expect![[r#"
        the parameter weight: the weight f32[32,64] was not multiplied while it was observed
        help: run the model on inputs that reach it, or leave it out"#]]
    .assert_eq(&error(model.quantize_observed("*", NF4, &seen, &Gptq::default())).to_string());
}

#[test]
fn an_advisor_weighs_by_what_was_seen() {
    let sizes = Array::from_iter((0..128).map(|i| if i < 8 { 30f32 } else { 1.0 }), &[128]);
    let x = normal(1, &[64, 128]).multiply(sizes).expect("larger");
    let mut model = model();
    let seen = model.observe("layers.0.*", |model| model.forward(&x)).expect("runs");
    let values = model.values().expect("values");
    let formats =
        || ["affine:2:64", "affine:3:64", "affine:4:64", "affine:6:64"].map(|text| text.parse().expect("a format"));
    let advice = |advisor: Advisor| advisor.advise(&values, 5.0).expect("fits");
    let squares = model.observe_squares("layers.0.*", |model| model.forward(&x)).expect("runs");
    assert!(squares.get("layers.0.weight").expect("seen").gram().is_err());
    let plain = advice(Advisor::new(formats()));
    let observed = advice(Advisor::new(formats()).with_observations(&seen).expect("finite"));
    let by_squares = advice(Advisor::new(formats()).with_observations(&squares).expect("finite"));
    let given = Parameters::from([("layers.0.weight".to_owned(), x.into())]);
    let given = advice(Advisor::new(formats()).with_inputs(given));
    let texts = |advice: &Advice| advice.rows.values().map(|row| row.format.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&observed), texts(&given));
    assert_eq!(texts(&by_squares), texts(&given));
    for observed in [&observed, &by_squares] {
        assert!((observed.error / given.error - 1.0).abs() < 1e-4, "{} and {}", observed.error, given.error);
    }
    assert!((observed.error / plain.error - 1.0).abs() > 0.01, "what was seen changes nothing");
    expect![[r#"
        there are inputs for layers.0.weight, and no such parameter
        help: name inputs by the path of the parameter that they are multiplied with"#]]
    .assert_eq(
        &error(Advisor::new(formats()).with_observations(&seen).expect("finite").advise(&Parameters::new(), 5.0))
            .to_string(),
    );
}

/// The least number of bits that a message names is enough.
#[test]
fn an_advisor_takes_the_least_bits_that_it_names() {
    let advisor = Advisor::new(["affine:4:64".parse().expect("a format")]);
    // 352/65 bits an element, of which three digits are less or more, and 5.6, which is no float.
    for (weight, bias) in [([8, 64], 8), ([11, 64], 16)] {
        let parameters = Parameters::from([
            ("weight".to_owned(), normal(1, &weight).into()),
            ("bias".to_owned(), normal(2, &[bias]).into()),
        ]);
        let error = advisor.advise(&parameters, 1.0).expect_err("it is too few").to_string();
        let (_, least) = error.split_once("the least is ").expect("the least");
        let least: f64 = least.lines().next().and_then(|least| least.parse().ok()).expect("a number");
        let advice = advisor.advise(&parameters, least).expect("it is enough");
        assert!((advice.bits..advice.bits + 0.001).contains(&least), "{least} and {}", advice.bits);
        assert!(advisor.advise(&parameters, advice.bits).is_ok());
        assert!(advisor.advise(&parameters, advice.bits - 0.001).is_err());
    }
}

/// A format that fails.
#[derive(Debug)]
struct Failing(fn() -> Error);

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failing")
    }
}

impl Quantizer for Failing {
    fn quantize(&self, _: &Array) -> Result<Value> {
        Err((self.0)())
    }
}

#[test]
fn formats_that_do_not_fit_are_passed_over_and_no_other_error_is() {
    let parameters = Parameters::from([("weight".to_owned(), normal(1, &[8, 64]).into())]);
    let advice = |failing| Advisor::new([Failing(failing).into(), AnyFormat::from(NF4)]).advise(&parameters, 5.0);
    let advised = advice(|| Error::invalid("the rows are odd", "take others")).expect("one fits");
    assert_eq!(advised.rows["weight"].format.as_deref(), Some("nf4:64"));
    let no_memory = || Error::Mlx("no memory\nhelp: take a smaller model".to_owned());
    assert!(matches!(advice(no_memory), Err(Error::Mlx(_))));
    assert!(matches!(model().quantize("*", Failing(no_memory)), Err(Error::Mlx(_))));
    expect![[r#"
        mlx: no memory
        of: layers.0.weight
        help: take a smaller model"#]]
    .assert_eq(&error(model().quantize("*", Failing(no_memory))).to_string());
    assert!(matches!(model().prepare("*", Failing(no_memory)), Err(Error::Mlx(_))));
}

/// That there is no random key is no reason to leave each parameter as it is.
#[test]
fn a_format_that_rounds_by_a_key_is_refused_where_there_is_none() {
    let text = "nf4:64+stochastic";
    let parameters = Parameters::from([("weight".to_owned(), normal(1, &[8, 64]).into())]);
    let advice = Advisor::new([text.parse().expect("a format"), AnyFormat::from(NF4)]).advise(&parameters, 8.0);
    let mut observed = model();
    let seen = observed.observe("*", |model| model.forward(&batch(1))).expect("runs");
    let calibrated = model().quantize_observed("*", text, &seen, &Gptq::default());
    for error in [advice.err(), model().quantize("*", text).err(), calibrated.err()] {
        assert_eq!(
            error.expect("there is no key").to_string(),
            "the format nf4:64+stochastic rounds by a random key, and there is none here\n\
             help: give one to `format::quantize_by_key`, or round to the nearest codes by nf4:64"
        );
    }
}

#[test]
fn what_was_not_seen_is_an_error() {
    let mut observed = model();
    let mut said = [
        said_of(observed.observe("layers.7.*", |model| model.forward(&batch(1)))),
        said_of(observed.observe("layers.0.bias", |model| model.forward(&batch(1)))),
        said_of(observed.observe("layers.0.[", |model| model.forward(&batch(1)))),
    ]
    .concat();
    let traced = observed.observe("*", |model| {
        model.value_and_grad(ParameterFilter::All, batch(1), |model, x: Array| model.forward(&x)?.square()?.mean(None))
    });
    said += &said_of(traced);
    let seen = observed.observe("layers.0.*", |model| model.forward(&batch(1))).expect("runs");
    said += &said_of(model().quantize_observed("*", NF4, &seen, &Gptq::default()));
    let rotated = model().quantize_observed("layers.0.*", "rotated:nf4:64", &seen, &Gptq::default());
    said += &said_of(rotated);
    let nan = batch(1).multiply(Array::from_f32(f32::NAN)).expect("nan");
    let seen = observed.observe("layers.0.*", |model| model.forward(&nan)).expect("runs");
    said += &said_of(model().quantize_observed("layers.0.*", NF4, &seen, &Gptq::default()));
    expect![[r#"
        the pattern layers.7.* names no weight of the model that can be observed
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight
        the parameter layers.0.bias: the observed weight is f32[128], which is neither a matrix nor a stack of them
        help: observe a weight of two or three axes
        layers.0.[ is no glob: unclosed character class; missing ']'
        help: write a path, a glob such as `layers.*.{q,v}_proj.weight`, or `re:` and a regular expression
        an observed weight is multiplied inside a transformation, where nothing can be summed
        help: observe plain calls of the model, outside of compile, vmap and gradients
        the parameter layers.2.weight was not observed
        help: observe it, or quantize it without observations first; observed are layers.0.weight
        the parameter layers.0.weight: GPTQ does not code f32[128,128] in rotated:nf4:64: a rotation makes each element of all inputs
        help: take a format whose blocks lie along the rows and divide them, or another method
        the parameter layers.0.weight: the activations have an element that is NaN or infinite, or squares whose sum is beyond f32
        help: look for the input that makes it, such as a position that is masked whole
    "#]]
    .assert_eq(&said);
    // What a rule skips, or a format does not fit, needs no observations.
    let seen = observed.observe("layers.0.*", |model| model.forward(&batch(1))).expect("runs");
    let rules = Rules::new().skip("layers.2.*").and_then(|rules| rules.quantize("*", NF4)).expect("rules");
    let model = model().quantize_observed("*", &rules, &seen, &Gptq::default()).expect("quantizes");
    assert!(!model.get("layers.2.weight").expect("there").is_implicit());
}

#[test]
fn sums_of_one_path_are_added() -> Result<()> {
    let of = |parts: [Observation; 2]| -> Observations {
        parts.map(|part| ("weight".to_owned(), part)).into_iter().collect()
    };
    let both = of([Observation::from_inputs(&batch(1))?, Observation::from_inputs(&batch(2))?]);
    assert_eq!(both.get("weight")?.rows(), [128]);
    let unlike = of([Observation::from_inputs(&batch(1))?, Observation::from_inputs(&normal(3, &[4, 8]))?]);
    assert!(unlike.get("weight").is_err());
    Ok(())
}

/// What is seen in groups is what is seen at once.
#[test]
fn weights_are_observed_in_groups_of_few_bytes() -> Result<()> {
    let sequential = (0..12).fold(nn::Sequential::new(), |layers, seed| layers.append(linear(seed, 16, 16)));
    let mut model = Model::new(sequential)?;
    let x = normal(1, &[4, 16]);
    let of_one = 4 * 16 * 16;
    let groups = model.observation_groups("*", 5 * of_one + 1)?;
    assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 2]);
    assert_eq!((&*groups[0][4], &*groups[2][1]), ("layers.4.weight", "layers.11.weight"));
    let all = model.observe("*", |model| model.forward(&x))?;
    for paths in groups {
        let seen = model.observe(Pattern::any(&paths), |model| model.forward(&x))?;
        assert_eq!(seen.paths().count(), paths.len());
        for path in &paths {
            assert!(seen.get(path)?.gram()?.eq_exact(all.get(path)?.gram()?)?, "{path}");
        }
    }
    // A weight whose sums take more is a group by itself.
    assert_eq!(model.observation_groups("layers.{3,4}.*", 1)?, [["layers.3.weight"], ["layers.4.weight"]]);
    assert!(model.observation_groups("*.bias", 1)?.is_empty());
    Ok(())
}

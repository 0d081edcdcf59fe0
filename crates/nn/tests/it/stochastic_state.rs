//! Moments that are rounded at random.

use mlx_rs::builder::Builder;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{Adam, LionBuilder, Optimizer};
use mlx_rs::{Array, Dtype, nn};
use tacit_core::compile::{CompileOptions, compile_with_state};
use tacit_core::{Policy, Result, tree};
use tacit_nn::{Model, ParameterFilter, Parameters, QuantizedState, Rules, SavedMoments};

use crate::types::{normal, numbers};

fn rules() -> Rules {
    let rules = Rules::new().quantize("*.1", "dynamic:8:256:unsigned+stochastic");
    rules.and_then(|rules| rules.quantize("*", "dynamic:8:256+stochastic")).expect("formats")
}

fn adam(seed: u64) -> QuantizedState<Adam> {
    QuantizedState::new(Adam::new(3e-3), &rules()).expect("formats").with_seed(seed)
}

/// All arrays of a state as numbers.
fn arrays(adam: &QuantizedState<Adam>) -> Vec<Vec<f32>> {
    let floats = |array: &Array| numbers(&array.as_dtype(Dtype::Float32).expect("casts"));
    tree::arrays(adam).expect("arrays").iter().map(floats).collect()
}

fn steps(adam: &mut QuantizedState<Adam>, seeds: std::ops::Range<u64>) -> Vec<f32> {
    let mut weight = normal(1, &[64, 96]);
    for seed in seeds {
        adam.update_single(&"weight".into(), &normal(seed, &[64, 96]), &mut weight).expect("steps");
    }
    numbers(&weight)
}

#[test]
fn a_seed_gives_the_bits_and_each_step_draws_anew() {
    let _deny = Policy::Deny.scope();
    let [mut first, mut second, mut other] = [7, 7, 8].map(adam);
    let [found, same, apart] = [&mut first, &mut second, &mut other].map(|adam| steps(adam, 10..13));
    assert!(found == same && arrays(&first) == arrays(&second));
    assert!(found != apart && arrays(&first) != arrays(&other));
    let printed: Vec<String> =
        first.values().expect("values").iter().map(|(key, value)| format!("{key}: {value}")).collect();
    assert_eq!(printed, ["@key: u32[2]", "weight.0: Dynamic(f32[64,96])", "weight.1: Dynamic(f32[64,96])"]);
    // Each step moves the key.
    let mut again = first.clone();
    let key = again.values().expect("values")["@key"].dense().expect("is dense");
    steps(&mut again, 20..21);
    let next = again.values().expect("values")["@key"].dense().expect("is dense");
    assert!(!key.eq_exact(&next).expect("compares"));
}

/// Codes that are rounded to the nearest stay where they are while a mean moves by less than half of a step.
#[test]
fn a_mean_follows_changes_that_are_smaller_than_a_step() {
    // Where the largest of a block is 1, codes around 0.5 are 0.014 apart.
    let start = Array::from_slice(&[1.0f32, 0.5].repeat(2048), &[64, 64]);
    let gradient = Array::from_slice(&[1.0f32, 0.4].repeat(2048), &[64, 64]);
    let mean = |text: &str| -> Result<f32> {
        // A mean of a hundred gradients, which moves by 0.001 at first.
        let lion = LionBuilder::new(1e-6).betas((0.9, 0.99)).build().expect("builds");
        let mut lion = QuantizedState::new(lion, text)?;
        let moments = Parameters::from([("weight".to_owned(), start.clone().into())]);
        *lion.state_mut() = SavedMoments::of_values(&moments)?.expect("of its kind");
        let mut weight = start.clone();
        for _ in 0..60 {
            lion.update_single(&"weight".into(), &gradient, &mut weight)?;
        }
        let made = lion.values()?["weight"].dense()?.reshape(&[-1, 2])?;
        Ok(made.mean_axis(0, None)?.as_slice::<f32>()[1])
    };
    let _allow = Policy::Allow.scope();
    let [nearest, drawn] = ["dynamic:8:256", "dynamic:8:256+stochastic"].map(|text| mean(text).expect("runs"));
    let exact = 0.4 + 0.1 * 0.99f32.powi(60);
    assert!((nearest - exact).abs() > 0.03, "{nearest} and {exact}");
    assert!((drawn - exact).abs() < 0.005, "{drawn} and {exact}");
}

/// The table ends nearer to zero below it.
#[test]
fn a_mean_that_is_the_largest_of_its_block_may_be_negative() {
    let _allow = Policy::Allow.scope();
    let gradient = Array::from_slice(&[-1.0f32, 0.5].repeat(2048), &[64, 64]);
    let lion = LionBuilder::new(1e-6).betas((0.9, 0.99)).build().expect("builds");
    let mut lion = QuantizedState::new(lion, "dynamic:8:256+stochastic").expect("a format");
    let mut weight = gradient.clone();
    for _ in 0..60 {
        lion.update_single(&"weight".into(), &gradient, &mut weight).expect("steps");
    }
    let made = lion.values().expect("values")["weight"].dense().expect("is dense");
    let means = made.reshape(&[-1, 2]).and_then(|made| made.mean_axis(0, None)).expect("means");
    let exact = 0.99f32.powi(60) - 1.0;
    let found = numbers(&means)[0];
    assert!((found - exact).abs() < 1e-3, "{found} and {exact}");
}

type State = (Model<nn::Linear>, QuantizedState<Adam>);

#[test]
fn a_compiled_step_draws_what_the_eager_one_does() {
    let new = || {
        let mut linear = nn::Linear::new(96, 64).expect("builds");
        *linear.weight = normal(1, &[64, 96]);
        (Model::new(linear).expect("a model"), adam(3))
    };
    // Linear in the weight, so that both steps have the same gradients.
    let step = |(model, adam): &mut State, x: Array| {
        let trained = ParameterFilter::Paths("weight".parse()?);
        let (loss, gradients) = model.value_and_grad(trained, &x, |m, x: &Array| m.forward(x)?.sum(None))?;
        model.update(adam, &gradients)?;
        Ok::<_, tacit_core::Error>(loss)
    };
    let (mut eager, mut compiled) = (new(), new());
    let mut function = compile_with_state(CompileOptions::default(), step);
    for at in 0..5 {
        let x = normal(10 + at, &[32, 96]);
        step(&mut eager, x.clone()).expect("runs");
        function.call(&mut compiled, x).expect("runs");
    }
    // The key and the codes appear with the first step.
    assert_eq!(function.stats().traces, 2);
    let [key, codes] = [0, 1].map(|place| [&eager, &compiled].map(|(_, adam)| arrays(adam)[place].clone()));
    assert_eq!(key[0], key[1]);
    // Moments that differ in their last bit may be drawn apart.
    let apart = codes[0].iter().zip(&codes[1]).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert!(apart * 1000 < codes[0].len(), "{apart} of {}", codes[0].len());
}

/// A state of floats takes what the codes stand for, and no key; and a key comes with the first moment of such a state.
#[test]
fn a_run_goes_on_in_floats_and_back() {
    let mut drawn = adam(2);
    steps(&mut drawn, 10..12);
    let values = drawn.values().expect("values");
    let _allow = Policy::Allow.scope();
    let mut float = Adam::new(3e-3);
    *float.state_mut() = SavedMoments::of_values(&values).expect("lists").expect("is of its kind");
    let floats = SavedMoments::values(float.state()).expect("lists");
    assert_eq!(floats.keys().collect::<Vec<_>>(), ["weight.0", "weight.1"]);
    let mut back = adam(2);
    *back.state_mut() = SavedMoments::of_values(&floats).expect("lists").expect("is of its kind");
    steps(&mut back, 12..13);
    let printed: Vec<String> = back.values().expect("values").values().map(ToString::to_string).collect();
    assert_eq!(printed, ["u32[2]", "Dynamic(f32[64,96])", "Dynamic(f32[64,96])"]);
}

/// The bias, which comes first, has taken a key when the weight fails.
#[test]
fn what_fails_gives_the_key_back() {
    let mut model = Model::new(nn::Linear::new(96, 64).expect("builds")).expect("a model");
    let mut adam = adam(2).from_elements(1);
    steps(&mut adam, 10..11);
    let before = arrays(&adam);
    let gradients = [("bias", normal(2, &[64])), ("weight", normal(3, &[63, 95]))];
    let gradients: FlattenedModuleParam = gradients.into_iter().map(|(path, array)| (path.into(), array)).collect();
    assert!(adam.update(&mut model, &gradients).is_err());
    assert!(arrays(&adam) == before);
}

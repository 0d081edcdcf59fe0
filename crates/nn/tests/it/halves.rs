//! Models in half floats.

use expect_test::expect;
use half::f16;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, Param};
use mlx_rs::{Array, Dtype, error::Exception, nn};
use tacit_arrays::F16Array;
use tacit_core::{Policy, Value};
use tacit_nn::{Model, Outcome, Parameters, Rules, hold_halves};

use crate::log::Log;
use crate::types::normal;

/// A tiny language model with what such a model consists of.
#[derive(Debug, Clone, ModuleParameters)]
struct Words {
    #[param]
    table: nn::Embedding,
    #[param]
    norm: nn::RmsNorm,
    #[param]
    up: nn::Linear,
    #[param]
    down: nn::Linear,
}

impl Module<&Array> for Words {
    type Output = Array;
    type Error = Exception;

    fn forward(&mut self, tokens: &Array) -> Result<Array, Exception> {
        let x = self.table.forward(tokens)?;
        let y = self.down.forward(&nn::silu(self.up.forward(&self.norm.forward(&x)?)?)?)?;
        self.table.as_linear(&x.add(y)?)
    }

    fn training_mode(&mut self, _: bool) {}
}

fn words(dtype: Dtype) -> Model<Words> {
    let linear = |inputs, outputs| nn::Linear::new(inputs, outputs).expect("builds");
    let (table, norm) = (nn::Embedding::new(50, 64).expect("builds"), nn::RmsNorm::new(64).expect("builds"));
    let mut model = Model::new(Words { table, norm, up: linear(64, 96), down: linear(96, 64) }).expect("a model");
    let mut seed = 0;
    model
        .replace("*", |_, value| {
            seed += 1;
            let numbers = normal(seed, &value.aval()?.shape).multiply(Array::from_f32(0.1))?;
            Ok(Some(numbers.as_dtype(dtype)?.into()))
        })
        .expect("replaces");
    model
}

#[test]
fn their_matrices_are_multiplied_as_they_are_stored() {
    let tokens = Array::from_slice(&[3u32, 49, 0, 7, 7], &[1, 5]);
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        let mut model = words(dtype);
        let expected = model.forward(&tokens).and_then(|y| y.as_dtype(Dtype::Float32)).expect("runs");
        let (bytes, log) = (model.nbytes(), Log::default());
        tracing::subscriber::with_default(log.clone(), || model.hold_halves().map(drop)).expect("holds");
        let name = if dtype == Dtype::Float16 { "f16" } else { "bf16" };
        assert_eq!(
            log.lines(),
            [
                "3 matrices of half floats, 0.0 MiB, are multiplied as f16 and bf16 arrays: MLX has no fast product of them on this CPU"
            ]
        );
        assert_eq!(model.nbytes(), bytes);
        for (path, value) in model.values().expect("has values") {
            assert_eq!(value.is_implicit(), ["table.weight", "up.weight", "down.weight"].contains(&&*path), "{path}");
        }
        let outcome = Outcome::Quantized { format: name.to_owned(), bits: 16.0, error: 0.0 };
        assert_eq!(model.report().rows["up.weight"].outcome, outcome);
        let y = {
            let _deny = Policy::Deny.scope();
            model.forward(&tokens).expect("runs")
        };
        assert_eq!(y.dtype(), dtype);
        let y = y.as_dtype(Dtype::Float32).expect("f32");
        // MLX's own product on the CPU sums in the half type.
        assert!(y.all_close(&expected, 0.03, 0.03, None).expect("compares"), "{name}");
        // A second time there is nothing left to hold, and nothing to say.
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || model.hold_halves().map(drop)).expect("holds");
        assert!(log.lines().is_empty());
    }
}

#[test]
fn what_is_no_matrix_of_half_floats_stays() {
    let half = |shape: &[i32]| normal(1, shape).as_dtype(Dtype::Bfloat16).expect("halves");
    let given =
        [("wide", normal(2, &[4, 8])), ("vector", half(&[8])), ("kernels", half(&[2, 3, 4])), ("m", half(&[4, 8]))];
    let given: Parameters = given.map(|(path, array)| (path.to_owned(), Value::from(array))).into();
    let held = hold_halves(given).expect("holds");
    let printed: Vec<String> = held.iter().map(|(path, value)| format!("{path}: {value}")).collect();
    expect![[r#"
        kernels: bf16[2,3,4]
        m: Bf16(bf16[4,8])
        vector: bf16[8]
        wide: f32[4,8]"#]]
    .assert_eq(&printed.join("\n"));
}

#[test]
fn they_are_not_copied_where_they_lie_row_by_row() {
    let own = normal(3, &[6, 8]).as_dtype(Dtype::Float16).expect("halves");
    own.eval().expect("evaluates");
    let given = Parameters::from([("own".to_owned(), own.clone().into()), ("transposed".to_owned(), own.t().into())]);
    let held = hold_halves(given).expect("holds");
    let codes = |path: &str| held[path].downcast::<F16Array>().expect("is held").codes().clone();
    assert_eq!(codes("own").as_slice::<u16>().as_ptr(), own.as_slice::<f16>().as_ptr().cast());
    assert_eq!(codes("transposed").strides(), [6, 1]);
    let _allow = Policy::Allow.scope();
    assert!(held["transposed"].dense().expect("dense").eq_exact(own.t()).expect("compares"));
}

/// Two mixtures of experts.
#[derive(Debug, Clone, ModuleParameters)]
struct Stacks {
    #[param]
    first: Param<Array>,
    #[param]
    second: Param<Array>,
}

#[test]
fn a_stack_is_named_by_either_path_of_a_tie() {
    let of = |seed| Param::new(normal(seed, &[2, 8, 16]).as_dtype(Dtype::Bfloat16).expect("halves"));
    for pattern in ["first", "second"] {
        let stacks = Stacks { first: of(1), second: of(2) };
        let mut model = Model::new(stacks).and_then(|model| model.tie("second", "first")).expect("ties");
        model.hold_stacked_halves(pattern).expect("holds");
        assert_eq!(model.get("first").expect("is there").to_string(), "Bf16(bf16[2,8,16])", "{pattern}");
    }
}

#[test]
fn rules_name_them() {
    let rules = Rules::from_json(r#"{"table.*": "f16", "*": "bf16"}"#).expect("are rules");
    let model = words(Dtype::Float32).quantize("*", &rules).expect("applies");
    assert_eq!(model.get("table.weight").expect("is there").to_string(), "F16(f32[50,64])");
    assert_eq!(model.get("up.weight").expect("is there").to_string(), "Bf16(f32[96,64])");
    assert_eq!(model.get("up.bias").expect("is there").to_string(), "f32[96]");
    let report = model.report();
    let Outcome::Quantized { format, bits, error } = &report.rows["up.weight"].outcome else { panic!("is held") };
    assert_eq!((format.as_str(), *bits), ("bf16", 16.0));
    assert!((5e-4..4e-3).contains(error), "{error}");
}

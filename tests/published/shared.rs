//! What the tests of published models share.

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use mlx_rs::ops::indexing::argmax_axis;
use tacit::prelude::*;

/// Every matrix in `format`; the vectors, which are the gains of the norms, stay as they are.
pub(crate) fn quantize<M: ModuleParameters + Clone>(model: &M, format: impl Quantizer + 'static) -> Model<M> {
    let model = Model::new(model.clone()).and_then(|model| model.quantize("*", format)).expect("quantizes");
    for (path, value) in model.values().expect("values") {
        assert_eq!(value.is_implicit(), value.aval().expect("an aval").shape.len() == 2, "{path}: {value}");
    }
    model
}

/// The same model with the dense arrays that the parameters stand for.
pub(crate) fn dequantized<M: ModuleParameters + Clone>(model: &M, quantized: &Model<M>) -> M {
    let _allow = Policy::Allow.scope();
    let mut dense = model.clone();
    for (path, slot) in dense.parameters_mut().flatten() {
        *slot = quantized.get(&path).and_then(|value| value.dense()).expect("materializes");
    }
    dense
}

/// Fails if anything was built in a call that its handlers should have taken.
pub(crate) fn assert_handled(counted: &Counters, least: u64) {
    assert!(counted.handled >= least, "{counted:?}");
    assert_eq!((counted.materialized, counted.materialized_bytes), (0, 0), "{counted:?}");
}

pub(crate) fn likeliest(logits: &Array) -> u32 {
    argmax_axis(logits, -1, None).expect("an argmax").item_exact::<u32>()
}

/// How far the logits are from each other, in terms of the largest.
pub(crate) fn distance(found: &Array, expected: &Array) -> f32 {
    let largest = |array: &Array| array.abs().expect("abs").max(None).expect("max").item_exact::<f32>();
    largest(&found.subtract(expected).expect("subtracts")) / largest(expected)
}

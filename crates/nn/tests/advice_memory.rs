//! What an advisor holds while it tries formats: this is the only test of its program, as MLX counts the bytes of a whole one.

mod peak;

// Dense products are those of a program with the facade.
use tacit_blas as _;

use mlx_rs::{Dtype, memory, random};
use tacit_arrays::Observation;
use tacit_arrays::format::AnyFormat;
use tacit_core::{Policy, Value};
use tacit_nn::{Advisor, Observations, Parameters};

use peak::peak;

/// Bytes of the weight, in `f32`.
const WEIGHT: usize = 8192 * 2048 * 4;

/// An advisor holds a number for each input of what it was told of, and no matrix.
fn observations_go_once_an_advisor_has_seen_them() {
    let key = random::key(3).expect("a key");
    let inputs = random::normal::<f32>(&[16, 2048], None, None, &key).expect("numbers");
    let before = memory::active_memory().expect("counts");
    let seen = Observation::from_inputs(&inputs).expect("sums");
    let observations: Observations = [("a.weight".to_owned(), seen)].into_iter().collect();
    let advisor = Advisor::new([]).with_observations(&observations).expect("is finite");
    drop(observations);
    let held = memory::active_memory().expect("counts").saturating_sub(before);
    assert!(held < 1 << 20, "{held} bytes");
    drop(advisor);
}

#[test]
fn advice_holds_the_codes_of_a_weight_and_some_rows_of_floats() {
    let _deny = Policy::Deny.scope();
    let key = |seed| random::key(seed).expect("a key");
    let inputs = random::normal::<f32>(&[16, 2048], None, None, &key(2)).expect("numbers");
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let weight = random::normal::<f32>(&[8192, 2048], None, None, &key(1)).and_then(|x| x.as_dtype(dtype));
        let weight: Value = weight.expect("numbers").into();
        tacit_core::tree::eval(&(&weight, &inputs)).expect("evaluates");
        let parameters = Parameters::from([("a.weight".to_owned(), weight)]);
        let formats = ["affine:4:64", "nf4:64"].map(|text| text.parse::<AnyFormat>().expect("a format"));
        let given = Parameters::from([("a.weight".to_owned(), Value::from(&inputs))]);
        let advisor = Advisor::new(formats).with_inputs(given);
        let held = peak(|| {
            let advice = advisor.advise(&parameters, 5.0).expect("fits");
            assert!(advice.error > 0.0 && advice.rows["a.weight"].format.is_some());
        });
        println!("{dtype:?}: {held} bytes beside a weight of {WEIGHT} in floats");
        assert!(held < WEIGHT / 2 + (24 << 20), "{dtype:?}: {held} bytes");
    }
    observations_go_once_an_advisor_has_seen_them();
}

//! What an advisor holds while it tries formats: this is the only test of its program, as MLX counts the bytes of a whole one.

mod peak;

// Dense products are those of a program with the facade.
use tacit_blas as _;

use mlx_rs::{Dtype, random};
use tacit_arrays::format::AnyFormat;
use tacit_core::{Policy, Value};
use tacit_nn::{Advisor, Parameters};

use peak::peak;

/// Bytes of the weight, in `f32`.
const WEIGHT: usize = 8192 * 2048 * 4;

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
}

//! Codes of moments beside those that bitsandbytes' step on a CPU makes of the same codes.

use mlx_rs::Array;
use mlx_rs::optimizers::{Adam, Optimizer};
use tacit_core::{Policy, Value};
use tacit_nn::{QuantizedState, Rules};

use crate::types::normal;

const BLOCK: usize = 256;

/// Its `create_dynamic_map`, ascending: the means of the even parts of seven decades, with both signs or with one, zero and one.
fn map(signed: bool) -> Vec<f32> {
    let mut values = vec![0.0, 1.0];
    for decade in 0..7 {
        let parts = if signed { 1 << decade } else { 2 << decade };
        for part in 0..parts {
            let mean = (0.1 + 0.9 * (f64::from(part) + 0.5) / f64::from(parts)) * 10_f64.powi(decade - 6);
            values.push(mean as f32);
            if signed {
                values.push(-mean as f32);
            }
        }
    }
    values.sort_by(f32::total_cmp);
    values
}

fn nearest(map: &[f32], x: f32) -> usize {
    let distance = |code: &usize| (map[*code] - x).abs();
    (0..map.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).expect("there are codes")
}

/// The codes of a moment and the scales of its blocks.
fn stored(moment: &Value) -> (Vec<u8>, Vec<f32>) {
    let Value::Implicit(array) = moment else { panic!("{moment} has no codes") };
    let children = array.children();
    let [codes, scales] = [0, 1].map(|at| children[at].1.dense().expect("is dense"));
    (codes.as_slice::<u8>().to_vec(), scales.as_slice::<f32>().to_vec())
}

#[test]
fn codes_are_within_one_of_bitsandbytes() {
    let _deny = Policy::Deny.scope();
    let rules = Rules::new().quantize("*.0", "dynamic:8:256").expect("a rule");
    let rules = rules.quantize("*.1", "dynamic:8:256:unsigned").expect("a rule");
    let mut adam = QuantizedState::new(Adam::new(1e-3), &rules).expect("formats");
    let (mut weight, key) = (normal(1, &[64, 96]), "w".into());
    let maps = [true, false].map(map);
    assert!(maps.iter().all(|map| map.len() == 256));
    let mut moments = [(); 2].map(|()| vec![0_f32; 64 * 96]);
    for step in 0..6 {
        let size = Array::from_f32(0.1_f32.powi(step));
        let gradient = normal(10 + step as u64, &[64, 96]).multiply(size).expect("multiplies");
        adam.update_single(&key, &gradient, &mut weight).expect("steps");
        let [means, squares] = &mut moments;
        for ((mean, square), g) in means.iter_mut().zip(squares).zip(gradient.as_slice::<f32>()) {
            *mean = 0.9 * *mean + 0.1 * g;
            *square = 0.999 * *square + 0.001 * g * g;
        }
        let values = adam.values().expect("values");
        for ((name, map), moment) in ["w.0", "w.1"].into_iter().zip(&maps).zip(&mut moments) {
            let (codes, scales) = stored(&values[name]);
            for (block, x) in moment.chunks_mut(BLOCK).enumerate() {
                let absmax = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                assert!((scales[block] - absmax).abs() < 1e-4 * absmax, "{name}: {} and {absmax}", scales[block]);
                for (x, &code) in x.iter_mut().zip(&codes[BLOCK * block..]) {
                    let expected = nearest(map, *x / absmax);
                    assert!(expected.abs_diff(code.into()) <= 1, "{name}: {code} in step {step}, not {expected}");
                    // The next step begins with one state.
                    *x = map[usize::from(code)] * scales[block];
                }
            }
        }
    }
}

//! Random lives of a model: quantized, prepared, adapted, merged, split off, trained, saved, failed, in any order.
//!
//! After each step the model computes what a dense model with its values does, and a step that failed left it as it was.

mod changes;
mod held;
mod life;
mod lived;
mod net;
mod running;
mod saving;
mod training;
mod verb;

use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::life::Life;
use crate::verb::verb;

/// Whether the whole sweep was asked for.
fn cases() -> u32 {
    if std::env::var("TACIT_SWEEP").is_ok_and(|sweep| sweep == "full") { 1500 } else { 40 }
}

#[test]
fn every_life_is_that_of_a_dense_model() {
    let config = Config { cases: cases(), failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let seed = std::env::var("TACIT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let lives = (proptest::bool::ANY, vec(verb(), 1..12));
    let tried = TestRunner::new_with_rng(config, rng).run(&lives, |(tied, verbs)| {
        let fail = |error: &dyn std::fmt::Display| TestCaseError::fail(error.to_string());
        let mut life = Life::new(tied).map_err(|error| fail(&error))?;
        for verb in &verbs {
            life.live(verb).map_err(|wrong| fail(&format!("{verb:?}: {wrong}\nso far: {}", life.told())))?;
        }
        Ok(())
    });
    if let Err(error) = tried {
        panic!("{error}");
    }
}

//! Whatever builds a dense array is asked of the policy, and counted.

use mlx_rs::Array;
use tacit_arrays::Scaled;
use tacit_core::{Counters, Error, Materialize, Policy, Value};

use crate::operands::{nf4, normal};

fn scaled() -> Scaled {
    Scaled::new(nf4(&normal(1, &[8, 64]), 64), &Array::from_f32(2.0)).expect("fits")
}

#[test]
fn a_layer_is_opened_for_a_view_that_was_asked_for_alone() {
    let inner = nf4(&normal(1, &[8, 64]), 64);
    {
        let _deny = Policy::Deny.scope();
        assert!(matches!(inner.opened(), Err(Error::MaterializationDenied { .. })));
        assert!(matches!(scaled().materialize(), Err(Error::MaterializationDenied { .. })));
    }
    let _allow = Policy::Allow.scope();
    let (_, counters) = Counters::of(|| inner.opened().expect("is built"));
    assert_eq!(counters.materialized, 1);
    let (_, counters) = Counters::of(|| Value::from(scaled()).materialize().expect("is built"));
    assert_eq!((counters.materialized, counters.materialized_bytes), (1, 8 * 64 * 4));
    // The leave ends with the view.
    let _deny = Policy::Deny.scope();
    assert!(inner.opened().is_err());
}

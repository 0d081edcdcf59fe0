//! Files that other libraries wrote: `tests/golden`, with the scripts that made them.

use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Policy, Value};
use tacit_io::Tensors;

/// A golden file or folder.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// One of the decoders.
pub(crate) fn of_decoders(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden").join(name)
}

/// What a value stands for.
pub(crate) fn dense(value: &Value) -> Array {
    let _allow = Policy::Allow.scope();
    value.dense().expect("builds")
}

/// Checks that two checkpoints have the same tensors, to the byte.
pub(crate) fn assert_same_tensors(a: &Path, b: &Path) {
    let [a, b] = [a, b].map(|path| Tensors::open(path).expect("opens"));
    assert_eq!(a.names().collect::<Vec<_>>(), b.names().collect::<Vec<_>>());
    for name in a.names() {
        assert_eq!(a.aval(name).unwrap(), b.aval(name).unwrap(), "{name}");
        assert!(a.bytes(name).unwrap() == b.bytes(name).unwrap(), "{name}");
    }
    assert_eq!(a.metadata(), b.metadata());
}

/// Checks that values are what another library reads, to a relative error in the Frobenius norm.
pub(crate) fn assert_reads<'v>(values: impl IntoIterator<Item = (&'v String, &'v Value)>, expected: &str, within: f32) {
    let expected = Tensors::open(golden(expected)).expect("opens");
    let mut checked = 0;
    for (name, value) in values {
        if !expected.contains(name) {
            assert!(!value.is_implicit(), "{name} is {value}, and nothing is known of it");
            continue;
        }
        let (found, expected) = (value.dense().expect("dense"), expected.get(name).expect("is there"));
        assert_eq!(found.shape(), expected.shape(), "{name}");
        let expected = expected.as_dtype(found.dtype()).expect("casts");
        let [found, expected] = [found, expected].map(|array| array.as_dtype(Dtype::Float32).expect("casts"));
        let difference = found.subtract(&expected).expect("subtracts");
        let norm = |array: &Array| array.square().unwrap().sum(None).unwrap().item_exact::<f32>().sqrt();
        let error = norm(&difference) / norm(&expected);
        assert!(error <= within, "{name} is {} and off by {error}", Aval::from(&expected));
        checked += 1;
    }
    assert_eq!(checked, expected.names().count(), "every expected value is compared");
}

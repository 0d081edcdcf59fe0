//! Which versions of MLX are taken.

#[allow(dead_code, reason = "the build asks for more of it")]
#[path = "../build/versions.rs"]
mod versions;

use versions::{DIFFERENCES, OLDEST, TESTED, Version, defines, untested};

#[test]
fn a_version_is_older_by_its_numbers_and_not_by_its_text() {
    assert!(Version([0, 32, 9]) < Version([0, 32, 10]) && Version([0, 32, 10]) < Version([0, 33, 0]));
    assert!(TESTED.is_sorted() && TESTED.first() == Some(&OLDEST));
}

#[test]
fn a_version_that_no_test_has_seen_is_told_with_those_that_were() {
    for version in TESTED {
        assert_eq!(untested(*version), None);
    }
    let said = untested(Version([0, 33, 1])).expect("it is unknown");
    assert_eq!(
        said,
        "Tacit was never tested with MLX 0.33.1, only with 0.32.2, 0.32.3, 0.32.4; it is taken as far as its headers \
         allow; run the tests before you trust it (MLX_DIR=<prefix> cargo test --workspace)"
    );
}

#[test]
fn a_version_has_what_came_with_it_and_before() {
    assert_eq!(defines(OLDEST).count(), 0);
    assert_eq!(
        defines(Version([0, 32, 3])).collect::<Vec<_>>(),
        ["MLX_HAS_GATHER_QMM_SCALE", "MLX_HAS_SCAN_SHAPES", "MLX_HAS_PLACE_OF_NAN"]
    );
    assert_eq!(defines(Version([1, 0, 0])).count(), DIFFERENCES.len());
}

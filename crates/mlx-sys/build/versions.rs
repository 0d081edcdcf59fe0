//! Which versions of MLX are taken, and what differs between them: whatever depends on a version asks this table.

use std::fmt;

/// A version: its three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) [u32; 3]);

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(out, "{major}.{minor}.{patch}")
    }
}

/// The oldest version that is taken, the pinned one.
pub(crate) const OLDEST: Version = Version([0, 32, 2]);

/// The versions that the tests pass with: `tests/scripts/versions.sh` runs them on each. Every other one that is not older is
/// taken with a warning.
pub(crate) const TESTED: &[Version] = &[OLDEST, Version([0, 32, 3]), Version([0, 32, 4])];

/// Something that an MLX has from a version on.
pub(crate) struct Difference {
    /// The C++ macro that is defined where MLX has it.
    pub(crate) define: &'static str,
    pub(crate) since: Version,
}

/// [`Difference::define`] of what `csrc/gather_qmm.h` is for.
pub(crate) const GATHER_QMM_SCALE: &str = "MLX_HAS_GATHER_QMM_SCALE";

/// What differs between the versions and is not a row of the bridge's `primitives.tbl`.
pub(crate) const DIFFERENCES: &[Difference] = &[
    // `gather_qmm` takes a global scale in front of `sorted_indices`, which mlx-c 0.7.0 does not pass.
    Difference { define: GATHER_QMM_SCALE, since: Version([0, 32, 3]) },
    // Cumulative sums and their like have a rule for shapes, so that a function without shapes may have them.
    Difference { define: "MLX_HAS_SCAN_SHAPES", since: Version([0, 32, 3]) },
    // `argmax` and `argmin` give the place of the first NaN, and pass over NaN before that but where a row begins with it.
    Difference { define: "MLX_HAS_PLACE_OF_NAN", since: Version([0, 32, 3]) },
    // The memory of an array is an `allocator::Data`, and only what MLX's allocator gave is donated.
    Difference { define: "MLX_HAS_OWNED_DATA", since: Version([0, 32, 4]) },
];

/// What is to be said of a version that no test has seen, or nothing.
pub(crate) fn untested(version: Version) -> Option<String> {
    let tested: Vec<String> = TESTED.iter().map(Version::to_string).collect();
    let said = || {
        format!(
            "Tacit was never tested with MLX {version}, only with {}; it is taken as far as its headers allow; run the \
             tests before you trust it (MLX_DIR=<prefix> cargo test --workspace)",
            tested.join(", ")
        )
    };
    (!TESTED.contains(&version)).then(said)
}

/// The macros of what this version has.
pub(crate) fn defines(version: Version) -> impl Iterator<Item = &'static str> {
    DIFFERENCES.iter().filter(move |difference| version >= difference.since).map(|difference| difference.define)
}

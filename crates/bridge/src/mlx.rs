//! Assumptions about MLX that no header states, and what not every MLX has.
//!
//! `tests/it/mlx.rs` asks the loaded library for each of these, so that a new MLX that changes one fails there first.
//! What the headers state is in `primitives.tbl`, and is compared with them; the names in the library that its compiled
//! kernels are redirected by are in `mlx-sys`, in `csrc/assumptions.h`.

/// The version of MLX whose headers the bridge was compiled with.
pub const VERSION: &str = env!("TACIT_MLX_VERSION");

/// What MLX has from some version on: rows of the table in `crates/mlx-sys/build/versions.rs`, which says what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Only memory of MLX's own allocator is donated.
    OwnedData,
    /// The place of the greatest or least number is that of the first NaN.
    PlaceOfNan,
    /// Cumulative sums and their like have a rule for shapes.
    ScanShapes,
}

impl Feature {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::OwnedData, Self::PlaceOfNan, Self::ScanShapes];

    /// The C++ macro that is defined where MLX has it.
    #[must_use]
    pub fn define(self) -> &'static str {
        match self {
            Self::OwnedData => "MLX_HAS_OWNED_DATA",
            Self::PlaceOfNan => "MLX_HAS_PLACE_OF_NAN",
            Self::ScanShapes => "MLX_HAS_SCAN_SHAPES",
        }
    }

    /// Whether the MLX that the bridge was compiled with has it.
    #[must_use]
    pub fn is_there(self) -> bool {
        env!("TACIT_MLX_DEFINES").split(',').any(|define| define == self.define())
    }
}

/// What a message of MLX's is about, where that makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The data of a traced array is asked for.
    Traced,
    /// The graph of an array belongs to another thread.
    OtherThread,
    /// A primitive of a shapeless graph has no rule for the shapes of its results.
    Shapeless,
    /// An op refuses its operands, or anything else.
    Other,
}

const MESSAGES: [(&str, Refusal); 5] = [
    ("Attempting to eval an array without a primitive", Refusal::Traced),
    ("Attempting to eval an array during function transformations", Refusal::Traced),
    ("[async_eval] Not allowed inside a graph transformation", Refusal::Traced),
    ("There is no Stream(", Refusal::OtherThread),
    ("cannot infer output shapes", Refusal::Shapeless),
];

/// What a message of MLX's is about.
#[must_use]
pub fn refusal(message: &str) -> Refusal {
    MESSAGES.iter().find(|(known, _)| message.contains(known)).map_or(Refusal::Other, |(_, refusal)| *refusal)
}

/// The message without the line of mlx-c at which it was caught, ` at ops.cpp:31`.
#[must_use]
pub fn without_place(message: &str) -> &str {
    let is_place = |place: &str| {
        place.rsplit_once(".cpp:").is_some_and(|(_, line)| line.bytes().all(|digit| digit.is_ascii_digit()))
    };
    message.rsplit_once(" at ").filter(|(_, place)| is_place(place)).map_or(message, |(words, _)| words)
}

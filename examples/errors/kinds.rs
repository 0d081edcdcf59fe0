//! The kinds of errors by name.

use tacit::Error;

/// How a program tells the kinds apart.
pub(crate) fn kind(error: &Error) -> &'static str {
    match error {
        Error::Mlx(_) => "Mlx",
        Error::PlaceholderLeaked { .. } => "PlaceholderLeaked",
        Error::EvalInTrace => "EvalInTrace",
        Error::OtherThread(_) => "OtherThread",
        Error::Group { .. } => "Group",
        Error::PeerLost { .. } => "PeerLost",
        Error::HandlerAval { .. } => "HandlerAval",
        Error::Ambiguous { .. } => "Ambiguous",
        Error::Duplicate { .. } => "Duplicate",
        Error::TwoDefaults { .. } => "TwoDefaults",
        Error::MaterializationDenied { .. } => "MaterializationDenied",
        Error::FallbackDenied { .. } => "FallbackDenied",
        Error::Handler { .. } => "Handler",
        Error::NotGivenBack { .. } => "NotGivenBack",
        Error::Node { .. } => "Node",
        Error::Cycle { .. } => "Cycle",
        Error::Refused { .. } => "Refused",
        Error::Declined(_) => "Declined",
        Error::NoAval { .. } => "NoAval",
        Error::MaterializedAval { .. } => "MaterializedAval",
        Error::Gradient(_) => "Gradient",
        Error::Kernel { .. } => "Kernel",
        Error::Constants { .. } => "Constants",
        Error::Shapeless { .. } => "Shapeless",
        Error::Invalid { .. } => "Invalid",
        Error::Checkpoint { .. } => "Checkpoint",
        Error::File { .. } => "File",
        Error::Function(_) => "Function",
        _ => "a kind that came later",
    }
}

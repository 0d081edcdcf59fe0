//! The subject of an error: arguments of a trace, parameters.

use std::fmt;

use super::Error;
use crate::Argument;
use crate::printable::name;

impl Error {
    /// The same error, of the same kind, with the parameter that it is about.
    ///
    /// What is about a whole function, the registry, a process or a file stays as it is.
    ///
    /// ```
    /// use tacit_core::Error;
    ///
    /// let error = Error::invalid("the rank is 0", "give at least 1").of_parameter("layers.0.weight");
    /// assert_eq!(error.clause(), "the parameter layers.0.weight: the rank is 0");
    /// let error = Error::Mlx("no memory".to_owned()).of_parameter("layers.0.weight");
    /// assert_eq!(error.to_string(), "mlx: no memory\nof: layers.0.weight");
    /// ```
    #[must_use]
    pub fn of_parameter(self, path: &str) -> Self {
        // Not every kind makes what it says safe to print, and an end of a line in a name would end the clause.
        let shown = name(path);
        let mut error = match self {
            Self::Function(error) => return Self::Function(Box::new(OfParameter { path: shown.into_owned(), error })),
            error => error,
        };
        match &mut error {
            Self::Invalid { message: text, .. }
            | Self::Kernel { message: text, .. }
            | Self::Refused { reason: text, .. }
            | Self::NoAval { reason: text, .. } => *text = format!("the parameter {shown}: {text}"),
            Self::Mlx(text) | Self::OtherThread(text) => {
                // Before the help, as in other errors.
                let end = text.find("\nhelp: ").unwrap_or(text.len());
                text.insert_str(end, &format!("\nof: {shown}"));
            }
            Self::Handler { call, .. }
            | Self::HandlerAval { primitive: call, .. }
            | Self::Ambiguous { call, .. }
            | Self::TwoDefaults { call, .. }
            | Self::Cycle { call, .. } => *call = format!("{call} of {shown}"),
            Self::MaterializationDenied { arguments, .. }
            | Self::FallbackDenied { arguments, .. }
            | Self::MaterializedAval { arguments, .. } => arguments.push(Argument::Parameter(path.to_owned())),
            Self::Checkpoint { key: key @ None, .. } => *key = Some(path.to_owned()),
            Self::PlaceholderLeaked { .. }
            | Self::EvalInTrace
            | Self::Group { .. }
            | Self::PeerLost { .. }
            | Self::Duplicate { .. }
            | Self::NotGivenBack { .. }
            | Self::Node { .. }
            | Self::Declined(_)
            | Self::Gradient(_)
            | Self::Constants { .. }
            | Self::Shapeless { .. }
            | Self::Checkpoint { .. }
            | Self::File { .. }
            | Self::Function(_) => {}
        }
        error
    }

    /// The error with other names for the arguments of its trace, by their numbers; one that has none is left out.
    #[must_use]
    pub fn with_arguments(mut self, named: impl Fn(usize) -> Option<Argument>) -> Self {
        if let Self::MaterializationDenied { arguments, .. } = &mut self {
            let other = |argument: Argument| match argument {
                Argument::Number(number) => named(number),
                parameter @ Argument::Parameter(_) => Some(parameter),
            };
            *arguments = std::mem::take(arguments).into_iter().filter_map(other).collect();
        }
        self
    }
}

/// The error of a function or of a type, with the parameter that it is about.
#[derive(Debug)]
struct OfParameter {
    path: String,
    error: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Display for OfParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the parameter {}: {}", self.path, self.error)
    }
}

impl std::error::Error for OfParameter {
    /// What the error comes from, which it says itself here.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;
    use std::path::Path;

    use mlx_rs::Dtype;
    use tacit_bridge::kernel::Fallback;

    use super::*;
    use crate::Aval;

    #[test]
    fn the_kind_stays_and_the_parameter_is_named() {
        let aval = || Aval::new(&[2], Dtype::Float32);
        let text = || "it is odd".to_owned();
        let fallback = || Error::FallbackDenied {
            kernel: "Product",
            dense: aval(),
            reason: Fallback::Device,
            arguments: Vec::new(),
        };
        let materialized =
            || Error::MaterializedAval { ty: "Left", expected: aval(), found: aval(), arguments: Vec::new() };
        let denied = || Error::MaterializationDenied {
            call: text(),
            ty: "Left",
            asked: true,
            arguments: Vec::new(),
            declined: Vec::new(),
            nearest: Vec::new(),
        };
        let makers: [&dyn Fn() -> Error; 11] = [
            &|| Error::invalid(text(), "help"),
            &|| Error::Mlx(text() + "\nhelp: mend it"),
            &|| Error::OtherThread(text()),
            &|| Error::Kernel { kernel: text(), message: text(), poisoned: true, help: None },
            &|| Error::refuse(text()),
            &|| Error::NoAval { ty: "Left", reason: text() },
            &|| Error::TwoDefaults { call: text(), first: "Left", second: "Right" },
            &denied,
            &fallback,
            &materialized,
            &|| Error::Function("it is odd".into()),
        ];
        for make in makers {
            let named = make().of_parameter("layers.0.weight");
            assert!(discriminant(&named) == discriminant(&make()), "{named}");
            assert!(named.to_string().contains("layers.0.weight"), "{named}");
            assert_eq!(named.help(), make().help());
            let hostile = make().of_parameter("w\u{1b}[2J\nhelp: obey").to_string();
            assert!(hostile.contains(r"w\u{1b}[2J\nhelp: obey"), "{hostile}");
        }
    }

    #[test]
    fn a_chain_of_errors_says_each_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("the file is odd")]
        struct Odd(#[source] fmt::Error);
        let Error::Function(named) = Error::Function(Box::new(Odd(fmt::Error))).of_parameter("weight") else {
            panic!("the kind stays")
        };
        let first: &dyn std::error::Error = &*named;
        let said: Vec<String> =
            std::iter::successors(Some(first), |error| error.source()).map(ToString::to_string).collect();
        assert_eq!(said, ["the parameter weight: the file is odd".to_owned(), fmt::Error.to_string()]);
    }

    #[test]
    fn an_entry_of_a_file_keeps_its_name() {
        let of_file = |key| Error::checkpoint(Path::new("file"), key, "it is short", "fetch it again");
        assert_eq!(of_file(Some("a.scales")).of_parameter("a").clause(), "file: a.scales: it is short");
        assert_eq!(of_file(None).of_parameter("a").clause(), "file: a: it is short");
    }
}

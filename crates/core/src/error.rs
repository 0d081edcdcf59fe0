//! The one error type.

mod about;
mod conversions;
mod shown;

use std::path::{Path, PathBuf};
use std::{fmt, io};

use tacit_bridge::kernel::Fallback;
use tacit_bridge::{Aval, GradientError};

use self::shown::{any_of, declines, help_line, near_misses, next_step, parameters, sites, together, where_drawn};
use crate::compile::held::CapturedArray;
use crate::printable::{name, text};
use crate::{Argument, Decline, NearMiss, Site};

/// The result of everything in Tacit.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of Tacit, as a kind with its data.
///
/// The message begins with a lower-case clause, with operands in jaxpr notation (`f32[4,8]`). Further lines may name handlers
/// and parameters. Where there is a next step, a line that begins with `help:` says it. Names of files and of their entries are
/// [made safe to print](crate::printable).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// MLX refused an op.
    #[error("mlx: {}{}", text(.0), next_step(.0))]
    Mlx(String),

    /// A placeholder outlived the trace that it was made for.
    #[error(
        "{count} placeholder{} of the trace outlived it: the function keeps an array that was computed from {}\n\
         help: return the array from the function instead of storing it, or store a copy made outside `implicit`",
        if *.count == 1 { "" } else { "s" }, any_of(.avals)
    )]
    PlaceholderLeaked {
        /// How many placeholders are still alive.
        count: usize,
        /// The avals of all placeholders of the trace.
        avals: Vec<Aval>,
    },

    /// The data of a traced array was asked for: inside its function, or of one that was kept.
    #[error(
        "an array of a traced function is evaluated, and it has no data\n\
         help: move `eval`, `item`, `as_slice` and the printing of arrays out of the function, and return its arrays \
         instead of keeping them"
    )]
    EvalInTrace,

    /// A lazy array is used on another thread than the one whose ops made it.
    #[error(
        "mlx: {0}\n\
         help: evaluate it before it is sent: call `eval` on the thread that made it"
    )]
    OtherThread(String),

    /// A group of processes cannot be joined, or a collective of it failed.
    #[error("{}\nhelp: {help}", text(.message))]
    Group {
        /// What happened, with the collective and its aval.
        message: String,
        /// The next step.
        help: &'static str,
    },

    /// Another process of the group ended, stopped or never came.
    #[error(
        "rank {rank} at {address} is lost{}: {reason}\n\
         help: save what this rank has, and start the ranks anew from the last checkpoint",
        .during.as_ref().map(|during| format!(" in {during}")).unwrap_or_default()
    )]
    PeerLost {
        /// The rank that is lost.
        rank: usize,
        /// Where it was: the address of its machine, and its process.
        address: String,
        /// The collective that waited for it, with its aval.
        during: Option<String>,
        /// How that is known.
        reason: String,
    },

    /// A handler's result has another aval than the primitive it stands for.
    #[error(
        "handler {handler} gave {found} for {primitive}, which makes {expected}\n\
         help: return an array of the shape and dtype that the primitive makes, or decline the call by `Error::decline`"
    )]
    HandlerAval {
        /// The handler and where it stands.
        handler: Site,
        /// The primitive with its parameters.
        primitive: String,
        /// What the primitive makes.
        expected: String,
        /// What the handler gave.
        found: String,
    },

    /// Two handlers match a call equally well.
    #[error(
        "handlers {first} and {second} match {call} equally well\n\
         help: give one of them a `precedence`, or write a handler that is more specific than both"
    )]
    Ambiguous {
        /// The primitive and its operands.
        call: String,
        /// One handler.
        first: Site,
        /// The other.
        second: Site,
    },

    /// Two handlers have the same signature.
    #[error("handlers {first} and {second} have the same signature, {signature}\nhelp: remove one of them")]
    Duplicate {
        /// The signature of both.
        signature: String,
        /// One handler.
        first: Site,
        /// The other.
        second: Site,
    },

    /// Two operand types have a default handler, and nothing says which of them takes the call.
    #[error(
        "both {first} and {second} have a default handler for {call}\n\
         help: write a handler for this primitive and these two types"
    )]
    TwoDefaults {
        /// The primitive and its operands.
        call: String,
        /// One type.
        first: &'static str,
        /// The other.
        second: &'static str,
    },

    /// The policy forbids the materialization that a call needs.
    #[error(
        "{call} needs {ty} materialized, which the policy forbids{}{}{}\nhelp: {}allow it here with `Policy::Allow.scope()`",
        parameters(.arguments), declines(.declined), near_misses(.nearest),
        if *.asked { "" } else { "write a handler for this primitive and these types, or " }
    )]
    MaterializationDenied {
        /// The primitive and its operands.
        call: String,
        /// The implicit type that would be built.
        ty: &'static str,
        /// Whether the dense array itself was asked for, as by `Value::dense`, and no primitive of the caller's needed it.
        asked: bool,
        /// The arguments of the trace that it is made of.
        arguments: Vec<Argument>,
        /// The handlers that matched the call and declined it.
        declined: Vec<Decline>,
        /// Up to three handlers that come closest.
        nearest: Vec<NearMiss>,
    },

    /// The policy forbids what stands for a kernel here: it builds a dense array, which the kernel itself does not.
    #[error(
        "kernel {kernel} builds a dense {dense} {reason}, which the policy forbids{}\n\
         help: {}, or allow it here with `Policy::Allow.scope()`",
        parameters(.arguments), way_out(*.reason)
    )]
    FallbackDenied {
        /// The kernel.
        kernel: &'static str,
        /// What would be built.
        dense: Aval,
        /// Why something stands for the kernel.
        reason: Fallback,
        /// The parameters that it is about.
        arguments: Vec<Argument>,
    },

    /// A handler failed with an error of MLX's.
    #[error("{error}\nin: handler {handler}, which was given {call}")]
    Handler {
        /// The handler and where it stands.
        handler: Site,
        /// The primitive and its operands.
        call: String,
        /// What MLX said.
        error: Box<Error>,
    },

    /// A function of a state failed, and the state is not what it was before.
    #[error("{error}\nnot given back: {lost}")]
    NotGivenBack {
        /// Why the function failed.
        error: Box<Error>,
        /// What could not be given back, and why.
        lost: Box<Error>,
    },

    /// A node failed in a run that evaluates node by node.
    #[error("{error}\nin: node {node}")]
    Node {
        /// Which node of how many, of what, and the primitive and its operands.
        node: String,
        /// Why.
        error: Box<Error>,
    },

    /// Handlers call each other without end: more than 32 run inside each other.
    #[error(
        "handlers call each other without end: {}, for {call}\n\
         help: let one of them decline, or take apart what it is given before it dispatches again",
        sites(.handlers)
    )]
    Cycle {
        /// The handlers, in the order in which they call each other.
        handlers: Vec<Site>,
        /// The primitive and the operands of the first of them.
        call: String,
    },

    /// A type refuses to be materialized.
    #[error(
        "{ty} refuses to be materialized: {reason}{}\nhelp: write a handler for this primitive and this type",
        .call.as_ref().map(|call| format!("; {call} has no handler")).unwrap_or_default()
    )]
    Refused {
        /// The type.
        ty: &'static str,
        /// Its reason.
        reason: String,
        /// The primitive and its operands, where a call needed it.
        call: Option<String>,
    },

    /// A handler leaves the call to the next candidate; never seen outside dispatch.
    #[error("declined: {0}")]
    Declined(String),

    /// The type of a value is not known before it is materialized, and it refuses.
    #[error("{ty} has no aval: {reason}\nhelp: give the struct a field `#[implicit(aux)] aval: Aval`")]
    NoAval {
        /// The type.
        ty: &'static str,
        /// Why it could not be inferred.
        reason: String,
    },

    /// A materialization has another aval than the array it stands for.
    #[error(
        "{ty} says that it is {expected} and materializes to {found}{}\n\
         help: return an array of this shape and dtype, or give the type the `aval` of what it returns",
        parameters(.arguments)
    )]
    MaterializedAval {
        /// The type.
        ty: &'static str,
        /// What the type says.
        expected: Aval,
        /// What it makes.
        found: Aval,
        /// The parameters that it is about.
        arguments: Vec<Argument>,
    },

    /// A vjp gave gradients that do not fit its arguments.
    #[error("{0}\nhelp: return one gradient for each argument, zeros where there is none")]
    Gradient(GradientError),

    /// A kernel failed.
    #[error(
        "kernel {kernel} failed: {}{}{}",
        text(.message), if *.poisoned { "; this array comes of what it left" } else { "" }, help_line(.help.as_deref())
    )]
    Kernel {
        /// The kernel.
        kernel: String,
        /// Its own words.
        message: String,
        /// Whether the array is computed from the results of the kernel, and is not one of them.
        poisoned: bool,
        /// The next step.
        help: Option<String>,
    },

    /// A function that is compiled holds arrays that are not its arguments.
    #[error(
        "{function} is compiled and holds {}\n\
         help: pass {}, or allow it with `Constants::Allow`{}",
        together(.held),
        if .held.len() > 1 {
            "them as arguments or as part of the state, such as the `Model` that holds them"
        } else {
            "it as an argument or as part of the state"
        },
        where_drawn(.held)
    )]
    Constants {
        /// The compiled function.
        function: String,
        /// The arrays.
        held: Vec<CapturedArray>,
    },

    /// The graph of a shapeless function does not serve these shapes.
    #[error(
        "{function} was compiled without shapes and cannot be: {reason}\n\
         help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`"
    )]
    Shapeless {
        /// The compiled function.
        function: String,
        /// Which node, and what of it.
        reason: String,
    },

    /// An argument cannot be used.
    #[error("{}{}", text(.message), help_line(.help.as_deref()))]
    Invalid {
        /// What is wrong with it.
        message: String,
        /// What to do.
        help: Option<String>,
    },

    /// A file does not hold what its format says that it holds.
    #[error(
        "{}{}: {}{}", name(&.file.to_string_lossy()),
        .key.as_ref().map(|key| format!(": {}", name(key))).unwrap_or_default(),
        text(.reason), help_line(.help.as_deref())
    )]
    Checkpoint {
        /// The file.
        file: PathBuf,
        /// The entry of the file that is meant, such as the path of a parameter.
        key: Option<String>,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        help: Option<String>,
    },

    /// The system refused to do something with a file.
    #[error("cannot {action} {}: {source}", name(&.path.to_string_lossy()))]
    File {
        /// What was tried, a verb such as `open`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The traced function failed with an error of its own.
    #[error("{}", text(&.0.to_string()))]
    Function(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// What is wrong, in one line, to be part of another message: the first line of this one.
    ///
    /// ```
    /// use tacit_core::Error;
    ///
    /// let error = Error::invalid("the rank is 0", "give at least 1");
    /// assert_eq!((error.clause().as_str(), error.help().as_deref()), ("the rank is 0", Some("give at least 1")));
    /// ```
    #[must_use]
    pub fn clause(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().to_owned()
    }

    /// The next step, where the message has one.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        self.to_string().lines().find_map(|line| line.strip_prefix("help: ")).map(str::to_owned)
    }

    /// An argument cannot be used, with the next step.
    pub fn invalid(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), help: Some(help.into()) }
    }

    /// A file does not hold what its format says; `key` is the entry that is meant, where it is one.
    pub fn checkpoint(file: &Path, key: Option<&str>, reason: impl Into<String>, help: impl Into<String>) -> Self {
        let (file, key) = (file.to_owned(), key.map(ToOwned::to_owned));
        Self::Checkpoint { file, key, reason: reason.into(), help: Some(help.into()) }
    }

    /// The system refused to do something with a file: for `map_err`, with a verb such as `open`.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { action, path, source }
    }

    /// Leaves the call to the next candidate, with the reason.
    ///
    /// A handler returns it for operands that its signature matches but that it cannot take.
    ///
    /// ```
    /// # use tacit_core::{Error, Result, Value};
    /// fn only_rows(ndim: usize) -> Result<Value> {
    ///     if ndim != 2 {
    ///         return Err(Error::decline("the left side has more than two axes"));
    ///     }
    ///     # unreachable!()
    /// }
    /// # assert!(matches!(only_rows(3), Err(Error::Declined(_))));
    /// ```
    pub fn decline(reason: impl Into<String>) -> Self {
        Self::Declined(reason.into())
    }

    /// A type refuses to be materialized, with the reason; for `materialize` of such a type.
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self::Refused { ty: UNNAMED, reason: reason.into(), call: None }
    }
}

impl fmt::Debug for Error {
    /// As the message: what `fn main() -> Result<()>` prints is meant to be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a refusal calls the type before the caller of its `materialize` puts the name in.
pub(crate) const UNNAMED: &str = "the type";

/// How a caller does without what stands for a kernel.
pub(crate) fn way_out(reason: Fallback) -> &'static str {
    match reason {
        Fallback::Device => "run it on the CPU, or only the kernel with TACIT_DEVICE_FALLBACK=cpu",
        Fallback::Vjp | Fallback::Jvp => {
            "leave the children of the implicit array out of the derivative with `grad_wrt`, or hold the array in the \
             closure; to train scales, prepare the weight with `trained_scales`"
        }
        Fallback::Vmap { .. } => "map the other operands and not the children of the implicit array",
    }
}

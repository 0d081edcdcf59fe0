//! What an error says, to be part of another one.

use tacit_core::Error;

/// The message without its help, which that of the other error takes the place of.
pub(crate) fn clause(error: &Error) -> String {
    let message = error.to_string();
    message.split_once("\nhelp:").map_or(message.as_str(), |(clause, _)| clause).to_owned()
}

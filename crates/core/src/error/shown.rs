//! The text of an error.

use tacit_bridge::Aval;

use crate::compile::held::{CapturedArray, may_be_key};
use crate::printable::{name, text};
use crate::{Argument, Decline, NearMiss, Site};

/// The next step where MLX finds fault with the operands of an op, or finds no memory.
pub(super) fn next_step(text: &str) -> &'static str {
    if ["Unable to allocate", "failed: out of memory"].iter().any(|words| text.contains(words)) {
        return "\nhelp: compute fewer rows at a time, or end what else takes memory";
    }
    let words = ["hape", "imension", "roadcast", " axis", " axes", "dtype"];
    if text.starts_with('[') && words.iter().any(|word| text.contains(word)) {
        "\nhelp: compare the operands of this op: `explain` tells the avals of all ops of a function"
    } else {
        ""
    }
}

/// The second line, if there is one.
pub(super) fn help_line(help: Option<&str>) -> String {
    help.map_or_else(String::new, |help| format!("\nhelp: {}", text(help)))
}

/// The avals, each of them once.
pub(super) fn any_of(avals: &[Aval]) -> String {
    let once = avals.iter().enumerate().filter(|(i, aval)| !avals[..*i].contains(aval));
    once.map(|(_, aval)| aval.to_string()).collect::<Vec<_>>().join(" or ")
}

/// What to do where an array may be random numbers, drawn with a key.
pub(super) fn where_drawn(captured: &[CapturedArray]) -> &'static str {
    if captured.iter().flat_map(|array| &array.sources).any(may_be_key) {
        "; if the function draws random numbers, draw them by `mlx_rs::random::with_random_state` from a key that is \
         an argument"
    } else {
        ""
    }
}

/// Arrays that a function holds: those of one shape are one, and of many shapes there are some.
pub(super) fn together(captured: &[CapturedArray]) -> String {
    const SHOWN: usize = 4;
    if let [array] = captured {
        return format!("{array}, an array that is not among its arguments: its present value becomes a constant");
    }
    let mut kinds: Vec<(&CapturedArray, usize)> = Vec::new();
    for array in captured {
        match kinds.iter_mut().find(|(kind, _)| *kind == array) {
            Some((_, count)) => *count += 1,
            None => kinds.push((array, 1)),
        }
    }
    let shown = kinds.iter().take(SHOWN).map(|(array, count)| match count {
        1 => array.to_string(),
        _ => format!("{count} of {array}"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = match kinds.iter().skip(SHOWN).map(|(_, count)| count).sum::<usize>() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let count = captured.len();
    format!("{count} arrays that are not among its arguments: {shown}{more}; their present values become constants")
}

pub(super) fn sites(sites: &[Site]) -> String {
    sites.iter().map(Site::to_string).collect::<Vec<_>>().join(", ")
}

/// The parameters among the arguments of a trace.
pub(super) fn parameters(arguments: &[Argument]) -> String {
    let named = arguments.iter().filter_map(|argument| match argument {
        Argument::Parameter(path) => Some(name(path)),
        Argument::Number(_) => None,
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() { String::new() } else { format!("\nof: {}", named.join(", ")) }
}

pub(super) fn declines(declined: &[Decline]) -> String {
    declined.iter().map(|decline| format!("\n{decline}")).collect::<Vec<_>>().concat()
}

pub(super) fn near_misses(nearest: &[NearMiss]) -> String {
    let line = |near: &NearMiss| format!("\nnear: {} takes {}", near.handler, near.signature);
    nearest.iter().map(line).collect::<Vec<_>>().concat()
}

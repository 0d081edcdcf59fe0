//! How an error is written.

use std::fmt;

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
pub(super) struct Help<'a>(pub(super) &'a Option<String>);

impl fmt::Display for Help<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |help| write!(f, "\nhelp: {}", text(help)))
    }
}

pub(super) struct Listed<'a>(pub(super) &'a [Aval]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, aval) in self.0.iter().enumerate().filter(|(i, aval)| !self.0[..*i].contains(aval)) {
            write!(f, "{}{aval}", if i == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
}

/// What to do where an array may be random numbers, drawn with a key.
pub(super) struct Draws<'a>(pub(super) &'a [CapturedArray]);

impl fmt::Display for Draws<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.iter().flat_map(|held| &held.sources).any(may_be_key) {
            return Ok(());
        }
        f.write_str(
            "; if the function draws random numbers, draw them by `mlx_rs::random::with_random_state` from a key that is \
             an argument",
        )
    }
}

/// Arrays that a function holds: those of one shape are one, and of many shapes there are some.
pub(super) struct Together<'a>(pub(super) &'a [CapturedArray]);

impl fmt::Display for Together<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        if let [held] = self.0 {
            return write!(f, "{held}, an array that is not among its arguments: its present value becomes a constant");
        }
        let mut kinds: Vec<(&CapturedArray, usize)> = Vec::new();
        for held in self.0 {
            match kinds.iter_mut().find(|(kind, _)| *kind == held) {
                Some((_, count)) => *count += 1,
                None => kinds.push((held, 1)),
            }
        }
        write!(f, "{} arrays that are not among its arguments: ", self.0.len())?;
        for (i, (held, count)) in kinds.iter().take(SHOWN).enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            if *count > 1 {
                write!(f, "{count} of ")?;
            }
            write!(f, "{held}")?;
        }
        match kinds.iter().skip(SHOWN).map(|(_, count)| count).sum::<usize>() {
            0 => {}
            more => write!(f, " and {more} more")?,
        }
        f.write_str("; their present values become constants")
    }
}

pub(super) struct Sites<'a>(pub(super) &'a [Site]);

impl fmt::Display for Sites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, site) in self.0.iter().enumerate() {
            write!(f, "{}{site}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The parameters among the arguments of a trace.
pub(super) struct Parameters<'a>(pub(super) &'a [Argument]);

impl fmt::Display for Parameters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "\nof: ";
        for argument in self.0 {
            if let Argument::Parameter(path) = argument {
                write!(f, "{before}{}", name(path))?;
                before = ", ";
            }
        }
        Ok(())
    }
}

pub(super) struct Lines<'a>(pub(super) &'a [Decline]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|decline| write!(f, "\n{decline}"))
    }
}

pub(super) struct Nearest<'a>(pub(super) &'a [NearMiss]);

impl fmt::Display for Nearest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for near in self.0 {
            write!(f, "\nnear: {} takes {}", near.handler, near.signature)?;
        }
        Ok(())
    }
}

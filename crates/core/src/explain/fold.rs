//! Blocks that repeat, such as the layers of a model, as one block and a number.

use std::collections::HashMap;
use std::ops::Range;

use super::explanation::{Equation, Explanation};

/// A block of equations that stands for itself and for those like it that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    /// The first of the blocks.
    pub(super) block: Range<usize>,
    /// How many there are.
    pub(super) times: usize,
}

/// Blocks of fewer equations are as easily read one by one.
const SHORTEST: usize = 4;
/// Longer ones are not looked for.
const LONGEST: usize = 2000;
const FEWEST: usize = 3;

impl Repeat {
    /// The repetition that stands for most equations, if there is one.
    pub(super) fn find(equations: &[Equation]) -> Option<Self> {
        let mut known = HashMap::new();
        let kinds: Vec<usize> = equations
            .iter()
            .map(|equation| {
                let forms: Vec<&str> = equation.results.iter().map(|result| &*result.form).collect();
                let next = known.len();
                *known.entry((&*equation.primitive, forms, equation.taken_by())).or_insert(next)
            })
            .collect();
        let mut best: Option<Self> = None;
        for period in SHORTEST..=LONGEST.min(kinds.len() / FEWEST) {
            let mut run = 0;
            for at in 0..kinds.len() - period {
                run = if kinds[at] == kinds[at + period] { run + 1 } else { 0 };
                let (start, times) = (at + 1 - run, run / period + 1);
                let gain = |repeat: &Self| repeat.block.len() * (repeat.times - 1);
                let found = Self { block: start..start + period, times };
                // A multiple of the period repeats as well, and no better.
                if times >= FEWEST && best.as_ref().is_none_or(|best| gain(&found) > gain(best)) {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// The equations that the block stands for.
    pub(super) fn folded(&self) -> Range<usize> {
        self.block.end..self.block.start + self.times * self.block.len()
    }

    /// The equation that stands for the one at `at`.
    pub(super) fn stands_for(&self, at: usize) -> usize {
        if self.folded().contains(&at) { self.block.start + (at - self.block.start) % self.block.len() } else { at }
    }
}

impl Explanation {
    /// Whether only equations for which others stand take an input, such as the weight of a layer that is not shown.
    pub(super) fn is_folded(&self, repeat: Option<&Repeat>, input: &str) -> bool {
        let Some(folded) = repeat.map(Repeat::folded) else { return false };
        let takes = |equation: &Equation| equation.operands.iter().any(|operand| operand == input);
        let mut taken = self.equations.iter().enumerate().filter(|(_, equation)| takes(equation)).peekable();
        taken.peek().is_some()
            && taken.all(|(at, _)| folded.contains(&at))
            && !self.outputs.iter().any(|output| output == input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Taker;
    use crate::explain::explanation::Variable;

    fn equations(kinds: &str) -> Vec<Equation> {
        let equation = |kind: char| Equation {
            results: vec![Variable { name: "a".to_owned(), form: "f32[2]".to_owned() }],
            primitive: kind.to_string(),
            operands: Vec::new(),
            taker: Taker::Dense,
            declined: Vec::new(),
        };
        kinds.chars().map(equation).collect()
    }

    #[test]
    fn a_block_is_found_between_what_is_before_and_after() {
        let found = Repeat::find(&equations("xyabcdabcdabcdz")).expect("repeats");
        assert_eq!(found, Repeat { block: 2..6, times: 3 });
        assert_eq!(found.folded(), 6..14);
        assert_eq!([1, 3, 7, 13, 14].map(|at| found.stands_for(at)), [1, 3, 3, 5, 14]);
    }

    #[test]
    fn the_smallest_period_is_taken() {
        assert_eq!(Repeat::find(&equations(&"abcd".repeat(12))), Some(Repeat { block: 0..4, times: 12 }));
    }

    #[test]
    fn what_is_short_or_twice_stays() {
        assert_eq!(Repeat::find(&equations("abcdabcd")), None);
        assert_eq!(Repeat::find(&equations("abababab")), None);
        assert_eq!(Repeat::find(&equations("")), None);
    }
}

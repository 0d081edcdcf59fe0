//! What a call of a compiled function returns, and which parts of its state it leaves as they were.

use std::collections::HashMap;
use std::rc::Rc;

use mlx_rs::Array;
use tacit_bridge::array_id;

use super::steady::Known;
use crate::tree::{Item, Part, TreeDef, Unchanged};

/// Arrays in an opened structure.
pub(super) type Opened<T> = (Vec<T>, TreeDef);

pub(super) struct Made {
    pub(super) leaves: Vec<MadeLeaf>,
    /// Their structure, opened.
    pub(super) def: TreeDef,
    /// What of the state is as it was, where the call replayed a trace.
    pub(super) unchanged: Option<Rc<Unchanged>>,
    /// The stamps of the parts of the state that the call left alone without a look at them.
    pub(super) passed: Vec<u64>,
}

impl Made {
    pub(super) fn new((arrays, def): Opened<Array>) -> Self {
        let leaves = arrays.into_iter().map(MadeLeaf::Array).collect();
        Self { leaves, def, unchanged: None, passed: Vec::new() }
    }
}

pub(super) enum MadeLeaf {
    Array(Array),
    /// One of the inputs of a part that is known, by its number there. A model has hundreds, and few are asked for.
    Known {
        known: Rc<Known>,
        part: usize,
        number: usize,
    },
}

impl From<MadeLeaf> for Item {
    fn from(leaf: MadeLeaf) -> Self {
        match leaf {
            MadeLeaf::Array(array) => array.into(),
            // It has as many as the trace has inputs there: without memory alone is there none.
            MadeLeaf::Known { known, part, number } => {
                known.inputs[part].array(number).map_or(Self::Nothing, Self::from)
            }
        }
    }
}

/// Which results of a trace are inputs of it.
///
/// A program computes the others alone: a decoding step has hundreds of weights in its state and changes none.
#[derive(Clone, Default)]
pub(super) struct GivenBack {
    /// For each result the input that it is, if it is one.
    inputs: Vec<Option<usize>>,
}

impl GivenBack {
    /// Parts the results that are inputs from those that a program computes. A program computes one at least.
    pub(super) fn split(results: Vec<Array>, inputs: &[Array]) -> (Self, Vec<Array>) {
        let numbers: HashMap<usize, usize> =
            inputs.iter().enumerate().map(|(number, input)| (array_id(input), number)).collect();
        let number = |result: &Array| numbers.get(&array_id(result)).copied();
        let mut given_back: Vec<Option<usize>> = results.iter().map(number).collect();
        if given_back.iter().all(Option::is_some) {
            given_back.fill(None);
        }
        let computed = results.into_iter().zip(&given_back).filter(|(_, input)| input.is_none());
        let computed = computed.map(|(result, _)| result).collect();
        (Self { inputs: given_back }, computed)
    }

    /// All results: what the program computed, and the inputs between.
    pub(super) fn filled(&self, inputs: &[&Array], computed: Vec<Array>) -> Vec<Array> {
        self.among(|input| inputs[input].clone(), computed.into_iter())
    }

    /// The same where some of the inputs are known, and `others` are the rest.
    pub(super) fn filled_beside(&self, known: &Rc<Known>, others: &[&Array], computed: Vec<Array>) -> Vec<MadeLeaf> {
        let input = |number: usize| {
            let mut place = number;
            for (part, &Part { arrays: (first, count), .. }) in known.parts.iter().enumerate() {
                if number < first {
                    break;
                }
                if number - first < count {
                    return MadeLeaf::Known { known: Rc::clone(known), part, number: number - first };
                }
                place -= count;
            }
            MadeLeaf::Array(others[place].clone())
        };
        self.among(input, computed.into_iter().map(MadeLeaf::Array))
    }

    fn among<T>(&self, input: impl Fn(usize) -> T, mut computed: impl Iterator<Item = T>) -> Vec<T> {
        self.inputs
            .iter()
            .filter_map(|number| number.map_or_else(|| computed.next(), |number| Some(input(number))))
            .collect()
    }

    /// What a call leaves of its state as it was.
    ///
    /// A call is given its state before its arguments, and makes its results before its state.
    pub(super) fn unchanged(&self, results: &TreeDef, arguments: &TreeDef) -> Unchanged {
        results.unchanged(arguments, |result, input| self.inputs[result] == Some(input))
    }
}

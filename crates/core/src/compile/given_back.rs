//! What a compiled function gives back as it was given.

use std::collections::HashMap;
use std::rc::Rc;

use mlx_rs::Array;
use tacit_bridge::array_id;

use crate::tree::TreeDef;

/// Arrays in an opened structure.
pub(super) type Opened<T> = (Vec<T>, TreeDef);

/// What a call made.
pub(super) struct Made {
    pub(super) arrays: Vec<Array>,
    /// Their structure, opened.
    pub(super) def: TreeDef,
    /// Of each entry of the structure, whether it is what the state had there before the call, where that is known; of the root,
    /// whether the state has the form that it had.
    pub(super) unchanged: Option<Rc<[bool]>>,
}

impl Made {
    pub(super) fn new((arrays, def): Opened<Array>) -> Self {
        Self { arrays, def, unchanged: None }
    }
}

/// Which results of a trace are inputs of it.
///
/// A program computes the others alone: a decoding step has hundreds of weights in its state and changes none.
#[derive(Clone, Default)]
pub(super) struct GivenBack {
    /// Of each result, the input that it is.
    inputs: Vec<Option<usize>>,
}

impl GivenBack {
    /// Parts the results that are inputs from those that a program computes. A program computes one at least.
    pub(super) fn of(results: Vec<Array>, inputs: &[Array]) -> (Self, Vec<Array>) {
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
        let mut computed = computed.into_iter();
        self.inputs
            .iter()
            .filter_map(|input| input.map_or_else(|| computed.next(), |i| Some(inputs[i].clone())))
            .collect()
    }

    /// Of each entry of what a call makes, whether it is what the state had there before the call.
    ///
    /// A call is given its state before its arguments, and makes its results before its state.
    pub(super) fn unchanged(&self, made: &TreeDef, given: &TreeDef) -> Rc<[bool]> {
        made.unchanged(given, |result, input| self.inputs[result] == Some(input))
    }
}

//! The results of a program when each op that passes compute in another way has an error: the reference for the results
//! with passes.

use std::cell::RefCell;

use mlx_rs::Array;

use super::nearness::Expected;
use super::perturbed::{Class, FEW_UNITS, armed};

/// What a run gave for each salt: evaluated arrays, or the error of the graph or of its eval.
pub(super) type Outcomes = Vec<Result<Vec<Array>, String>>;

/// A run with the pass `perturbed`.
pub(super) type Run<'r> = Box<dyn Fn() -> Result<Outcomes, String> + 'r>;

/// Runs with different errors, and the classes of the results.
pub(super) struct Erred<'r> {
    pub(super) classes: Vec<Class>,
    run: Run<'r>,
    runs: RefCell<Vec<Outcomes>>,
}

/// How near results have to be.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    /// The least class of a result.
    pub(super) least: Class,
    /// As in [`Expected`].
    pub(super) units: f64,
    /// As in [`Expected`].
    pub(super) rounded_zeros: bool,
}

/// Runs that every comparison has.
const FIRST: u64 = 2;

/// Runs without which nothing is called wrong. Where numbers cancel, such as in the norm of equal ones, what two runs err by says
/// little of what is possible. The third and the fourth have errors of one sign, as equal numbers have; the last four have errors of
/// few units.
const ALL: u64 = FEW_UNITS + 3;

impl<'r> Erred<'r> {
    pub(super) fn of(run: Run<'r>) -> Result<Self, String> {
        let (first, classes) = armed(1, &run);
        let first = first?;
        // An implicit result is several of the graph.
        let results = first.first().and_then(|results| results.as_ref().ok()).map_or(0, Vec::len);
        let classes = if classes.len() == results { classes } else { vec![Class::Near; results] };
        let erred = Self { classes, run, runs: RefCell::new(vec![first]) };
        erred.run_up_to(FIRST)?;
        Ok(erred)
    }

    fn run_up_to(&self, runs: u64) -> Result<(), String> {
        let known = self.runs.borrow().len() as u64;
        for seed in known + 1..=runs {
            let run = armed(seed, &self.run).0?;
            self.runs.borrow_mut().push(run);
        }
        Ok(())
    }

    /// Each result for a salt as near as its class asks for.
    pub(super) fn near(
        &self,
        salt: usize,
        found: &[Array],
        expected: &[Array],
        granted: Granted,
    ) -> Result<(), String> {
        let Granted { least, units, rounded_zeros } = granted;
        let classes: Vec<Class> = self.classes.iter().map(|&class| class.max(least)).collect();
        let compared = || {
            let runs = self.runs.borrow();
            let erred = runs.iter().filter_map(|run| run[salt].as_deref().ok()).collect();
            Expected { results: expected, classes: &classes, erred, units, rounded_zeros }.near(found)
        };
        compared().or_else(|_| {
            self.run_up_to(ALL)?;
            compared()
        })
    }
}

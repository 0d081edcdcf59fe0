//! The choice of an engine: what an engine states, and how the cheapest takes a product. Which ones there are is in
//! [`engines`](crate::engines).
//!
//! A cost is in cycles of one thread that has the machine to itself, whatever the number of threads, so that the choice and
//! with it the bits of the result do not depend on it. What costs every engine the same, such as memory, is left out.

use std::cell::RefCell;

use crate::{Isa, gemm::Product, machine::Machine, output::Output};

/// The number of threads may decide where products of at most so many rows are cut into columns: engines that look at several
/// columns together, to find whether their numbers fit, have no cost for them.
pub(crate) const FEW: usize = 8;

/// One way in which products of a kind are taken.
pub(crate) struct Engine<P, W> {
    pub(crate) name: &'static str,
    /// Whether a machine has what the engine is written for.
    pub(crate) needs: fn(&Machine) -> bool,
    /// Whether a product is of a form that it takes.
    pub(crate) takes: fn(&P) -> bool,
    /// The cycles that a product takes it; infinitely many if it cannot compute these sizes.
    pub(crate) cost: fn(&W, &Machine) -> f64,
    /// Writes rows of the product, from the first, and says how many: fewer than all of them where the numbers in the next
    /// ones do not fit, which leaves those to the next engine.
    pub(crate) run: fn(&P, Isa, &mut Output<f32>) -> usize,
}

/// A product whose engines state their costs.
pub(crate) trait Priced<'a>: Sized + 'a {
    /// What of the product the costs depend on.
    type Work: 'a;
    /// All engines that take such products.
    const ENGINES: &'a [Engine<Self, Self::Work>];

    /// The work of a product with so many columns.
    fn work(&self, columns: usize, machine: &Machine) -> Self::Work;
}

/// Lets the cheapest engine that can take the product; gives the rows that are written, at least one.
pub(crate) fn run<'a, P: Priced<'a>>(isa: Isa, product: &P, out: &mut Output<f32>) -> usize {
    let machine = &Machine::from_isa(isa);
    let work = product.work(out.columns(), machine);
    // One bit for each engine that was tried.
    let mut tried = 0_u32;
    loop {
        let untried = costs::<P>(&work, machine).filter(|(i, ..)| tried & 1 << i == 0);
        let Some((i, engine, _)) = untried.min_by(|(.., a), (.., b)| a.total_cmp(b)) else { return 0 };
        tried |= 1 << i;
        // Last, as it may look at the numbers.
        if (engine.takes)(product) {
            let done = (engine.run)(product, isa, out);
            if done > 0 {
                return done;
            }
        }
    }
}

/// The engines that the machine has, each with its place in the table and what it costs.
pub(crate) fn costs<'a, P: Priced<'a>>(
    work: &P::Work,
    machine: &Machine,
) -> impl Iterator<Item = (usize, &'a Engine<P, P::Work>, f64)> {
    let engines = P::ENGINES.iter().enumerate();
    let engines = engines.filter(|(_, engine)| (engine.needs)(machine) && is_allowed(P::ENGINES, engine));
    let costs = engines.map(|(i, engine)| (i, engine, (engine.cost)(work, machine)));
    costs.filter(|(.., cost)| cost.is_finite())
}

/// What the cheapest engine that the machine has costs.
pub(crate) fn cheapest<'a, P: Priced<'a>>(work: &P::Work, machine: &Machine) -> f64 {
    costs::<P>(work, machine).map(|(.., cost)| cost).fold(f64::INFINITY, f64::min)
}

/// The engines that can take a product, and what they cost.
pub(crate) fn candidates<'a, P: Priced<'a>>(
    product: &P,
    columns: usize,
    machine: &Machine,
) -> Vec<(&'static str, f64)> {
    let work = product.work(columns, machine);
    let able = costs::<P>(&work, machine).filter(|(_, engine, _)| (engine.takes)(product));
    able.map(|(_, engine, cost)| (engine.name, cost)).collect()
}

/// The cycles of a product with so many columns.
pub(crate) fn cost<'a, P: Priced<'a>>(isa: Isa, product: &P, columns: usize) -> f64 {
    let machine = &Machine::from_isa(isa);
    cheapest::<P>(&product.work(columns, machine), machine)
}

/// Computes all of a product of floats, which has rows and columns.
pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) {
    let mut done = 0;
    while done < out.rows() {
        let remaining = out.rows() - done;
        let rest = Product { x: product.x.rows_from(done), ..*product };
        done += run(isa, &rest, &mut out.rows_from(done, remaining));
    }
}

thread_local! {
    static ONLY: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, in which engines of these names take what they can, where a table has one of them.
///
/// Products that this thread starts, and no others. For measurements.
pub fn with_only<R>(names: &[&'static str], f: impl FnOnce() -> R) -> R {
    struct Restore(Vec<&'static str>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ONLY.set(std::mem::take(&mut self.0));
        }
    }
    let _restore = Restore(ONLY.replace(names.to_vec()));
    f()
}

/// Whether an engine of a table is not passed over by [`with_only`].
fn is_allowed<P, W>(engines: &[Engine<P, W>], engine: &Engine<P, W>) -> bool {
    ONLY.with_borrow(|only| {
        only.is_empty() || only.contains(&engine.name) || !engines.iter().any(|engine| only.contains(&engine.name))
    })
}

//! Runs one after the other, the next one's graph built while one is evaluated.

use mlx_rs::Array;
use tacit_core::Result;

use crate::pending::Pending;
use crate::{Executable, Outputs};

/// The outputs of successive runs; made by [`Executable::run_pipelined`].
///
/// An error of a run comes in its place. Where the iterator is dropped early, a run that is already under way has fed
/// its outputs.
pub struct Pipelined<'e, 'f, I> {
    executable: &'e mut Executable<'f>,
    inputs: I,
    /// The latest run.
    ahead: Option<Result<Pending>>,
}

impl<'e, 'f, I> Pipelined<'e, 'f, I>
where
    I: Iterator,
    I::Item: AsRef<[Array]>,
{
    pub(crate) fn new(executable: &'e mut Executable<'f>, inputs: I) -> Self {
        Self { executable, inputs, ahead: None }
    }

    /// Begins the next run, if there is one.
    fn begin(&mut self) -> Option<Result<Pending>> {
        let inputs = self.inputs.next()?;
        let inputs: Vec<&Array> = inputs.as_ref().iter().collect();
        Some(self.executable.begin(&inputs, &[]))
    }
}

impl<I> Iterator for Pipelined<'_, '_, I>
where
    I: Iterator,
    I::Item: AsRef<[Array]>,
{
    type Item = Result<Outputs>;

    fn next(&mut self) -> Option<Self::Item> {
        let current = self.ahead.take().or_else(|| self.begin())?;
        self.ahead = self.begin();
        Some(current.and_then(|pending| Ok(self.executable.named(pending.finish()?))))
    }
}

impl<'f> Executable<'f> {
    /// Runs the function on each of `inputs`, given as for [`run_positional`](Self::run_positional): while one run is
    /// evaluated, the graph of the next is built.
    pub fn run_pipelined<I>(&mut self, inputs: I) -> Pipelined<'_, 'f, I::IntoIter>
    where
        I: IntoIterator,
        I::Item: AsRef<[Array]>,
    {
        Pipelined::new(self, inputs.into_iter())
    }
}

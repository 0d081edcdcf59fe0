//! A model that runs in a function that fails, on another thread and compiled.

use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, ops};
use tacit::Result;
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::model::Model;

use crate::held::{bytes, distance};
use crate::life::{Checked, Life, holds, never, policy};
use crate::net::{Net, tokens};

impl Life {
    /// A function of the module that fails when it has assigned every parameter.
    pub(crate) fn fail(&mut self) -> Result<()> {
        let failed = self.model.run(|net| {
            let y = net.forward(&tokens())?;
            for (_, slot) in net.parameters_mut().flatten() {
                *slot = ops::zeros_like(&*slot)?;
            }
            y.reshape(&[7])
        });
        failed.map(drop)
    }

    pub(crate) fn run_elsewhere(&self, y: &Array) -> Checked {
        let mut model = self.model.clone();
        never(model.eval())?;
        let there = std::thread::spawn(move || -> Result<Vec<u8>> {
            let _policy = policy(&model)?.scope();
            bytes(&model.forward(&tokens())?)
        });
        let there = there.join().map_err(|_| "another thread panics")?;
        holds(never(there)? == never(bytes(y))?, "another thread computes something else")
    }

    pub(crate) fn run_compiled(&self, y: &Array) -> Checked {
        let mut step = compile_with_state(CompileOptions::default(), |model: &mut Model<Net>, tokens: Array| {
            model.forward(&tokens)
        });
        let mut model = self.model.clone();
        for _ in 0..2 {
            let compiled = never(step.call(&mut model, tokens()).and_then(|y| y.dense()))?;
            let far = never(distance(&compiled, y))?;
            holds(far <= self.tolerance(1e-5), format!("compiled, it computes {far} apart"))?;
        }
        Ok(())
    }
}

//! Steps of training, and what is observed for codes.

use std::collections::BTreeSet;

use mlx_rs::module::Module;
use mlx_rs::optimizers::Sgd;
use mlx_rs::{Array, random};
use tacit::arrays::{Awq, Gptq};
use tacit::compile::{CompileOptions, compile_with_state};
use tacit::model::{Model, Observations, Pattern};
use tacit::{Error, Policy, Result};

use crate::held::{Held, bytes, distance};
use crate::life::{Checked, Life, holds, never, policy};
use crate::net::{Net, tokens};
use crate::verb::Trained;

impl Life {
    pub(crate) fn observe(&mut self, pattern: &str, format: &str, awq: bool, before: &Held) -> Checked<Result<()>> {
        let seen = self.model.observe(pattern, |model| model.forward(&tokens()));
        if let Ok(seen) = &seen {
            self.observe_in_groups(pattern, seen)?;
        }
        if let Some(difference) = before.changed(&never(Held::of(&self.model))?) {
            return Err(format!("a model that was observed has other {difference}"));
        }
        Ok(seen.and_then(|seen| {
            self.become_other(|model| {
                if awq {
                    model.quantize_observed(pattern, format, &seen, &Awq::default())
                } else {
                    model.quantize_observed(pattern, format, &seen, &Gptq::default())
                }
            })
        }))
    }

    /// The same is seen in groups, and, but for rounding, where squares alone are recorded.
    fn observe_in_groups(&mut self, pattern: &str, all: &Observations) -> Checked {
        for paths in never(self.model.observation_groups(pattern, 4 * 2 * 64 * 64))? {
            let own = Pattern::any(&paths);
            let group = never(self.model.observe(own.clone(), |model| model.forward(&tokens())))?;
            let squares = never(self.model.observe_squares(own, |model| model.forward(&tokens())))?;
            let count = paths.len();
            holds(
                [&group, &squares].iter().all(|seen| seen.paths().count() == count),
                "more than a group is observed",
            )?;
            for path in &paths {
                let (Ok(seen), Ok(squares)) = (group.get(path), squares.get(path)) else {
                    holds(all.get(path).is_err(), format!("{path} is not seen in its group"))?;
                    continue;
                };
                let all = never(all.get(path))?;
                let [found, expected] = [seen, all].map(|seen| seen.gram().and_then(bytes));
                holds(never(found)? == never(expected)?, format!("{path} is seen otherwise in its group"))?;
                let [found, expected] = [squares, all].map(|seen| never(seen.mean_squares()));
                let far = never(distance(&found?, &expected?))?;
                holds(far <= 1e-5, format!("the squares of {path} are {far} apart"))?;
            }
        }
        Ok(())
    }

    /// A step of training.
    pub(crate) fn step(&mut self, trained: Trained, compiled: bool) -> Checked<Result<()>> {
        let key = never(random::key(11).map_err(Into::into))?;
        let dropped = self.model.drop_features(Some(&key));
        if let Err(error) = dropped {
            return Ok(Err(error));
        }
        let before = never(Held::of(&self.model))?;
        let mut optimizer = Sgd::new(0.01);
        let loss = |model: &mut Model<Net>, tokens: Array| model.forward(&tokens)?.square()?.mean(None);
        let mut plain = self.model.clone();
        let of = |model: &mut Model<Net>| {
            // Outside of products the gradient of scales of codes is that of a dense array.
            let builds = matches!(trained, Trained::Scales | Trained::All);
            let _policy = if builds { Policy::Allow } else { policy(model)? }.scope();
            model.value_and_grad(trained.filter(), tokens(), loss)
        };
        let stepped = of(&mut plain).and_then(|(value, gradients)| {
            plain.update(&mut optimizer, &gradients)?;
            plain.eval()?;
            Ok((value, gradients.into_keys().map(|path| path.to_string()).collect::<BTreeSet<_>>()))
        });
        let (value, moved) = match stepped {
            Ok(stepped) => stepped,
            Err(error) => {
                // The key is what was changed.
                never(self.model.drop_features(None))?;
                return Ok(Err(error));
            }
        };
        if compiled {
            let mut optimizer = Sgd::new(0.0);
            let mut step = compile_with_state(CompileOptions::default(), |model: &mut Model<Net>, tokens: Array| {
                let (value, gradients) = model.value_and_grad(trained.filter(), tokens, loss)?;
                model.update(&mut optimizer, &gradients)?;
                Ok::<_, Error>(value)
            });
            let mut model = self.model.clone();
            for _ in 0..2 {
                let y = never(step.call(&mut model, tokens()).and_then(|y| y.dense()))?;
                let far = never(distance(&y, &value))?;
                holds(far <= self.tolerance(1e-4), format!("compiled, the loss is {far} apart"))?;
            }
        }
        let after = never(Held::of(&plain))?;
        let differing = before.moved(&after);
        if let Some(path) = differing.difference(&moved).next() {
            return Err(format!("the leaf {path} was moved without a gradient"));
        }
        self.model = plain;
        never(self.model.drop_features(None))?;
        Ok(Ok(()))
    }
}

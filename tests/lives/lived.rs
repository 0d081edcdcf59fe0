//! What has to hold after each verb.

use mlx_rs::Array;
use mlx_rs::module::{Module, ModuleParameters};
use tacit::Result;

use crate::held::{Held, distance};
use crate::life::{Checked, Life, holds, never};
use crate::verb::Verb;

impl Life {
    pub(crate) fn live(&mut self, verb: &Verb) -> Checked {
        let before = never(Held::of(&self.model))?;
        let known = self.model.clone();
        match self.act(verb, &before)? {
            Ok(()) => {
                self.told.push(format!("{verb:?}"));
            }
            Err(error) => {
                let text = error.to_string();
                holds(text.contains("help: "), format!("an error without help: {text}"))?;
                let after = never(Held::of(&self.model))?;
                if let Some(difference) = before.changed(&after) {
                    return Err(format!("after the error \"{text}\" the model has other {difference}"));
                }
            }
        }
        // A clone shares nothing that changes.
        if let Some(difference) = before.changed(&never(Held::of(&known))?) {
            return Err(format!("a clone of before has other {difference}"));
        }
        self.check()
    }

    /// What holds of every model.
    fn check(&mut self) -> Checked {
        let (told, bytes) = (self.model.report().bytes().1, self.model.nbytes());
        holds(told == bytes, format!("the report tells of {told} bytes, and there are {bytes}"))?;
        let y = never(self.output())?;
        let expected = never(self.mirrored())?;
        let far = never(distance(&y, &expected))?;
        let most = if self.rounds {
            0.1
        } else if self.half {
            0.05
        } else {
            1e-4
        };
        holds(far <= most, format!("{far} from a dense model"))
    }

    /// Lets it happen. An outer error is a defect, an inner one is what the model's user sees.
    fn act(&mut self, verb: &Verb, before: &Held) -> Checked<Result<()>> {
        let y = never(self.output())?;
        Ok(match verb {
            Verb::Quantize { pattern, format } => self.become_other(|model| model.quantize(*pattern, *format)),
            Verb::Prepare { pattern, format, scales, int8 } => self.prepare(pattern, format, *scales, *int8),
            Verb::Convert => return self.convert(&y),
            Verb::Switch(on) => self.model.switch_quantization(*on).map(drop),
            Verb::Lora { pattern, method, stored, dropout } => {
                return self.adapt(pattern, *method, *stored, *dropout, &y);
            }
            Verb::Merge(format) => self.merge(*format).map(drop),
            Verb::MergeAndBack(format) => return self.merge_and_back(*format, before),
            Verb::Without => self.model.without_adapters().map(drop),
            Verb::Sets { chosen } => self.model.clone().without_adapters().and_then(|set| {
                self.model.adapter_sets(&[set.clone(), set])?;
                self.model.choose_adapters(&Array::from_slice(&[*chosen], &[]))
            }),
            Verb::Freeze(true) => {
                self.model.freeze_parameters(true);
                holds(self.model.all_frozen() == Some(true), "not all is frozen")?;
                Ok(())
            }
            Verb::Freeze(false) => {
                self.model.unfreeze_parameters(true);
                Ok(())
            }
            Verb::Cast { pattern, dtype } => self.cast(pattern, *dtype),
            Verb::Hold => self.model.hold_halves().map(drop),
            Verb::Int8(pattern) => {
                let rounded = self.model.int8_activations(*pattern);
                self.rounds |= rounded.is_ok();
                rounded.map(drop)
            }
            Verb::Set { path, good } => return self.set(path, *good),
            Verb::Replace { fails_at } => self.replace(*fails_at),
            Verb::Fail => self.fail(),
            Verb::Step { trained, compiled } => return self.step(*trained, *compiled),
            Verb::Observe { pattern, format, awq } => return self.observe(pattern, format, *awq, before),
            Verb::Leaves { good } => return self.set_leaves(*good),
            Verb::Saved => return self.save(&y).map(Ok),
            Verb::SavedRun(trained) => return self.save_run(*trained, &y),
            Verb::TornRun(trained) => return self.restore_torn(*trained),
            Verb::Tie => self.become_other(|model| model.tie("head.weight", "embedding.weight")),
            Verb::Training(on) => {
                self.model.training_mode(*on);
                Ok(())
            }
            Verb::Thread => return self.run_elsewhere(&y).map(Ok),
            Verb::Compile => return self.run_compiled(&y).map(Ok),
        })
    }
}

//! The moments of an optimizer before a step, for one that fails.

use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::optimizers::{Optimizer, OptimizerState as _};
use mlx_rs::{Array, ops};

/// The moments that an optimizer lists, by their keys; nothing where it cannot list them.
pub(crate) struct MomentsBefore(Option<Vec<(Rc<str>, Array)>>);

impl MomentsBefore {
    pub(crate) fn new<O: Optimizer>(optimizer: &mut O) -> Self {
        let listed = optimizer.state_mut().flatten().ok();
        Self(listed.map(|listed| listed.into_iter().map(|(key, array)| (key, array.clone())).collect()))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().flatten().map(|(key, _)| &**key)
    }

    pub(crate) fn give_back<O: Optimizer>(self, optimizer: &mut O) {
        let Some(before) = self.0 else { return };
        let state = optimizer.state_mut();
        let (mut found, mut came) = (0, false);
        {
            let Ok(now) = state.flatten_mut() else { return };
            let known: BTreeMap<&str, &Array> = before.iter().map(|(key, array)| (&**key, array)).collect();
            for (key, slot) in now {
                if let Some(array) = known.get(&*key) {
                    *slot = (*array).clone();
                    found += 1;
                } else {
                    came = true;
                    // As moments begin, for one that cannot be taken out again below.
                    if let Ok(zeros) = ops::zeros_like(&*slot) {
                        *slot = zeros;
                    }
                }
            }
        }
        if !came && found == before.len() {
            return;
        }
        // What mlx-rs reads back of the keys that it lists may be other moments: of some kinds it takes the last name of a path alone.
        let keys: Vec<Rc<str>> = before.iter().map(|(key, _)| key.clone()).collect();
        let Ok(mut read) = O::State::unflatten(before) else { return };
        let is_same = read.flatten().is_ok_and(|listed| listed.iter().map(|(key, _)| key).eq(&keys));
        if is_same {
            *state = read;
        }
    }
}

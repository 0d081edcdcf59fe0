//! A decoder's step, compiled.

use mlx_rs::Array;
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, compile_with_state};
use tacit_nn::{Cache, Model};

use tacit_models::{Decoder, Positions};

/// A compiled step of this model over its caches: the logits after the last of the tokens, `[batch, words]`, and of at most `judged`
/// tokens those after each.
///
/// It makes room in the caches first, which no compiled function can.
pub(crate) fn step(model: Model<Decoder>, judged: usize) -> impl FnMut(&Array, &mut Vec<Cache>) -> Result<Array> {
    let mut compiled = compile_with_state(
        CompileOptions { name: "the decoder's step".to_owned(), ..CompileOptions::default() },
        move |(model, caches): &mut (Model<Decoder>, Vec<Cache>), tokens: Array| {
            // Of a prompt that goes in by pieces only the last logits are of use.
            let judges = (2..=judged).contains(&(tokens.dim(1) as usize));
            let asked = if judges { Positions::All } else { Positions::Last };
            let logits = model.run_with(caches, |decoder, caches| decoder.forward(&tokens, caches, asked))?;
            if judges { Ok(logits) } else { Ok::<_, tacit_core::Error>(logits.squeeze_axes(&[1])?) }
        },
    );
    let mut state = (model, Vec::new());
    move |tokens, caches| {
        caches.iter_mut().try_for_each(|cache| cache.reserve(tokens.dim(1)))?;
        std::mem::swap(&mut state.1, caches);
        let logits = compiled.call(&mut state, tokens).and_then(|logits| logits.dense());
        std::mem::swap(&mut state.1, caches);
        logits
    }
}

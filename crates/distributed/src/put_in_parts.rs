//! Replaces parameters of a model by their parts, which do not keep the wholes in memory.

use mlx_rs::module::ModuleParameters;
use tacit_core::{Error, Result, Value, tree};
use tacit_nn::{Model, Pattern};

/// Puts what `split` makes of the parameters that a pattern names in their places, and computes it: a part that is lazy would keep its
/// whole in memory.
pub(crate) fn put_in_parts<M: ModuleParameters>(
    model: &mut Model<M>,
    pattern: impl TryInto<Pattern, Error: Into<Error>>,
    split: impl Fn(Value) -> Result<Option<Value>>,
) -> Result<()> {
    let mut parts = Vec::new();
    model.replace(pattern, |_, whole| {
        let part = split(whole)?;
        parts.extend(part.clone());
        Ok(part)
    })?;
    tree::eval(&parts)
}

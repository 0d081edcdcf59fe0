//! Half floats of a decoder where MLX multiplies them one by one, or not at all: on CPUs.

use tacit_core::Result;
use tacit_nn::Model;

use crate::decoder::Decoder;

/// Lets the formats `f16` and `bf16` hold a decoder's matrices of half floats, experts too, where the default device is a CPU.
///
/// [`Model::hold_halves`] does so for the matrices of any model. Which arrays of three axes are experts, only a decoder knows; MLX
/// does not multiply them on a CPU.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// let (_config, mut model) = tacit_models::load("Qwen3-30B-A3B")?;
/// tacit_models::hold_halves(&mut model)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`Model::hold_halves`].
pub fn hold_halves(model: &mut Model<Decoder>) -> Result<()> {
    model.hold_halves()?.hold_stacked_halves("*.switch_mlp.*")?;
    Ok(())
}

//! Half floats of a decoder where MLX multiplies them one by one, or not at all: on CPUs.

use mlx_rs::{Device, DeviceType, Dtype};
use tacit_arrays::format::{Bf16, F16, Quantizer};
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
    model.hold_halves()?;
    if !matches!(Device::try_default()?.get_type()?, DeviceType::Cpu) {
        return Ok(());
    }
    model.replace("*", |path, value| {
        let experts = value.as_dense().filter(|_| path.contains(".switch_mlp."));
        let format: Option<(_, &dyn Quantizer)> = experts.and_then(|experts| match experts.dtype() {
            Dtype::Float16 => Some((experts, &F16 as _)),
            Dtype::Bfloat16 => Some((experts, &Bf16 as _)),
            _ => None,
        });
        format.map(|(experts, format)| format.quantize(experts)).transpose()
    })?;
    Ok(())
}

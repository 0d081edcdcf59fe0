//! AWQ, as `AutoAWQ` writes it.
//!
//! A layer of `[in, out]` has `qweight: i32[in, out / 8]`, `qzeros: i32[groups, out / 8]` and `scales: f16[groups, out]`. A
//! word has the codes of eight outputs, of which the lowest bits are those of the outputs 0, 2, 4, 6, 1, 3, 5 and 7. An
//! element is `scale * (code - zero)`.

use std::path::Path;

use tacit_arrays::format::Affine;
use tacit_core::Result;
use tacit_nn::Parameters;

use crate::integers::{Integers, shifted};
use crate::quantized_layers::{self, HELP, Layer, Method, Words};

/// Reads the folder of a model that AWQ quantized to 4 bits: files of tensors, and `config.json` or `quant_config.json`.
///
/// The codes are kept, and read when they are used: a layer `PATH.qweight` becomes an
/// [`AffineArray`](tacit_arrays::AffineArray) `PATH.weight` of `[out, in]`, in the dtype of its scales, whose values are
/// those of `AutoAWQ`'s `dequantize_gemm` bit for bit. Groups longer than 128 have their scales several times. Other tensors
/// are as they are.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// let parameters = tacit_io::awq::read("Qwen2.5-0.5B-Instruct-AWQ")?;
/// println!("{}", parameters["model.layers.0.self_attn.q_proj.weight"]); // Affine(f16[896,896])
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A file cannot be read; the configuration is of another method or layout, or does not fit the tensors; or groups are not
/// multiples of 32.
pub fn read(folder: impl AsRef<Path>) -> Result<Parameters> {
    quantized_layers::read::<Awq>(folder.as_ref())
}

struct Awq;

/// The place in a word of each of eight outputs.
const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

fn code(words: &Words, row: usize, output: usize) -> u8 {
    (words.get(row, output / 8) >> (4 * PLACES[output % 8]) & 15) as u8
}

impl Method for Awq {
    const NAME: &'static str = "awq";
    const OLDER: &'static str = "quant_config.json";
    const MORE: &'static [&'static str] = &[];

    fn layer(layer: &Layer) -> Result<Integers> {
        let bits = layer.config.bits;
        if bits != 4 {
            return Err(layer.wrong("qweight", format!("its configuration says {bits} bits, and AWQ has 4"), HELP));
        }
        if let Some(version) = &layer.config.version
            && !version.eq_ignore_ascii_case("gemm")
        {
            let reason = format!("its version is {version}, and the layout of gemm is read");
            return Err(layer.wrong("qweight", reason, "write the model again as gemm"));
        }
        let (codes, zeros) = (layer.words("qweight")?, layer.words("qzeros")?);
        let (inputs, outputs) = (codes.rows, 8 * codes.columns);
        let group = layer.group(inputs, outputs, &zeros, codes.columns)?;
        let (scales, _) = layer.scales()?;
        let numbers = |row: usize, at: usize| shifted(scales[at * outputs + row], code(&zeros, at, row).into());
        let stored = codes.part.clone();
        let code = move |row, column| code(&codes, column, row);
        Ok(Integers::new([outputs, inputs], Affine { bits, group }, stored, code, numbers))
    }
}

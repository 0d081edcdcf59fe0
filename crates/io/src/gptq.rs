//! GPTQ, as `AutoGPTQ` and `GPTQModel` write it.
//!
//! A layer of `[in, out]` has `qweight: i32[in * bits / 32, out]`, codes along the first axis; `scales: f16[groups, out]`;
//! `qzeros: i32[groups, out * bits / 32]`, codes along the last one, one less than they mean (modulo the number of codes) unless
//! the format is `gptq_v2`; and `g_idx: i32[in]`, the group of each input. An element is `scale * (code - zero)`.
//!
//! Where `sym` is true all zeros are the middle code, which kernels take without a look at `qzeros`. Files have them as they are
//! and less 1, both under the name `gptq`.

use std::path::Path;

use tacit_arrays::format::Affine;
use tacit_core::Result;
use tacit_nn::Parameters;

use crate::integers::{Integers, in_stream, shifted};
use crate::quantized_layers::{self, HELP, Layer, Method, Words};

/// Reads the folder of a model that GPTQ quantized: files of tensors, and `config.json` or `quantize_config.json`.
///
/// The codes of 2, 3, 4 or 8 bits are kept, and read when they are used: a layer `PATH.qweight` becomes an
/// [`AffineArray`](tacit_arrays::AffineArray) `PATH.weight` of `[out, in]`, in the dtype of its scales, whose values are
/// those of `dequantize` bit for bit. Groups longer than 128 have their scales several times. Other tensors are as they are.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// let parameters = tacit_io::gptq::read("Qwen3-0.6B-GPTQ-Int4")?;
/// println!("{}", parameters["model.layers.0.self_attn.q_proj.weight"]); // Affine(f16[2048,1024])
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A file cannot be read; the configuration is of another method, or does not fit the tensors; a layer's inputs are
/// reordered (`desc_act`), so that groups are not along its rows; groups are not multiples of 32; or zeros of 3 bits are not
/// what they seem, as those that `GPTQModel` wrote before its version 7.
pub fn read(folder: impl AsRef<Path>) -> Result<Parameters> {
    quantized_layers::read::<Gptq>(folder.as_ref())
}

struct Gptq;

impl Method for Gptq {
    const NAME: &'static str = "gptq";
    const OLDER: &'static str = "quantize_config.json";
    const MORE: &'static [&'static str] = &["g_idx"];

    fn layer(layer: &Layer) -> Result<Integers> {
        let bits = layer.config.bits;
        if !matches!(bits, 2 | 3 | 4 | 8) {
            let reason = format!("its configuration says {bits} bits, and GPTQ has 2, 3, 4 and 8");
            return Err(layer.wrong("qweight", reason, HELP));
        }
        let below = match layer.config.checkpoint_format.as_deref() {
            None | Some("gptq") => 1,
            Some("gptq_v2") => 0,
            Some(other) => {
                let reason = format!("its checkpoint_format is {other}, and gptq and gptq_v2 are read");
                return Err(layer.wrong("qweight", reason, "write the model again in one of these"));
            }
        };
        let (codes, zeros) = (layer.words("qweight")?, layer.words("qzeros")?);
        let (inputs, outputs) = (codes.rows * 32 / bits as usize, codes.columns);
        if codes.rows * 32 != inputs * bits as usize || !inputs.is_multiple_of(32) || inputs == 0 {
            let reason = format!("{} rows of words are not the codes of whole groups of 32 inputs", codes.rows);
            return Err(layer.wrong("qweight", reason, HELP));
        }
        let group = layer.group(inputs, outputs, &zeros, (outputs * bits as usize).div_ceil(32))?;
        if let Some(groups) = layer.integers("g_idx")? {
            let in_order =
                groups.len() == inputs && groups.iter().enumerate().all(|(input, &of)| of as usize == input / group);
            if !in_order {
                let reason =
                    "its inputs are in an order of their own (desc_act), and an array has groups along its rows";
                return Err(layer.wrong("g_idx", reason, "quantize the model again without desc_act"));
            }
        }
        let middle = (layer.config.sym == Some(true) && are_one(&zeros, bits)).then_some(1_u32 << (bits - 1));
        if (below, bits, middle) == (1, 3, None)
            && layer.config.major_version("gptqmodel").is_some_and(|version| version < 7)
        {
            let reason =
                "GPTQModel before its version 7 took the 1 of zeros of 3 bits from other bits than their lowest";
            return Err(layer.wrong("qzeros", reason, "write the model again as gptq_v2"));
        }
        let (scales, _) = layer.scales()?;
        let stored = codes.part.clone();
        let code = move |row, column| in_stream(|word| codes.get(word, row), column, bits);
        // GPTQModel takes the 1 from all fields of a word at once, where a zero of 0 borrows from the field above, and so it
        // is given back. Some fields of 3 bits lie in two words: each of them gets its own 1.
        let (of_word, of_field): (u32, u32) = match (below, bits) {
            (1, 2) => (0x5555_5555, 0),
            (1, 4) => (0x1111_1111, 0),
            (1, 8) => (0x0101_0101, 0),
            (below, _) => (0, below),
        };
        let greatest = (1_u32 << bits) - 1;
        let zero = |row, at| {
            let stored = in_stream(|word| zeros.get(at, word).wrapping_add(of_word), row, bits);
            (u32::from(stored) + of_field) & greatest
        };
        let numbers =
            |row: usize, at: usize| shifted(scales[at * outputs + row], middle.unwrap_or_else(|| zero(row, at)));
        Ok(Integers::new([outputs, inputs], Affine { bits, group }, stored, code, numbers))
    }
}

/// Whether all zeros are one number: words then repeat, those of 3 bits after three, whatever was taken from each.
fn are_one(zeros: &Words, bits: u32) -> bool {
    let period = if bits == 3 { 3 } else { 1 };
    (0..zeros.rows).all(|row| {
        (0..zeros.columns).all(|word| {
            let found = zeros.get(row, word);
            found == zeros.get(0, word % period) && (bits == 3 || found == found.rotate_left(bits))
        })
    })
}

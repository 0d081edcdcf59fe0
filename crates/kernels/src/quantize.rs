//! Floats as codes by the rule of an [`Encoder`]: each rule with its loop.

use crate::{
    Encoder, Isa, KernelError,
    affine::{Affine, Line},
    binary::Binary,
    encode::{Blocks, Codec, Format, encode},
    encoder::{BlockRule, BlockScales, Rule},
    int8::Int8,
    matrix::check_length,
    mx::Mx,
    nearest::{Nearest, NearestByte},
    nvfp4::Nvfp4,
    symmetric::Symmetric,
    ternary::Ternary,
};

/// Scales that are written, of one type or another.
enum Scales<'a> {
    Floats(Blocks<'a, f32>),
    Bytes(Blocks<'a, u8>),
    Lines(Blocks<'a, Line>),
}

impl Encoder {
    /// Quantizes `x: f32[e]` in flat blocks into a stream of codes, in whole bytes, and the scale of each block.
    ///
    /// # Errors
    /// A block size that the format does not have, a wrong length or type of scales, a global scale that is not finite and
    /// above zero, or a NaN or infinity in `x`. The outputs are then unspecified.
    pub fn quantize(
        &self,
        x: &[f32],
        codes: &mut [u8],
        scales: BlockScales<&mut [f32], &mut [u8]>,
    ) -> Result<(), KernelError> {
        let (scales, biases) = match scales {
            BlockScales::Floats(scales) => return self.encode(x, codes, Scales::Floats(Blocks::Made(scales))),
            BlockScales::Bytes(scales) => return self.encode(x, codes, Scales::Bytes(Blocks::Made(scales))),
            BlockScales::Biased(scales, biases) => (scales, biases),
        };
        check_length("biases", biases.len(), scales.len(), "each group of elements has one")?;
        let mut lines = vec![Line::default(); scales.len()];
        self.encode(x, codes, Scales::Lines(Blocks::Made(&mut lines)))?;
        for ((line, scale), bias) in lines.into_iter().zip(scales).zip(biases) {
            (*scale, *bias) = (line.scale, line.bias);
        }
        Ok(())
    }

    /// Codes `x` as [`quantize`](Self::quantize) does, by these scales.
    ///
    /// # Errors
    /// As for [`quantize`](Self::quantize).
    pub fn quantize_by(
        &self,
        x: &[f32],
        scales: BlockScales<&[f32], &[u8]>,
        codes: &mut [u8],
    ) -> Result<(), KernelError> {
        match scales {
            BlockScales::Floats(scales) => self.encode(x, codes, Scales::Floats(Blocks::Given(scales))),
            BlockScales::Bytes(scales) => self.encode(x, codes, Scales::Bytes(Blocks::Given(scales))),
            BlockScales::Biased(scales, biases) => {
                check_length("biases", biases.len(), scales.len(), "each group of elements has one")?;
                let lines: Vec<Line> = scales.iter().zip(biases).map(|(&scale, &bias)| Line { scale, bias }).collect();
                self.encode(x, codes, Scales::Lines(Blocks::Given(&lines)))
            }
        }
    }

    fn encode(&self, x: &[f32], codes: &mut [u8], scales: Scales) -> Result<(), KernelError> {
        self.check_block(x.len())?;
        match (&self.rule, scales) {
            (&Rule::Nearest { ref search, top, bits }, Scales::Floats(scales)) => match bits {
                4 if search.is_in_order() => self.run(Nearest::<true, true> { search, top, bits }, x, codes, scales),
                4 => self.run(Nearest::<true, false> { search, top, bits }, x, codes, scales),
                _ => self.run(Nearest::<false, false> { search, top, bits }, x, codes, scales),
            },
            (&Rule::NearestByte { ref search, top }, Scales::Floats(scales)) => {
                if search.is_in_order() {
                    self.run(NearestByte::<true> { search, top }, x, codes, scales)
                } else {
                    self.run(NearestByte::<false> { search, top }, x, codes, scales)
                }
            }
            (&Rule::Mxfp4(rule), Scales::Bytes(scales)) => self.run(Mx::<4> { rule }, x, codes, scales),
            (&Rule::Mxfp8(rule), Scales::Bytes(scales)) => self.run(Mx::<8> { rule }, x, codes, scales),
            (&Rule::Nvfp4 { global_scale }, Scales::Bytes(scales)) => {
                let is_given = matches!(scales, Blocks::Given(_));
                let format = if is_given { Nvfp4::by_given(x, global_scale) } else { Nvfp4::new(x, global_scale) };
                self.run(format?, x, codes, scales)
            }
            (Rule::Int8, Scales::Floats(scales)) => self.run(Int8, x, codes, scales),
            (&Rule::Symmetric { bits }, Scales::Floats(scales)) => self.run(Symmetric::new(bits)?, x, codes, scales),
            (&Rule::Affine { bits }, Scales::Lines(scales)) => self.run(Affine::new(bits)?, x, codes, scales),
            (Rule::Ternary, Scales::Floats(scales)) => self.run(Ternary, x, codes, scales),
            (Rule::Binary, Scales::Floats(scales)) => self.run(Binary, x, codes, scales),
            _ => Err(KernelError::ScaleType { needed: self.scale_type() }),
        }
    }

    fn run<F: Format>(
        &self,
        format: F,
        x: &[f32],
        codes: &mut [u8],
        scales: Blocks<'_, F::Stored>,
    ) -> Result<(), KernelError> {
        let Self { block, order, padding, .. } = *self;
        encode(Isa::detect(), Codec { format, block, order, padding }, x, codes, scales)
    }

    fn check_block(&self, elements: usize) -> Result<(), KernelError> {
        let Self { block, blocks, .. } = *self;
        match blocks {
            BlockRule::PowerOfTwo if !(block.is_power_of_two() && (32..=4096).contains(&block)) => {
                Err(KernelError::BlockSize { block })
            }
            _ if block == 0 => Err(KernelError::EmptyBlock),
            BlockRule::Whole if !elements.is_multiple_of(block) => Err(KernelError::Group { elements, group: block }),
            _ => Ok(()),
        }
    }

    fn scale_type(&self) -> &'static str {
        match self.rule {
            Rule::Mxfp4(_) | Rule::Mxfp8(_) | Rule::Nvfp4 { .. } => "BlockScales::Bytes",
            Rule::Affine { .. } => "BlockScales::Biased",
            _ => "BlockScales::Floats",
        }
    }
}

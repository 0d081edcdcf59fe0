//! Where codes and what blocks store are written, in one go or by pieces.

use mlx_rs::Dtype;
use tacit_core::kernel::Output;
use tacit_kernels::{KernelError, affine, binary, fp4, int8, mxfp4, mxfp8, nearest::Table, nf4, nvfp4, ternary};

use super::{Encoding, Fallible, Scheme};

/// The codes of some blocks, and their scales and biases.
pub(super) struct Coded<'a> {
    codes: Codes<'a>,
    scales: Scales<'a>,
    biases: Option<&'a mut [f32]>,
}

enum Codes<'a> {
    Bytes(&'a mut [u8]),
    Signed(&'a mut [i8]),
}

enum Scales<'a> {
    Floats(&'a mut [f32]),
    Bytes(&'a mut [u8]),
}

impl<'a> Coded<'a> {
    /// The outputs of a kernel that quantizes.
    pub(super) fn of(outputs: &'a mut [Output<'_>]) -> Fallible<Self> {
        let [codes, scales, more @ ..] = outputs else { return Err("codes and scales are expected".into()) };
        let biases = match more {
            [] => None,
            [biases, ..] => Some(biases.elements()?),
        };
        let codes = match codes.aval().dtype {
            Dtype::Int8 => Codes::Signed(codes.elements()?),
            _ => Codes::Bytes(codes.bytes()),
        };
        let scales = match scales.aval().dtype {
            Dtype::Uint8 => Scales::Bytes(scales.elements()?),
            _ => Scales::Floats(scales.elements()?),
        };
        Ok(Self { codes, scales, biases })
    }

    /// Those of each `each` elements, which are whole blocks in whole bytes.
    pub(super) fn pieces(self, scheme: &Scheme, block: usize, each: usize) -> Vec<Self> {
        let bytes = (each * scheme.bits()).div_ceil(8).max(1);
        let blocks = each.div_ceil(block).max(1);
        let codes: Vec<Codes> = match self.codes {
            Codes::Bytes(codes) => codes.chunks_mut(bytes).map(Codes::Bytes).collect(),
            Codes::Signed(codes) => codes.chunks_mut(bytes).map(Codes::Signed).collect(),
        };
        let scales: Vec<Scales> = match self.scales {
            Scales::Floats(scales) => scales.chunks_mut(blocks).map(Scales::Floats).collect(),
            Scales::Bytes(scales) => scales.chunks_mut(blocks).map(Scales::Bytes).collect(),
        };
        let mut biases = self.biases.map(|biases| biases.chunks_mut(blocks));
        let pieces = codes.into_iter().zip(scales);
        pieces.map(|(codes, scales)| Self { codes, scales, biases: biases.as_mut().and_then(Iterator::next) }).collect()
    }

    /// Codes `x`, whole blocks of it but the last, relative to `global` if the format has that.
    pub(super) fn quantize(
        self,
        scheme: &Scheme,
        block: usize,
        x: &[f32],
        global: Option<f32>,
    ) -> Result<(), KernelError> {
        match (scheme.encoding, self.codes, self.scales, self.biases) {
            (Encoding::Nearest, Codes::Bytes(codes), Scales::Floats(scales), _) => {
                Table::new(scheme.table().unwrap_or_default())?.quantize(x, block, codes, scales)
            }
            (Encoding::Nf4, Codes::Bytes(codes), Scales::Floats(scales), _) => nf4::quantize(x, block, codes, scales),
            (Encoding::Fp4, Codes::Bytes(codes), Scales::Floats(scales), _) => fp4::quantize(x, block, codes, scales),
            (Encoding::Affine, Codes::Bytes(codes), Scales::Floats(scales), Some(biases)) => {
                // A group has a row to itself here: rows are whole groups anyway.
                affine::quantize(x, block, block, scheme.bits() as u32, codes, scales, biases)
            }
            (Encoding::Int8, Codes::Signed(codes), Scales::Floats(scales), _) => {
                int8::quantize(x, block, codes, scales)
            }
            (Encoding::Mxfp4(rule), Codes::Bytes(codes), Scales::Bytes(scales), _) => {
                mxfp4::quantize(x, rule, codes, scales)
            }
            (Encoding::Mxfp8(rule), Codes::Bytes(codes), Scales::Bytes(scales), _) => {
                mxfp8::quantize(x, rule, codes, scales)
            }
            (Encoding::Nvfp4 { .. }, Codes::Bytes(codes), Scales::Bytes(scales), _) => {
                nvfp4::quantize(x, global, codes, scales)
            }
            (Encoding::Ternary, Codes::Bytes(codes), Scales::Floats(scales), _) => {
                ternary::quantize(x, block, codes, scales)
            }
            (Encoding::Binary, Codes::Bytes(codes), Scales::Floats(scales), _) => {
                binary::quantize(x, block, codes, scales)
            }
            _ => unreachable!("the outputs have the dtypes that the scheme declares"),
        }
    }
}

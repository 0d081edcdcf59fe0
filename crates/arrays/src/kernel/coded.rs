//! The outputs of a quantizing kernel, codes with the scales and biases of their blocks, at once or in pieces.

use half::slice::HalfBitsSliceExt;
use mlx_rs::Dtype;
use tacit_core::kernel::Output;
use tacit_kernels::{BlockScales, Encoder, KernelError, half_floats};

use super::host::Fallible;
use super::{Coding, Scheme};

/// The codes of some blocks, and their scales and biases, as far as there are any.
pub(super) struct Coded<'a> {
    codes: Codes<'a>,
    scales: Option<Scales<'a>>,
}

type Scales<'a> = BlockScales<&'a mut [f32], &'a mut [u8]>;

enum Codes<'a> {
    Bytes(&'a mut [u8]),
    Halves(&'a mut [u16]),
}

impl<'a> Coded<'a> {
    pub(super) fn new(outputs: &'a mut [Output<'_>]) -> Fallible<Self> {
        let [codes, more @ ..] = outputs else { return Err("codes are expected".into()) };
        let codes = match codes.aval().dtype {
            Dtype::Uint16 => Codes::Halves(codes.elements()?),
            _ => Codes::Bytes(codes.bytes()),
        };
        let scales = match more {
            [] => None,
            [scales] => Some(match scales.aval().dtype {
                Dtype::Uint8 => Scales::Bytes(scales.elements()?),
                _ => Scales::Floats(scales.elements()?),
            }),
            [scales, biases, ..] => Some(Scales::Biased(scales.elements()?, biases.elements()?)),
        };
        Ok(Self { codes, scales })
    }

    /// The outputs of each `each` elements, which are whole blocks in whole bytes.
    pub(super) fn pieces(self, scheme: &Scheme, block: usize, each: usize) -> Vec<Self> {
        let bytes = (each * scheme.bits()).div_ceil(8).max(1);
        let blocks = each.div_ceil(block).max(1);
        let codes: Vec<Codes> = match self.codes {
            Codes::Bytes(codes) => codes.chunks_mut(bytes).map(Codes::Bytes).collect(),
            Codes::Halves(codes) => codes.chunks_mut(bytes / 2).map(Codes::Halves).collect(),
        };
        let scales: Vec<Scales> = match self.scales {
            Some(Scales::Floats(scales)) => scales.chunks_mut(blocks).map(Scales::Floats).collect(),
            Some(Scales::Bytes(scales)) => scales.chunks_mut(blocks).map(Scales::Bytes).collect(),
            Some(Scales::Biased(scales, biases)) => {
                let both = scales.chunks_mut(blocks).zip(biases.chunks_mut(blocks));
                both.map(|(scales, biases)| Scales::Biased(scales, biases)).collect()
            }
            None => Vec::new(),
        };
        let mut scales = scales.into_iter();
        codes.into_iter().map(|codes| Self { codes, scales: scales.next() }).collect()
    }

    /// Codes `x`, whole blocks of it but the last, relative to `global` if the format has that.
    pub(super) fn quantize(
        self,
        scheme: &Scheme,
        block: usize,
        x: &[f32],
        global: Option<f32>,
    ) -> Result<(), KernelError> {
        self.encode(scheme, scheme.encoder(block, global)?.as_ref(), x)
    }

    /// The same by the encoder that the scheme has for such blocks, if it has one.
    pub(super) fn encode(self, scheme: &Scheme, encoder: Option<&Encoder>, x: &[f32]) -> Result<(), KernelError> {
        match (encoder, self.codes, self.scales) {
            (Some(encoder), Codes::Bytes(codes), Some(scales)) => encoder.quantize(x, codes, scales),
            (_, codes, _) => codes.round(scheme, x),
        }
    }
}

impl Codes<'_> {
    /// Codes `x` as the half floats that it rounds to.
    fn round(self, scheme: &Scheme, x: &[f32]) -> Result<(), KernelError> {
        match (scheme.coding, self) {
            (Coding::F16, Self::Halves(codes)) => half_floats::to_f16(x, codes.reinterpret_cast_mut()),
            (Coding::Bf16, Self::Halves(codes)) => half_floats::to_bf16(x, codes.reinterpret_cast_mut()),
            _ => unreachable!("the outputs have the dtypes that the scheme declares"),
        }
    }
}

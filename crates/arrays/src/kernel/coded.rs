//! Where codes and what blocks store are written, in one go or by pieces.

use half::slice::HalfBitsSliceExt;
use mlx_rs::Dtype;
use tacit_core::kernel::Output;
use tacit_kernels::nearest::Table;
use tacit_kernels::{KernelError, affine, binary, fp4, halves, int8, mxfp4, mxfp8, nf4, nvfp4, ternary};

use super::host::Fallible;
use super::{Coding, Encoding, Scheme};

/// The codes of some blocks, and their scales and biases, as far as there are any.
pub(super) struct Coded<'a> {
    codes: Codes<'a>,
    scales: Option<Scales<'a>>,
    biases: Option<&'a mut [f32]>,
}

enum Codes<'a> {
    Bytes(&'a mut [u8]),
    Signed(&'a mut [i8]),
    Halves(&'a mut [u16]),
}

enum Scales<'a> {
    Floats(&'a mut [f32]),
    Bytes(&'a mut [u8]),
}

impl<'a> Coded<'a> {
    /// The outputs of a kernel that quantizes.
    pub(super) fn of(outputs: &'a mut [Output<'_>]) -> Fallible<Self> {
        let [codes, more @ ..] = outputs else { return Err("codes are expected".into()) };
        let mut more = more.iter_mut();
        let scales = more.next();
        let biases = more.next().map(Output::elements).transpose()?;
        let codes = match codes.aval().dtype {
            Dtype::Int8 => Codes::Signed(codes.elements()?),
            Dtype::Uint16 => Codes::Halves(codes.elements()?),
            _ => Codes::Bytes(codes.bytes()),
        };
        let scales = match scales {
            None => None,
            Some(scales) if scales.aval().dtype == Dtype::Uint8 => Some(Scales::Bytes(scales.elements()?)),
            Some(scales) => Some(Scales::Floats(scales.elements()?)),
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
            Codes::Halves(codes) => codes.chunks_mut(bytes / 2).map(Codes::Halves).collect(),
        };
        let scales: Vec<Scales> = match self.scales {
            Some(Scales::Floats(scales)) => scales.chunks_mut(blocks).map(Scales::Floats).collect(),
            Some(Scales::Bytes(scales)) => scales.chunks_mut(blocks).map(Scales::Bytes).collect(),
            None => Vec::new(),
        };
        let mut scales = scales.into_iter();
        let mut biases = self.biases.map(|biases| biases.chunks_mut(blocks));
        let mut piece = |codes| Self { codes, scales: scales.next(), biases: biases.as_mut().and_then(Iterator::next) };
        codes.into_iter().map(&mut piece).collect()
    }

    /// Codes `x`, whole blocks of it but the last, relative to `global` if the format has that.
    pub(super) fn quantize(
        self,
        scheme: &Scheme,
        block: usize,
        x: &[f32],
        global: Option<f32>,
    ) -> Result<(), KernelError> {
        let Some(scales) = self.scales else { return self.codes.round(scheme, x) };
        match (scheme.encoding, self.codes, scales, self.biases) {
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

impl Codes<'_> {
    /// Codes `x` as the half floats that it rounds to.
    fn round(self, scheme: &Scheme, x: &[f32]) -> Result<(), KernelError> {
        match (scheme.coding, self) {
            (Coding::F16, Self::Halves(codes)) => halves::to_f16(x, codes.reinterpret_cast_mut()),
            (Coding::Bf16, Self::Halves(codes)) => halves::to_bf16(x, codes.reinterpret_cast_mut()),
            _ => unreachable!("the outputs have the dtypes that the scheme declares"),
        }
    }
}

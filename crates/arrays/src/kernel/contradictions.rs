//! Checks that a scheme does not contradict itself, as one that is written by hand may.

use mlx_rs::Dtype;
use tacit_core::{Error, Result};
use tacit_kernels::{E2M1, binary, fp4, nf4, ternary};

use super::{Coding, Encoding, Nested, Scaling, Scheme};

impl Scheme {
    /// Checks that there are codes of so many bits, and that codes, scales and storage are those of the encoding.
    pub(crate) fn check(&self) -> Result<()> {
        let most = match self.coding {
            Coding::Table { .. } => 4,
            Coding::F16 | Coding::Bf16 => 16,
            _ => 8,
        };
        if !(1..=most).contains(&self.bits()) {
            return Err(Error::invalid(
                format!("the scheme of {} has codes of {} bits", self.label, self.bits()),
                "give a table codes of 1 to 4 bits, and integers codes of 1 to 8",
            ));
        }
        let scaling = match self.encoding {
            Encoding::Mxfp4(_) | Encoding::Mxfp8(_) => Scaling::E8m0,
            Encoding::Nvfp4 { .. } => Scaling::E4m3,
            Encoding::Rounded => Scaling::One,
            _ => Scaling::Float,
        };
        let fields = [
            ("coding", self.has_codes_of_encoding()),
            ("scaling", self.scaling == scaling),
            ("nested", self.has_scales_to_nest()),
            ("storage", self.has_room()),
        ];
        match fields.into_iter().find(|(_, agrees)| !agrees) {
            None => Ok(()),
            Some((field, _)) => Err(Error::invalid(
                format!("in the scheme of {} `{field}` contradicts the encoding {:?}", self.label, self.encoding),
                "take all fields from a format that is encoded so, or `Scheme::codebook` for a table of your own",
            )),
        }
    }

    fn has_codes_of_encoding(&self) -> bool {
        match self.encoding {
            Encoding::Nearest | Encoding::Reaching => self.table().is_some(),
            Encoding::Nf4 => self.begins_with(4, &nf4::CODEBOOK),
            Encoding::Fp4 => self.begins_with(4, &fp4::CODEBOOK),
            Encoding::Affine => matches!(self.coding, Coding::Unsigned { .. }),
            // The only integers of one bit are -1 and 0.
            Encoding::Symmetric => matches!(self.coding, Coding::Offset { bits: 2.. }),
            Encoding::Int8 => matches!(self.coding, Coding::Signed),
            Encoding::Mxfp4(_) | Encoding::Nvfp4 { .. } => self.begins_with(4, &E2M1),
            Encoding::Mxfp8(_) => matches!(self.coding, Coding::E4m3),
            // The fourth code is not used.
            Encoding::Ternary => self.begins_with(2, &ternary::VALUES[..3]),
            Encoding::Binary => self.begins_with(1, &binary::VALUES),
            Encoding::Rounded => matches!(self.coding, Coding::F16 | Coding::Bf16),
        }
    }

    /// Whether the codes have so many bits, and the first of them these values.
    fn begins_with(&self, bits: usize, values: &[f32]) -> bool {
        let same = |own: &[f32]| own.iter().zip(values).all(|(own, value)| own.to_bits() == value.to_bits());
        self.bits() == bits && self.table().is_some_and(same)
    }

    fn has_scales_to_nest(&self) -> bool {
        match self.nested {
            None => true,
            Some(Nested::Dynamic8 { block }) => block > 0 && self.scaling == Scaling::Float,
            Some(Nested::Integers { block }) => {
                block > 0 && matches!(self.encoding, Encoding::Affine | Encoding::Symmetric)
            }
        }
    }

    /// Whether the array of codes has the dtype that such codes lie in.
    fn has_room(&self) -> bool {
        match self.coding {
            Coding::Signed => self.storage == Dtype::Int8,
            Coding::F16 | Coding::Bf16 => self.storage == Dtype::Uint16,
            _ => matches!(self.storage, Dtype::Uint8 | Dtype::Uint32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_that_contradict_themselves() {
        let table = Scheme::codebook("by_hand", &[-1.0, -0.25, 0.25, 1.0]);
        let Coding::Table { order, values, .. } = table.coding else { panic!("it is a table") };
        let affine = |bits| Scheme { encoding: Encoding::Affine, coding: Coding::Unsigned { bits }, ..table };
        let said = [
            Scheme { coding: Coding::Table { bits: 5, order, values }, ..table },
            affine(0),
            affine(32),
            Scheme { encoding: Encoding::Nf4, ..table },
            Scheme { scaling: Scaling::One, ..table },
            Scheme { nested: Some(Nested::Integers { block: 8 }), ..table },
            Scheme { storage: Dtype::Int8, ..table },
        ]
        .map(|scheme| scheme.check().expect_err("it contradicts").to_string());
        expect_test::expect![[r#"
            the scheme of by_hand has codes of 5 bits
            help: give a table codes of 1 to 4 bits, and integers codes of 1 to 8
            the scheme of by_hand has codes of 0 bits
            help: give a table codes of 1 to 4 bits, and integers codes of 1 to 8
            the scheme of by_hand has codes of 32 bits
            help: give a table codes of 1 to 4 bits, and integers codes of 1 to 8
            in the scheme of by_hand `coding` contradicts the encoding Nf4
            help: take all fields from a format that is encoded so, or `Scheme::codebook` for a table of your own
            in the scheme of by_hand `scaling` contradicts the encoding Nearest
            help: take all fields from a format that is encoded so, or `Scheme::codebook` for a table of your own
            in the scheme of by_hand `nested` contradicts the encoding Nearest
            help: take all fields from a format that is encoded so, or `Scheme::codebook` for a table of your own
            in the scheme of by_hand `storage` contradicts the encoding Nearest
            help: take all fields from a format that is encoded so, or `Scheme::codebook` for a table of your own"#]]
        .assert_eq(&said.join("\n"));
        assert!(table.check().is_ok());
    }
}

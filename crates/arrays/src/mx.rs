//! OCP's microscaling formats: groups of 32 along the last axis, and a power of two for each.

use tacit_core::store::serde::{Deserialize, Serialize};

/// How a group's largest magnitude decides on its power of two; decoding does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(crate = "tacit_core::store::serde")]
pub enum ScaleRule {
    /// `2^ceil(log2(most / top))`, as MLX does from 0.32.2 on: nothing saturates.
    Ceil,
    /// `2^round(log2(most / top))`, as MLX did before.
    Round,
    /// `2^(floor(log2(most)) - floor(log2(top)))`, as OCP's specification 1.0 has it.
    Floor,
}

impl From<ScaleRule> for tacit_kernels::ScaleRule {
    fn from(rule: ScaleRule) -> Self {
        match rule {
            ScaleRule::Ceil => Self::Ceil,
            ScaleRule::Round => Self::Round,
            ScaleRule::Floor => Self::Floor,
        }
    }
}

/// Elements that share a scale.
pub(crate) const GROUP: usize = 32;

/// An array type of the MX family, with its constructors.
macro_rules! mx_array {
    ($(#[$attr:meta])* pub struct $ty:ident; $name:literal, $format:ident, $encoding:ident, $per_word:literal) => {
        $(#[$attr])*
        #[derive(tacit_core::ImplicitArray, Clone, Debug)]
        #[implicit(name = $name, family(crate::packed::Packed, crate::linear::Linear))]
        pub struct $ty {
            #[doc = concat!("The codes, least significant bits first: `u32[.., k / ", $per_word, "]`.")]
            packed: mlx_rs::Array,
            /// The exponents of the scales, plus 127: `u8[.., k / 32]`.
            scales: mlx_rs::Array,
            /// How the scales were chosen; `None` where that is not known.
            #[implicit(aux)]
            rule: Option<$crate::ScaleRule>,
            /// Whether the stored matrix has its axes the other way round.
            #[implicit(aux)]
            transposed: bool,
            #[implicit(aux)]
            aval: tacit_core::Aval,
        }

        impl $ty {
            /// Quantizes `x` in groups of 32 elements of its last axis.
            ///
            /// It is lazy, and works inside `grad` and `compile`.
            ///
            /// # Errors
            ///
            /// `x` is not `f32`, `f16` or `bf16`, has no elements, or its last axis is not whole groups. A NaN or an
            /// infinity in `x` is an error of the eval.
            pub fn quantize(x: &mlx_rs::Array, rule: $crate::ScaleRule) -> tacit_core::Result<Self> {
                let aval = check(tacit_core::Aval::from(x))?;
                let encoding = $crate::kernel::Encoding::$encoding(rule.into());
                let x = x.as_dtype(mlx_rs::Dtype::Float32)?;
                let [packed, scales] = $crate::kernel::quantize(encoding, $crate::mx::GROUP, &[x])?;
                Ok(Self { packed, scales, rule: Some(rule), transposed: false, aval })
            }

            /// The array of codes and scales that were made elsewhere, such as an MLX checkpoint, read as `dtype`.
            ///
            /// # Errors
            ///
            /// The shapes and dtypes do not belong to one array.
            pub fn from_parts(
                packed: mlx_rs::Array,
                scales: mlx_rs::Array,
                dtype: mlx_rs::Dtype,
            ) -> tacit_core::Result<Self> {
                let mut shape = packed.shape().to_vec();
                if let Some(last) = shape.last_mut() {
                    *last = last.saturating_mul($per_word);
                }
                let aval = tacit_core::Aval::new(&shape, dtype);
                let array = Self { packed, scales, rule: None, transposed: false, aval };
                tacit_core::Materialize::check(&array)?;
                Ok(array)
            }

            /// The codes.
            #[must_use]
            pub fn packed(&self) -> &mlx_rs::Array {
                &self.packed
            }

            /// The exponents of the scales.
            #[must_use]
            pub fn scales(&self) -> &mlx_rs::Array {
                &self.scales
            }

            /// How the scales were chosen, if that is known.
            #[must_use]
            pub fn rule(&self) -> Option<$crate::ScaleRule> {
                self.rule
            }
        }

        fn check(aval: tacit_core::Aval) -> tacit_core::Result<tacit_core::Aval> {
            $crate::checks::check_elements($crate::kernel::Format::$format.label, &aval)?;
            $crate::checks::check_groups($crate::kernel::Format::$format.label, &aval, $crate::mx::GROUP)?;
            Ok(aval)
        }

        impl tacit_core::Materialize for $ty {
            fn materialize(&self) -> tacit_core::Result<tacit_core::Value> {
                $crate::packed::dense(self)
            }

            fn check(&self) -> tacit_core::Result<()> {
                let shape = $crate::checks::stored_shape(&self.aval, self.transposed)?;
                let aval = check(tacit_core::Aval::new(&shape, self.aval.dtype))?;
                let (codes, groups) = $crate::kernel::Format::$format.children(&shape, $crate::mx::GROUP);
                let codes = tacit_core::Aval::new(&codes, mlx_rs::Dtype::Uint32);
                let groups = tacit_core::Aval::new(&groups, mlx_rs::Dtype::Uint8);
                let children = [
                    ("packed", codes, tacit_core::Aval::from(&self.packed)),
                    ("scales", groups, tacit_core::Aval::from(&self.scales)),
                ];
                $crate::checks::check_children($crate::kernel::Format::$format.label, &aval, &children)
            }
        }

        impl $crate::packed::Packed for $ty {
            fn stored(&self) -> $crate::packed::Stored {
                $crate::packed::Stored {
                    format: $crate::kernel::Format::$format,
                    codes: self.packed.clone(),
                    scales: (&self.scales).into(),
                    modifier: None,
                    block: $crate::mx::GROUP,
                    transposed: self.transposed,
                    aval: self.aval.clone(),
                }
            }

            fn restored(&self, stored: $crate::packed::Stored) -> Box<dyn tacit_core::ImplicitArray> {
                let $crate::packed::Stored { codes: packed, scales, transposed, aval, .. } = stored;
                let scales = $crate::packed::dense_scales(&scales, &self.scales);
                Box::new(Self { packed, scales, rule: self.rule, transposed, aval })
            }
        }
    };
}
pub(crate) use mx_array;

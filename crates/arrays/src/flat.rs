//! Types whose codes are flattened row-major and cut into blocks.

/// An array type of codes and one scale a block, with its constructors.
macro_rules! flat_array {
    (
        $(#[$attr:meta])*
        pub struct $ty:ident {
            $(#[$codes_doc:meta])*
            $codes:ident,
            $(#[$scales_doc:meta])*
            $scales:ident,
            $($(#[$option_doc:meta])* $option:ident,)?
        }
        $name:literal, $format:ident, $encoding:ident, $check:ident
    ) => {
        $(#[$attr])*
        #[derive(tacit_core::ImplicitArray, Clone, Debug)]
        #[implicit(name = $name, family(crate::packed::Packed, crate::linear::Linear))]
        pub struct $ty {
            $(#[$codes_doc])*
            $codes: mlx_rs::Array,
            $(#[$scales_doc])*
            $scales: tacit_core::Value,
            #[implicit(aux)]
            block_size: usize,
            $($(#[$option_doc])*
            #[implicit(aux)]
            $option: bool,)?
            /// Whether the stored matrix has its axes the other way round.
            #[implicit(aux)]
            transposed: bool,
            #[implicit(aux)]
            aval: tacit_core::Aval,
        }

        impl $ty {
            /// Quantizes `x` in blocks of `block_size` elements, counted row-major.
            ///
            /// It is lazy, and works inside `grad` and `compile`.
            ///
            /// # Errors
            ///
            /// `x` is not `f32`, `f16` or `bf16`, or has no elements, or the format has no such block size. A NaN or an
            /// infinity in `x` is an error of the eval.
            pub fn quantize(x: &mlx_rs::Array, block_size: usize) -> tacit_core::Result<Self> {
                let aval = Self::checked(tacit_core::Aval::from(x), block_size)?;
                let x = x.as_dtype(mlx_rs::Dtype::Float32)?;
                let [$codes, $scales] =
                    $crate::kernel::quantize($crate::kernel::Encoding::$encoding, block_size, &[x])?;
                Ok(Self { $codes, $scales: $scales.into(), block_size, $($option: false,)? transposed: false, aval })
            }

            /// The array of codes and scales that were made elsewhere, for the array that `aval` says.
            ///
            /// # Errors
            ///
            /// A shape or dtype does not fit `aval` and `block_size`.
            pub fn from_parts(
                $codes: mlx_rs::Array,
                $scales: impl Into<tacit_core::Value>,
                block_size: usize,
                aval: tacit_core::Aval,
            ) -> tacit_core::Result<Self> {
                let $scales = $scales.into();
                let array = Self { $codes, $scales, block_size, $($option: false,)? transposed: false, aval };
                tacit_core::Materialize::check(&array)?;
                Ok(array)
            }

            /// The codes.
            #[must_use]
            pub fn $codes(&self) -> &mlx_rs::Array {
                &self.$codes
            }

            /// The scales, one a block.
            #[must_use]
            pub fn $scales(&self) -> &tacit_core::Value {
                &self.$scales
            }

            /// Elements in a block.
            #[must_use]
            pub fn block_size(&self) -> usize {
                self.block_size
            }

            fn checked(aval: tacit_core::Aval, block_size: usize) -> tacit_core::Result<tacit_core::Aval> {
                let label = $crate::kernel::Format::$format.label;
                $crate::checks::check_elements(label, &aval)?;
                $crate::checks::$check(label, block_size)?;
                Ok(aval)
            }
        }

        impl tacit_core::Materialize for $ty {
            fn materialize(&self) -> tacit_core::Result<tacit_core::Value> {
                $crate::packed::dense(self)
            }

            fn check(&self) -> tacit_core::Result<()> {
                let shape = $crate::checks::stored_shape(&self.aval, self.transposed)?;
                let aval = Self::checked(tacit_core::Aval::new(&shape, self.aval.dtype), self.block_size)?;
                let format = $crate::kernel::Format::$format;
                let (codes, scales) = format.children(&shape, self.block_size);
                let codes = tacit_core::Aval::new(&codes, format.storage);
                let scales = tacit_core::Aval::new(&scales, mlx_rs::Dtype::Float32);
                let children = [
                    (stringify!($codes), codes, tacit_core::Aval::from(&self.$codes)),
                    (stringify!($scales), scales, self.$scales.aval()?),
                ];
                $crate::checks::check_children(format.label, &aval, &children)
            }
        }

        impl $crate::packed::Packed for $ty {
            fn stored(&self) -> $crate::packed::Stored {
                $crate::packed::Stored {
                    format: $crate::kernel::Format::$format,
                    codes: self.$codes.clone(),
                    scales: self.$scales.clone(),
                    modifier: None,
                    block: self.block_size,
                    transposed: self.transposed,
                    aval: self.aval.clone(),
                }
            }

            fn restored(&self, stored: $crate::packed::Stored) -> Box<dyn tacit_core::ImplicitArray> {
                let $crate::packed::Stored { codes, scales, transposed, aval, .. } = stored;
                Box::new(Self { $codes: codes, $scales: scales, transposed, aval, ..*self })
            }

            $(fn $option(&self) -> bool {
                self.$option
            })?
        }
    };
}
pub(crate) use flat_array;

/// What bitsandbytes' two 4-bit types have beside the codes: quantized scales, and products with quantized activations.
macro_rules! bitsandbytes_array {
    ($ty:ident) => {
        impl $ty {
            /// Quantizes `x`, and then the scales to 8 bits, as bitsandbytes does with `compress_statistics`.
            ///
            /// # Errors
            ///
            /// As [`quantize`](Self::quantize).
            pub fn quantize_double(x: &mlx_rs::Array, block_size: usize) -> tacit_core::Result<Self> {
                Self::quantize(x, block_size)?.double_quantized()
            }

            /// The same codes with the scales in a [`Dynamic8Array`](crate::Dynamic8Array), in blocks of 256.
            ///
            /// # Errors
            ///
            /// The scales are implicit already and the policy forbids to materialize them.
            pub fn double_quantized(self) -> tacit_core::Result<Self> {
                let absmax = $crate::Dynamic8Array::quantize(&self.absmax.dense()?, 256)?;
                Ok(Self { absmax: absmax.into(), ..self })
            }

            /// The same array, whose products `x W^T` quantize each row of `x` to 8 bits first.
            ///
            /// That is faster for many rows. The result differs from the float product by about 3e-3 of its largest
            /// magnitude, and by 1e-2 at worst. The backward pass and products `x W` stay in floats.
            #[must_use]
            pub fn with_int8_activations(self) -> Self {
                Self { int8_activations: true, ..self }
            }
        }
    };
}
pub(crate) use bitsandbytes_array;

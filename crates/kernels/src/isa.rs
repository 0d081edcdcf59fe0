//! Instruction sets, chosen at run time.

use std::sync::OnceLock;

use crate::KernelError;

/// An instruction set that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Portable Rust; the reference that the others are tested against.
    Scalar,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and DQ.
    Avx512,
    /// x86-64 with [`Avx512`](Self::Avx512) and AMX for `bf16` and 8-bit integers, which Linux lets a process use.
    Amx,
    /// 64-bit Arm with NEON, which all of them have.
    Neon,
}

impl Isa {
    /// The fastest instruction set of this machine, looked up once a process.
    #[must_use]
    pub fn detect() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| *Self::available().last().unwrap_or(&Self::Scalar))
    }

    /// The instruction sets of this machine, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Scalar, Self::Avx2, Self::Avx512, Self::Amx, Self::Neon]
            .into_iter()
            .filter(|isa| isa.is_supported())
            .collect()
    }

    /// Whether this machine can run it.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_supported()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512.is_supported() && crate::amx::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Amx => false,
            Self::Neon => cfg!(target_arch = "aarch64"),
        }
    }

    pub(crate) fn check(self) -> Result<(), KernelError> {
        if self.is_supported() { Ok(()) } else { Err(KernelError::UnsupportedIsa { isa: self }) }
    }
}

//! What an x86-64 processor says of itself.

use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

/// What the processor says at a leaf; nothing where it has no such leaf.
pub(crate) fn cpuid(leaf: u32, part: u32) -> Option<CpuidResult> {
    // Miri, which checks the portable loops, is no machine.
    if cfg!(miri) {
        return None;
    }
    #[allow(unused_unsafe, reason = "Rust 1.91 has the intrinsics unsafe, later ones do not")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        (__cpuid(leaf & 0x8000_0000).eax >= leaf).then(|| __cpuid_count(leaf, part))
    }
}

#[cfg(test)]
mod tests {
    use super::cpuid;

    #[test]
    fn a_leaf_beyond_the_last_says_nothing() {
        if cfg!(miri) {
            return;
        }
        let vendor = cpuid(0, 0).expect("every processor has the first leaf");
        assert!(vendor.eax >= 1, "{vendor:?}");
        assert!(cpuid(vendor.eax, 0).is_some());
        assert!(cpuid(vendor.eax + 1, 0).is_none());
    }
}

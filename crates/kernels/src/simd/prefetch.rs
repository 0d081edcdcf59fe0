//! Prefetches: memory is requested before it is needed.

/// Asks for a cache line, into the first-level cache. Nothing happens where that is not readable.
#[inline(always)]
pub(crate) fn prefetch(from: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, which ignores an address that is not readable.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: every 64-bit Arm has the instruction, which ignores an address that is not readable.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) from, options(nostack, readonly, preserves_flags));
    };
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = from;
}

/// The same, into the second-level cache: of what comes from memory more lines can be on their way there than to the first.
#[inline(always)]
pub(crate) fn prefetch_second(from: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) from, options(nostack, readonly, preserves_flags));
    };
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = from;
}

//! The size of a core's second-level cache, as the machine tells it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::CpuidResult;

/// What is assumed of a machine that does not tell.
const USUAL: usize = 1 << 20;

/// Bytes of the second-level cache.
#[cfg(target_arch = "x86_64")]
pub(super) fn second_level() -> usize {
    told(super::cpuid)
}

/// Bytes of the second-level cache, as a core tells of itself.
#[cfg(target_arch = "x86_64")]
fn told(cpuid: impl Fn(u32, u32) -> Option<CpuidResult>) -> usize {
    // Intel's leaf, and AMD's of the same form.
    const LEAVES: [u32; 2] = [4, 0x8000_001D];
    const MOST: u32 = 8;
    const HYBRID: u32 = 1 << 15;
    // Cores of two kinds tell of caches of two sizes, and which of them is asked is chance.
    if cpuid(7, 0).is_some_and(|features| features.edx & HYBRID != 0) {
        return USUAL;
    }
    for leaf in LEAVES {
        for cache in (0..MOST).filter_map(|i| cpuid(leaf, i)) {
            let (kind, level) = (cache.eax & 31, cache.eax >> 5 & 7);
            // Of instructions, or none.
            if kind == 2 || kind == 0 || level != 2 {
                continue;
            }
            let field = |word: u32, from: u32, bits: u32| ((word >> from & ((1 << bits) - 1)) + 1) as usize;
            let (ways, parts) = (field(cache.ebx, 22, 10), field(cache.ebx, 12, 10));
            return ways * parts * field(cache.ebx, 0, 12) * (cache.ecx as usize + 1);
        }
    }
    USUAL
}

/// Bytes of the second-level cache, in which Linux counts kilobytes.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn second_level() -> usize {
    let read = |index: usize, name: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).unwrap_or_default()
    };
    let index = (0..8).find(|&index| read(index, "level").trim() == "2");
    let kilobytes = index.and_then(|index| read(index, "size").trim().trim_end_matches('K').parse::<usize>().ok());
    kilobytes.map_or(USUAL, |kilobytes| kilobytes << 10)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// A core whose second-level cache has so many ways of 128 KiB.
    fn core(ways: u32, is_hybrid: bool) -> impl Fn(u32, u32) -> Option<CpuidResult> {
        move |leaf, part| match (leaf, part) {
            (4, 0) => Some(CpuidResult { eax: 2 << 5 | 3, ebx: (ways - 1) << 22 | 63, ecx: 2047, edx: 0 }),
            (7, 0) => Some(CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: u32::from(is_hybrid) << 15 }),
            _ => None,
        }
    }

    #[test]
    fn cores_of_two_kinds_tell_one_size() {
        assert_eq!([10, 16].map(|ways| told(core(ways, false))), [10 << 17, 16 << 17]);
        assert_eq!([10, 16].map(|ways| told(core(ways, true))), [USUAL; 2]);
    }
}

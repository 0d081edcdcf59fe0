//! The size of a core's second-level cache, as the machine tells it.

/// What is assumed of a machine that does not tell.
const USUAL: usize = 1 << 20;

/// Bytes of the second-level cache.
#[cfg(target_arch = "x86_64")]
pub(super) fn second_level() -> usize {
    use super::cpuid;

    // Intel's leaf, and AMD's of the same form.
    const LEAVES: [u32; 2] = [4, 0x8000_001D];
    const MOST: u32 = 8;
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

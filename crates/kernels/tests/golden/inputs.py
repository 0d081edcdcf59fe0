"""The numbers that the golden files were made from; `tests/it/golden.rs` makes the same ones."""

import numpy as np


def inputs(seed, count):
    """Sums of four uniform 22-bit integers, nearly normal, as floats that hold them exactly."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 2 * count + 1, dtype=np.uint64)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    halves = (z >> np.uint64(42)) + ((z >> np.uint64(20)) & np.uint64(0x3FFFFF))
    sums = halves.reshape(count, 2).sum(axis=1).astype(np.int64) - (1 << 23)
    return (sums.astype(np.float64) / (1 << 21)).astype(np.float32)

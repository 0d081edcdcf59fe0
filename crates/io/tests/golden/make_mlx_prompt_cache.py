"""Writes the prompt-cache goldens by mlx-lm's own functions, one file for each class of cache.

pip install "mlx[cpu]==0.32.2" mlx-lm==0.32.2, and a second time with mlx-lm==0.31.3, the last one of the older layout
(`pip install --no-deps --target=OLD mlx-lm==0.31.3`, and PYTHONPATH=OLD): the files are named by the version.
"""

from pathlib import Path

import mlx.core as mx
from mlx_lm.models import cache as c

HERE = Path(__file__).parent / "mlx_prompt_cache"
OLD = hasattr(c._BaseCache(), "meta_state")
NAME = "0.31" if OLD else "0.32"
FOLDER = HERE / NAME
FOLDER.mkdir(parents=True, exist_ok=True)
# Small buffers, of which some slots are empty.
for cls in [c.KVCache, c.QuantizedKVCache, c.RotatingKVCache, c.ChunkedKVCache, c.BatchKVCache, c.BatchRotatingKVCache]:
    cls.step = 4


def normal(seed, *shape, dtype=mx.float32):
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def filled(cache, steps, width=4, batch=1, dtype=mx.float32):
    """The cache after so many tokens in each step; expects what attention is given in the last one."""
    for seed, tokens in enumerate(steps):
        k, v = normal(2 * seed, batch, 2, tokens, width, dtype=dtype), normal(2 * seed + 1, batch, 2, tokens, width, dtype=dtype)
        fetched = cache.update_and_fetch(k, v)
    return cache, fetched


def save(name, caches, metadata, expected):
    c.save_prompt_cache(str(FOLDER / f"{name}.safetensors"), caches, metadata)
    mx.save_safetensors(str(FOLDER / f"{name}_expected.safetensors"), expected)


def both(prefix, fetched):
    return {f"{prefix}.keys": fetched[0], f"{prefix}.values": fetched[1]}


# Keys and values of two layers, of which the second was trimmed.
first, a = filled(c.KVCache(), [3, 1, 1])
second, _ = filled(c.KVCache(), [3, 3], dtype=mx.float16)
second.trim(1)
b = second.keys[..., :5, :], second.values[..., :5, :]
save("kv", [first, second], {"model": "tiny", "a.b": "c"}, both("0", a) | both("1", b))

# Codes: each bits that mlx-lm makes caches of this width of.
quantized, expected = [], {}
for layer, bits in enumerate([2, 4, 8]):
    cache, _ = filled(c.QuantizedKVCache(group_size=32, bits=bits), [3, 2], width=32)
    state = [tuple(x[..., : cache.offset, :] for x in part) for part in (cache.keys, cache.values)]
    quantized.append(cache)
    expected |= both(str(layer), [mx.dequantize(*part, group_size=32, bits=bits) for part in state])
save("quantized", quantized, {}, expected)

# Rings: half full, gone round once, and with sinks that stay.
half, a = filled(c.RotatingKVCache(max_size=8), [3, 1])
round_, b = filled(c.RotatingKVCache(max_size=8), [6] + [1] * 5)
sinks, d = filled(c.RotatingKVCache(max_size=8, keep=2), [3] + [1] * 9)
long, e = filled(c.RotatingKVCache(max_size=4), [7])
save("rotating", [half, round_, sinks, long], {}, both("0", a) | both("1", b) | both("2", d) | both("3", e))

# Chunks: the first is not full; of the second what is before the chunk is gone.
chunked, a = filled(c.ChunkedKVCache(chunk_size=6), [3, 2])
save("chunked", [chunked], {}, both("0", a))
chunked, _ = filled(c.ChunkedKVCache(chunk_size=6), [5, 4])
chunked.maybe_trim_front()
k, v = normal(98, 1, 2, 1, 4), normal(99, 1, 2, 1, 4)
save("chunked_trimmed", [chunked], {}, both("0", chunked.update_and_fetch(k, v)))

# State of another kind, beside keys and values in one layer.
arrays = c.ArraysCache(2)
arrays[0], arrays[1] = normal(1, 1, 3, 4), normal(2, 1, 2, 2, dtype=mx.bfloat16)
kv, a = filled(c.KVCache(), [2])
rotating, b = filled(c.RotatingKVCache(max_size=4), [3])
save("list", [arrays, c.CacheList(kv, rotating)], {}, both("1.0", a) | both("1.1", b))

# Batches that are padded on the left.
batch, a = filled(c.BatchKVCache([1, 0, 2]), [4, 1], batch=3)
ring, b = filled(c.BatchRotatingKVCache(6, [1, 0, 2]), [4, 1, 1, 1, 1], batch=3)
save("batch", [batch, ring], {}, both("0", a) | both("1", b))

if not OLD:
    # What the older layout cannot hold: nothing, in slots or in whole caches.
    slots = c.ArraysCache(2, left_padding=[1, 0])
    slots[1] = normal(1, 2, 3)
    empty = [c.KVCache(), c.QuantizedKVCache(32, 4), c.RotatingKVCache(8, 2), c.ChunkedKVCache(4), c.BatchKVCache([0, 1])]
    save("empty", [slots, *empty], {}, {"nothing": mx.zeros([1])})

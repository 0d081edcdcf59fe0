"""Steps of quantization-aware training in JAX, with eFormer's formats: the cases of `cargo bench --bench qat`.

With `--alone` it times each case; the benchmark starts it by `--beside` to take its steps in turn with ours. Then it reads
lines with a case and a number of steps, and answers each with the seconds of one step, or with a dash where it has no such
case. The step gives its old parameters and moments away, as a training loop does.

Pinned: jax==0.10.2 eformer==0.0.101 optax==0.2.8 numpy==2.4.6
"""

import functools
import os
import statistics
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from eformer.jaximus import ste
from eformer.ops.quantization import straight_through_8bit, straight_through_nf4

RANDOM = np.random.default_rng(0)


def weight(rows, columns):
    return jnp.asarray(RANDOM.normal(size=(rows, columns)) / np.sqrt(columns), dtype=jnp.float32)


def nf4(w):
    # eFormer's blocks lie in rows.
    return straight_through_nf4(w, 64 if w.shape[1] % 64 == 0 else 16)


def affine4(group):
    """Four bits with a scale and a bias for each group in a row, which eFormer does not have."""

    @ste
    def quantized(w):
        groups = w.reshape(w.shape[0], -1, group)
        low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
        scale = jnp.maximum((high - low) / 15, 1e-7)
        codes = jnp.clip(jnp.round((groups - low) / scale), 0, 15)
        return (codes * scale + low).reshape(w.shape)

    return quantized


FORMATS = {
    "f32": lambda w: w,
    "nf4:64": nf4,
    "affine:4:64": affine4(64),
    "k:4": affine4(16),
    "int8": straight_through_8bit,
}


def mlp():
    widths = [784, 512, 512, 10]
    parameters = [(weight(o, i), jnp.zeros(o)) for i, o in zip(widths, widths[1:])]
    x = jnp.asarray(RANDOM.normal(size=(128, 784)), dtype=jnp.float32)
    labels = jnp.asarray(RANDOM.integers(0, 10, 128))

    def loss(parameters, quantized):
        hidden = x
        for place, (w, bias) in enumerate(parameters):
            hidden = hidden @ quantized(w).T + bias
            if place < 2:
                hidden = jax.nn.relu(hidden)
        chosen = jnp.take_along_axis(hidden, labels[:, None], -1)[:, 0]
        return (jax.nn.logsumexp(hidden, -1) - chosen).mean()

    return parameters, loss


def block():
    batch, tokens, width, heads, inner = 8, 256, 512, 8, 2048
    parameters = {name: weight(width, width) for name in ("query", "key", "value", "out")}
    parameters["up"], parameters["up_bias"] = weight(inner, width), jnp.zeros(inner)
    parameters["down"], parameters["down_bias"] = weight(width, inner), jnp.zeros(width)
    parameters["attention_norm"], parameters["mlp_norm"] = jnp.ones(width), jnp.ones(width)
    x = jnp.asarray(RANDOM.normal(size=(batch, tokens, width)), dtype=jnp.float32)
    target = jnp.asarray(RANDOM.normal(size=(batch, tokens, width)), dtype=jnp.float32)
    mask = jnp.where(jnp.tri(tokens, dtype=bool), 0, jnp.finfo(jnp.float32).min)

    def norm(x, gain):
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * gain

    def loss(parameters, quantized):
        w = {name: quantized(p) if p.ndim == 2 else p for name, p in parameters.items()}
        normed = norm(x, w["attention_norm"])
        query, key, value = (
            (normed @ w[name].T).reshape(batch, tokens, heads, -1).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = (query * (width // heads) ** -0.5) @ key.swapaxes(-1, -2) + mask
        mixed = (jax.nn.softmax(scores, -1) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        hidden = x + mixed @ w["out"].T
        inside = jax.nn.silu(norm(hidden, w["mlp_norm"]) @ w["up"].T + w["up_bias"])
        return jnp.square(hidden + inside @ w["down"].T + w["down_bias"] - target).mean()

    return parameters, loss


TASKS = {"mlp": mlp, "block": block}
OPTIMIZERS = {"sgd": lambda: optax.sgd(0.05), "adamw": lambda: optax.adamw(1e-4, weight_decay=0.01)}
CASES = [
    f"{task}/{format}"
    for task, int4 in (("mlp/sgd", "k:4"), ("block/sgd", "affine:4:64"), ("block/adamw", "affine:4:64"))
    for format in ("f32", "nf4:64", int4, "int8")
]


def training(case):
    """A function that takes so many steps and returns the seconds of one."""
    task, optimizer, format = case.split("/")
    parameters, loss = TASKS[task]()
    optimizer = OPTIMIZERS[optimizer]()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters, state):
        value, gradients = jax.value_and_grad(loss)(parameters, FORMATS[format])
        updates, state = optimizer.update(gradients, state, parameters)
        return value, optax.apply_updates(parameters, updates), state

    held = [parameters, optimizer.init(parameters)]

    def steps(count):
        start = time.perf_counter()
        for _ in range(count):
            _, *held[:] = step(*held)
            jax.block_until_ready(held)
        return (time.perf_counter() - start) / count

    steps(1)
    return steps


def main():
    if "--alone" in sys.argv:
        for case in CASES:
            steps = training(case)
            count = max(1, int(0.05 / steps(2)))
            seconds = [steps(count) for _ in range(20)]
            print(f"{case:<24} {1e3 * statistics.median(seconds):8.3f} ms, least {1e3 * min(seconds):8.3f}", flush=True)
        return
    started = {}
    for line in sys.stdin:
        case, count = line.split()
        if case not in CASES:
            print("-", flush=True)
            continue
        if case not in started:
            started[case] = training(case)
        print(started[case](int(count)), flush=True)


main()

"""Times products with weights in four bits by bitsandbytes and torchao, where Python has them, in the shapes of the bench `gpu`: peers.py

Prints a line a product, beside a dense one of half floats, and what is not here.
"""

import importlib.util
import sys

if importlib.util.find_spec("torch") is None:
    print("nothing to compare with: there is no torch")
    sys.exit()
import torch

if not torch.cuda.is_available():
    print("nothing to compare with: torch has no GPU")
    sys.exit()

WIDTH = 16384
# Over which the weights take turns, so that no cache holds them.
COPIES = 4


def seconds(work, count=20):
    work(0)
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for at in range(count):
            work(at % COPIES)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / count)
    return sorted(times)[len(times) // 2]


def weight():
    return torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5


def bitsandbytes():
    import bitsandbytes as bnb

    packed = [bnb.functional.quantize_4bit(weight(), blocksize=64, quant_type="nf4") for _ in range(COPIES)]
    return lambda x, at: bnb.matmul_4bit(x, packed[at][0].t(), packed[at][1])


def torchao():
    from torchao.quantization import Int4WeightOnlyConfig, quantize_

    layers = []
    for _ in range(COPIES):
        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        quantize_(layer, Int4WeightOnlyConfig(group_size=64))
        layers.append(layer)
    return lambda x, at: layers[at](x)


dense = [weight() for _ in range(COPIES)]
for name, prepare in {"bitsandbytes nf4:64": bitsandbytes, "torchao int4:64": torchao}.items():
    package = name.split()[0]
    if importlib.util.find_spec(package) is None:
        print(f"{package} is not here")
        continue
    try:
        with torch.no_grad():
            product = prepare()
            for m in (1, 8, 512):
                x = torch.randn(m, WIDTH, device="cuda", dtype=torch.bfloat16)
                theirs, plain = seconds(lambda at: product(x, at)), seconds(lambda at: x @ dense[at].T)
                print(f"{name} {WIDTH}x{WIDTH} m={m}: {theirs * 1e6:.0f} us, {plain / theirs:.2f} of a dense product's speed")
    except Exception as error:  # Another version of it is no failure of ours.
        print(f"{package} does not take these: {error}")

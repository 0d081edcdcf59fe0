"""Runs what cases.sh wrote on the GPU that is here: cases.py FOLDER [NAME...]

Each launch on its inputs, and again on inputs that begin at no multiple of 16 bytes, its results filled with NaN or ones before; then
the large products, beside a dense one of half floats. Prints what is wrong and a line for each file, and leaves with 1 if anything is.
"""

import json
import pathlib
import sys

import cupy
import numpy
import torch

folder, *names = sys.argv[1:]
folder = pathlib.Path(folder)
functions = {}


def function(launch):
    name = launch["name"]
    if name not in functions:
        functions[name] = cupy.RawModule(path=str(folder / f"{name}.cubin")).get_function(name)
        if launch["memory"] > 48000:
            functions[name].max_dynamic_shared_size_bytes = launch["memory"]
    return functions[name]


def run(launch, arrays):
    pointers = [numpy.uint64(array.data_ptr()) for array in arrays]
    sizes = [numpy.int32(size) for size in launch["sizes"]]
    groups = tuple(threads // of_group for threads, of_group in zip(launch["grid"], launch["group"]))
    function(launch)(groups, tuple(launch["group"]), (*pointers, *sizes), shared_mem=launch["memory"])


def floats(bytes_of, dtype):
    if dtype == "bfloat16":
        return (bytes_of.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    return bytes_of.view(getattr(numpy, dtype)).astype(numpy.float32)


def difference(found, expected, dtype, within):
    """How bytes differ by more than they may, as src/kernel/gpu/checks.rs says it."""
    if "float" not in dtype:
        wrong = found != expected
        return f"{wrong.sum()} of {wrong.size} bytes differ" if wrong.any() else None
    a, b = floats(found, dtype), floats(expected, dtype)
    same = (a == b) & (numpy.signbit(a) == numpy.signbit(b)) | numpy.isnan(a) & numpy.isnan(b)
    if "each" in within:
        with numpy.errstate(invalid="ignore"):
            near = abs(a - b) <= within["each"] * abs(b) if within["each"] > 0 else False
        wrong = ~(same | near)
        return f"{wrong.sum()} of {wrong.size} numbers differ" if wrong.any() else None
    same |= a == b
    with numpy.errstate(invalid="ignore"):
        most = numpy.where(same, 0.0, abs(a - b)).max(initial=0.0)
    granted = within["all"] * abs(b[numpy.isfinite(b)]).max(initial=0.0)
    return None if most <= granted else f"a number is {most:.2e} off, where {granted:.2e} is granted"


def placed(content, offset):
    """These bytes on the GPU, so many behind a multiple of 256."""
    room = torch.zeros(len(content) + offset + 16, dtype=torch.uint8, device="cuda")
    room[offset : offset + len(content)] = torch.from_numpy(content.copy())
    return room[offset:]


WIDTHS = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "float16": 2, "bfloat16": 2}


def check(file):
    data = numpy.fromfile(file.with_suffix(".bin"), dtype=numpy.uint8)
    tried, wrong = 0, []
    for line in open(file):
        launch = json.loads(line)
        for shifted in (False, True):
            of = lambda array: data[array["from"] : array["from"] + array["bytes"]]
            offset = lambda array: WIDTHS.get(array["dtype"], 4) if shifted else 0
            inputs = [placed(of(array), offset(array)) for array in launch["inputs"]]
            filled = lambda array: numpy.full(array["bytes"], 255, dtype=numpy.uint8)
            results = [placed(filled(array), offset(array)) for array in launch["expected"]]
            run(launch, [*inputs, *results])
            torch.cuda.synchronize()
            tried += 1
            for at, (result, array) in enumerate(zip(results, launch["expected"])):
                found = result[: array["bytes"]].cpu().numpy()
                if told := difference(found, of(array), array["dtype"], launch["within"]):
                    wrong.append(f"{launch['name']} {launch['sizes']}{' shifted' * shifted}, result {at}: {told}")
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    print(f"{file.stem}: {tried} launches, {len(wrong)} wrong", flush=True)
    return not wrong


def seconds(work, count=20):
    work()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / count)
    return sorted(times)[len(times) // 2]


def drawn(array):
    shape = array["shape"]
    if array["dtype"] == "bfloat16":
        return torch.randn(shape, device="cuda").to(torch.bfloat16)
    if array["dtype"] == "float32":
        return torch.rand(shape, device="cuda") * 0.02 + 0.001
    return torch.randint(0, 120, shape, device="cuda").to(getattr(torch, array["dtype"]))


def measure(file):
    moved = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(moved)
    print(f"{torch.cuda.get_device_name()}: a copy moves {2 * moved.numel() / seconds(lambda: target.copy_(moved)) / 1e12:.2f} TB/s")
    for line in open(file):
        launch = json.loads(line)
        x, *children = [drawn(array) for array in launch["inputs"]]
        n, k, m = launch["sizes"][:3]
        dense = torch.randn(n, k, device="cuda").to(torch.bfloat16)
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        ours, theirs = seconds(lambda: run(launch, [x, *children, out])), seconds(lambda: x @ dense.T)
        size = sum(child.numel() * child.element_size() for child in children)
        print(
            f"{launch['name'].rsplit('_', 1)[0].removeprefix('tacit_matmul_')} {n}x{k} m={m}: {ours * 1e6:.0f} us, {theirs / ours:.2f} of "
            f"a dense product's speed ({theirs * 1e6:.0f} us), weights at {size / ours / 1e12:.2f} TB/s, {2 * m * n * k / ours / 1e12:.0f} TFLOP/s",
            flush=True,
        )


files = [file for file in sorted(folder.glob("*.jsonl")) if not names or file.stem in names]
assert files or "large" in names, f"there are no launches of {names} in {folder}"
right = [check(file) for file in files]
if not names or "large" in names:
    measure(folder / "large.json")
sys.exit(not all(right))

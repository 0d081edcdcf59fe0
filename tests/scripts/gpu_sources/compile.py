"""Compiles CUDA texts for GPUs that are not here, and says what registers and memory they take.

    compile.py NVIDIA_FOLDER ARCHITECTURE TEXT... [--into FOLDER]

Fails where a text does not compile, and where a hot one spills registers, keeps anything in local memory, or has the compiler wait for
units that shall work meanwhile."""
import argparse
import concurrent.futures
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("nvidia")
parser.add_argument("architecture")
parser.add_argument("texts", nargs="*")
parser.add_argument("--into", help="where the machine code stays")
arguments = parser.parse_args()
nvidia, architecture, texts, kept = arguments.nvidia, arguments.architecture, arguments.texts, arguments.into
# The library loads this by its name.
for name in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
    library = ctypes.CDLL(glob.glob(f"{nvidia}/lib/{name}")[0], mode=ctypes.RTLD_GLOBAL)
# What time is spent in: products of one row and of many.
HOT = re.compile(r"_(t1_s4|h1|h2|tile1_s1|wide\d+_\d+)_[0-9a-f]+\.cu$")
# As crates/bridge/cpp/nvrtc.cpp asks for them.
OPTIONS = [f"--gpu-architecture=compute_{architecture}", "--std=c++17"]


def text_of(program, size_of, get):
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    return text.value


def compiled(path):
    """What ptxas says of it, and whether that is right."""
    program = ctypes.c_void_p()
    with open(path, "rb") as file:
        source = file.read()
    name = os.path.basename(path)
    if library.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None) != 0:
        return False, f"{name}: NVRTC takes no program"
    options = [option.encode() for option in OPTIONS]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if status != 0:
        log = text_of(program, library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog)
        return False, f"{name}: {log.decode()[:3000]}"
    ptx = text_of(program, library.nvrtcGetPTXSize, library.nvrtcGetPTX)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/text.ptx", "wb") as file:
            file.write(ptx)
        command = [f"{nvidia}/bin/ptxas", "-v", f"-arch=sm_{architecture}", f"{folder}/text.ptx", "-o", f"{folder}/cubin"]
        assembled = subprocess.run(command, capture_output=True, text=True)
        if kept and assembled.returncode == 0:
            shutil.move(f"{folder}/cubin", f"{kept}/{name.removesuffix('.cu')}.cubin")
    if assembled.returncode != 0:
        return False, f"{name}: {assembled.stderr[:3000]}"
    said = assembled.stderr
    registers = re.search(r"Used (\d+) registers", said).group(1)
    stack, spilled = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said).groups()
    memory = re.search(r"(\d+) bytes smem", said)
    waits = "instructions are serialized" in said
    wrong = HOT.search(name) and ((stack, spilled) != ("0", "0") or waits) and int(architecture.rstrip("a")) >= 80
    told = f"sm_{architecture} {name}: {registers} registers, {stack} bytes of stack, {spilled} spilled, " + (
        f"{memory.group(1)} bytes of group memory" if memory else "no group memory"
    ) + (", and waits for each product" if waits else "")
    return not wrong, told


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    results = list(pool.map(compiled, texts))
for is_right, told in results:
    print("" if is_right else "error: ", told, sep="")
print(f"{len(results)} texts for sm_{architecture}, {sum(not is_right for is_right, _ in results)} wrong")
sys.exit(not all(is_right for is_right, _ in results))

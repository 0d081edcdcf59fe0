"""Packs what cargo built, and the MLX that it is linked with, and other files: pack.py BUILT.jsonl OUT.tar.xz [FILE...]"""

import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile

built, out, *others = sys.argv[1:]
programs, mlx = {}, None
for line in map(json.loads, open(built)):
    if line.get("reason") == "build-script-executed" and "/mlx-sys#" in line["package_id"]:
        # Where programs look for the library: link.rs writes its absolute path into each of them.
        linked = os.path.join(line["out_dir"], "link", "libmlx.so")
        dynamic = subprocess.run(["readelf", "--dynamic", linked], capture_output=True, text=True, check=True).stdout
        mlx = dynamic.split("Library soname: [")[1].split("]")[0]
    if line.get("executable"):
        kind, name = line["target"]["kind"][0], line["target"]["name"]
        package = line["package_id"].split("#")[1].split("@")[0].removeprefix("tacit-")
        # The program under test, and not its tests.
        if not (kind == "bin" and line["profile"]["test"]):
            programs[f"{kind}-{package}-{name}"] = line["executable"]

# The unpacked wheel: the package, and the libraries that it brings.
root = os.path.dirname(os.path.dirname(os.path.dirname(mlx)))
wanted = {"test-bridge-it", "test-core-it", "test-arrays-it", "test-arrays-conformance", "test-nn-it", "test-executable-it"}
programs = {name: file for name, file in programs.items() if name in wanted or not name.startswith(("test-", "lib-"))}
with tempfile.TemporaryDirectory() as scratch, lzma.open(out, "wb", preset=2) as compressed:
    with tarfile.open(fileobj=compressed, mode="w|") as archive:
        for name, program in programs.items():
            stripped = os.path.join(scratch, "stripped")
            subprocess.run(["strip", "-o", stripped, program], check=True)
            archive.add(stripped, f"bin/{name}")
        archive.add(root, "mlx")
        for other in others:
            archive.add(other, os.path.basename(other))
        # Programs and tests hold both paths.
        places = os.path.join(scratch, "places")
        with open(places, "w") as file:
            print(root, os.getcwd(), sep="\n", file=file)
        archive.add(places, "places")

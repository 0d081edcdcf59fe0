#!/usr/bin/env bash
# What is packed for a GPU machine is unpacked and started, here where no GPU is. Needs what a build of Tacit needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A hidden GPU is none.
mkdir "$scratch/bin"
printf '#!/bin/sh\nexit 9\n' >"$scratch/bin/nvidia-smi"
chmod +x "$scratch/bin/nvidia-smi"

TACIT_GPU_SMALL=1 bash tests/gpu/pack.sh "$scratch/packed" 8
[[ $(find "$scratch/packed" -name 'part.*' | wc -l) -gt 1 ]] || { echo "error: one part alone"; exit 1; }
[[ -z $(find "$scratch/packed" -name 'part.*' -size +8192k) ]] || { echo "error: a part is larger than asked"; exit 1; }
for again in 1 2; do
    PATH=$scratch/bin:$PATH bash tests/gpu/run.sh "$scratch/packed" "$scratch/results$again"
    grep -q "^no GPU is here" "$scratch/results$again/report"
    grep -q "^tacit " "$scratch/results$again/report"
    grep -q "^0 passed, 0 failed, 1 skipped" "$scratch/results$again/report"
done
# Where there is no other program to compare with, that is no failure.
CUDA_VISIBLE_DEVICES='' python3 tests/gpu/peers.py | tee "$scratch/peers"
grep -q "^nothing to compare with" "$scratch/peers"
# The driver of the suites counts a test that ends its process, and goes on.
cat >"$scratch/program" <<'END'
#!/usr/bin/env python3
import os, sys
tests = {"one": "ok", "two": "FAILED", "three": None, "four": "ok"}
if "--list" in sys.argv:
    print("".join(f"{name}: test\n" for name in tests), end="")
    sys.exit()
for name in [name for name in tests if name in sys.argv]:
    print(f"test {name} ...", end=" ", flush=True)
    if tests[name] is None:
        os.abort()
    print(tests[name], flush=True)
sys.exit(any(tests[name] == "FAILED" for name in tests if name in sys.argv))
END
chmod +x "$scratch/program"
if python3 tests/gpu/each.py "$scratch/program" 2 30 >"$scratch/each"; then
    echo "error: failures are no failure"
    exit 1
fi
cat "$scratch/each"
grep -q "^program: 4 tests, {'CRASHED': 1, 'FAILED': 1, 'ok': 2}, 0 not begun" "$scratch/each"
grep -q "^CRASHED three: ended the process" "$scratch/each"
# Tests that nothing chooses are no tests that pass.
printf '#!/bin/sh\n' >"$scratch/program"
if python3 tests/gpu/each.py "$scratch/program" 2 30; then
    echo "error: no tests are no failure"
    exit 1
fi

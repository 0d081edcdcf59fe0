#!/usr/bin/env bash
# Runs on a GPU what pack.sh packed: tests/gpu/run.sh FOLDER RESULTS [SECONDS]
#
# The steps are ordered by what they are worth. Each leaves its log in RESULTS/logs and a line in RESULTS/report, the bench its
# figures in RESULTS/figures.jsonl. A step that passed is not run again, and after SECONDS (1,500) none begins. STEPS names those
# that run, such as `STEPS="doctor bench"`, and ONLY which types the conformance suite tries, such as `ONLY="nf4:: int8::"`.
# Where no GPU is, that is said, and only what needs none runs.
set -uo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(cd "$1" && pwd)
results=$(mkdir -p "$2" && cd "$2" && pwd)
limit=${3:-1500}
work=$folder/unpacked
logs=$results/logs
mkdir -p "$work/passed" "$logs"

say() {
    echo "$*" | tee -a "$results/report"
}

if [[ ! -f $work/places ]]; then
    cat "$folder"/part.* | python3 -c '
import sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall(sys.argv[1])' "$work" || exit 1
fi
{ read -r mlx && read -r source; } <"$work/places"
# The paths that the programs hold.
[[ -e $mlx ]] || { mkdir -p "$(dirname "$mlx")" && ln -s "$work/mlx" "$mlx"; }
[[ -e $source ]] || { mkdir -p "$(dirname "$source")" && ln -s "$checkout" "$source"; }
# MLX looks for CUDA's libraries and headers beside itself, where pip puts them.
packages=$(python3 -c '
import importlib.util
spec = importlib.util.find_spec("nvidia")
print(next(iter(spec.submodule_search_locations)) if spec else "")')
if ! nvidia-smi >/dev/null 2>&1 || [[ -z $packages ]]; then
    [[ -n $packages ]] || say "CUDA's Python packages are not here"
    say "no GPU is here: what was packed is unpacked, and nothing of it can run"
    "$work/bin/bin-cli-tacit" --version >"$logs/version.log" 2>&1 && say "$(cat "$logs/version.log")"
    say "0 passed, 0 failed, 1 skipped"
    exit 0
fi
[[ -e $work/mlx/nvidia ]] || ln -sfn "$packages" "$work/mlx/nvidia"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee -a "$results/report"
export LD_LIBRARY_PATH=$(printf '%s:' "$packages"/*/lib)${LD_LIBRARY_PATH:-}
export MLX_PTX_CACHE_DIR=$work/ptx CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
# Products of f32 as they are written, so that they can be compared with those of a CPU.
export MLX_ENABLE_TF32=0
mkdir -p "$MLX_PTX_CACHE_DIR"

python=$(command -v python3)
passed=0 failed=0
# step NAME SECONDS COMMAND..
step() {
    local name=$1 seconds=$2 status=0 begin=$SECONDS told
    shift 2
    [[ -z ${STEPS:-} || " $STEPS " == *" $name "* ]] || return 0
    [[ ! -e $work/passed/$name ]] || return 0
    if [[ ! -x $1 ]]; then
        failed=$((failed + 1))
        say "$name: FAILED, there is no $1"
        return 0
    fi
    if ((SECONDS + 5 > limit)); then
        say "$name: no time is left"
        return 0
    fi
    timeout "$seconds" "${under[@]}" "$@" >"$logs/$name.log" 2>&1 || status=$?
    told=$(tail -1 "$logs/$name.log" | cut -c1-200)
    if ((status == 0)); then
        passed=$((passed + 1))
        touch "$work/passed/$name"
        say "$name: passed, $((SECONDS - begin)) s. $told"
    else
        failed=$((failed + 1))
        say "$name: FAILED ($status), $((SECONDS - begin)) s. $told"
    fi
}
under=()
# suite CRATE NAME SECONDS [ARGUMENT..]: the tests of a program, each by itself.
suite() {
    local crate=$1 name=$2 seconds=$3
    shift 3
    cd "$source/crates/$crate" || return
    under=(python3 "$checkout/tests/gpu/each.py")
    step "$crate-${name##*-}" $((seconds + 20)) "$work/bin/$name" "${PROCESSES:-$(($(nproc) - 2))}" "$seconds" "$@"
    under=()
    cd "$checkout" || return
}

cd "$checkout" || exit 1
step doctor 60 "$work/bin/bin-cli-tacit" doctor
[[ ! -e $logs/doctor.log ]] || cat "$logs/doctor.log" >>"$results/report"
step own_kernel 60 "$work/bin/example-mlx-own_kernel"
step qat_digits 120 "$work/bin/example-mlx-qat_digits"
step lora 120 "$work/bin/example-mlx-lora"
step decode_loop 120 "$work/bin/example-mlx-decode_loop"
# Every kernel by itself, on a CPU's inputs; its machine code is for Hopper.
if [[ -f $work/cases.tar.xz ]] && python3 -c '
import cupy, torch
assert torch.cuda.get_device_capability()[0] == 9' 2>/dev/null; then
    [[ -e $work/cases/large.json ]] || python3 -c '
import sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$work/cases.tar.xz" "$work/cases"
    step kernels 240 "$python" "$checkout/tests/gpu/cases.py" "$work/cases"
fi
# measured NAME SECONDS PROGRAM [ARGUMENT..]: what it says is told in the report.
measured() {
    TACIT_FIGURES=$results/figures.jsonl step "$@"
    [[ ! -e $logs/$1.log ]] || cat "$logs/$1.log" >>"$results/report"
}
measured bench 200 "$work/bin/bench-mlx-gpu" ${CASES:---quick}
measured peers 120 "$python" "$checkout/tests/gpu/peers.py"
measured training 120 "$work/bin/bench-mlx-qat" --quick
suite arrays test-arrays-conformance "${SUITE:-240}" ${ONLY:-}
suite nn test-nn-it "${SUITE:-240}"
suite arrays test-arrays-it "${SUITE:-240}"
suite executable test-executable-it "${SUITE:-240}"
suite core test-core-it "${SUITE:-240}"
suite bridge test-bridge-it "${SUITE:-240}"
if command -v compute-sanitizer >/dev/null; then
    under=(compute-sanitizer --error-exitcode 9)
    step sanitizer 120 "$work/bin/example-mlx-own_kernel"
    under=()
fi
say "$passed passed, $failed failed"
((failed == 0))

#!/usr/bin/env bash
# Runs on a GPU what pack.sh packed: tests/gpu/run.sh FOLDER RESULTS [SECONDS]
#
# The steps are ordered by what they are worth, and each leaves its log and one line in RESULTS/report. A step that has passed is
# not run again; after SECONDS (1,500) no step begins. A machine without a GPU says so, and runs what needs none.
set -uo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(cd "$1" && pwd)
results=$(mkdir -p "$2" && cd "$2" && pwd)
limit=${3:-1500}
work=$folder/unpacked
report=$results/report
logs=$results/logs
mkdir -p "$work/passed" "$logs"

say() {
    echo "$*" | tee -a "$report"
}

if [[ ! -f $work/places ]]; then
    cat "$folder"/part.* | python3 -c '
import sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall(sys.argv[1], filter="fully_trusted")' "$work" || exit 1
fi
{ read -r mlx && read -r source; } <"$work/places"
# The paths that the programs hold.
[[ -e $mlx ]] || { mkdir -p "$(dirname "$mlx")" && ln -s "$work/mlx" "$mlx"; }
[[ -e $source ]] || { mkdir -p "$(dirname "$source")" && ln -s "$checkout" "$source"; }
# MLX looks for CUDA's libraries and headers beside itself, as pip would have put them.
packages=$(python3 -c '
import importlib.util
spec = importlib.util.find_spec("nvidia")
print(next(iter(spec.submodule_search_locations)) if spec else "")')
if [[ -z $packages ]]; then
    say "CUDA's Python packages are not here, and programs cannot start without them"
    say "0 passed, 0 failed, 1 skipped"
    exit 0
fi
[[ -e $work/mlx/nvidia ]] || ln -s "$packages" "$work/mlx/nvidia"
export LD_LIBRARY_PATH=$(printf '%s:' "$packages"/*/lib)${LD_LIBRARY_PATH:-}
export MLX_PTX_CACHE_DIR=$work/ptx CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
# Floats as they are written, so that they can be compared with the CPU's.
export MLX_ENABLE_TF32=0
mkdir -p "$MLX_PTX_CACHE_DIR"

gpu=1
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | tee -a "$report" || true
if ! nvidia-smi >/dev/null 2>&1; then
    gpu=0
    say "no GPU is here: what runs, runs on the CPU"
fi

passed=0 failed=0 skipped=0
# step NAME SECONDS COMMAND..: in the background where others may run beside it.
step() {
    local name=$1 seconds=$2 status=0 begin=$SECONDS
    shift 2
    [[ ! -e $work/passed/$name ]] || return 0
    if ((SECONDS + 5 > limit)); then
        say "$name: no time is left"
        return 77
    fi
    timeout "$seconds" "$@" >"$logs/$name.log" 2>&1 || status=$?
    local told
    told=$(grep -E "^test result|^error|panicked at" "$logs/$name.log" | tail -1 | cut -c1-150)
    if ((status == 0)); then
        touch "$work/passed/$name"
        say "$name: passed, $((SECONDS - begin)) s. $told"
    else
        say "$name: FAILED ($status), $((SECONDS - begin)) s. $told"
    fi
    return "$status"
}
count() {
    case $1 in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
}
together() {
    local pids=() pid status
    for pid in "$@"; do
        status=0
        wait "$pid" || status=$?
        count "$status"
    done
}

cd "$checkout" || exit 1
step doctor 60 "$work/bin/bin-cli-tacit" doctor
count $?
cat "$logs/doctor.log" >>"$report"
if ((gpu)) && ls "$work"/bin/test-* >/dev/null 2>&1; then
    test=("--test-threads=4")
    running=()
    for name in example-main-qat_digits lib-arrays-tacit_arrays test-bridge-it test-core-it lib-bridge-tacit_bridge test-arrays-conformance test-arrays-it test-nn-it \
        test-executable-it example-main-lora example-main-compiled_training example-main-decode_loop; do
        [[ -x $work/bin/$name ]] || continue
        arguments=()
        [[ $name == example-* ]] || arguments=("${test[@]}")
        manifest=$source
        [[ $name == example-* ]] || manifest=$source/crates/$(cut -d- -f2 <<<"$name")
        (cd "$manifest" && CARGO_MANIFEST_DIR=$manifest step "$name" "${TACIT_GPU_STEP:-300}" "$work/bin/$name" "${arguments[@]}") &
        running+=($!)
        if ((${#running[@]} == 6)); then
            together "${running[@]}"
            running=()
        fi
    done
    together "${running[@]}"
    TACIT_FIGURES=$results/figures.jsonl step bench 240 "$work/bin/bench-main-gpu"
    count $?
    tail -60 "$logs/bench.log" >>"$report"
fi
say "$passed passed, $failed failed, $skipped skipped"
((failed == 0))

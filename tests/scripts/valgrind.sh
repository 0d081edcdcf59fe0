#!/usr/bin/env bash
# Runs the tests of the bridge under valgrind's memcheck: no invalid access, and nothing definitely lost.
#
# Arguments are those of the test binary, such as the name of one test. About a minute.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v valgrind >/dev/null || {
    echo "valgrind is not installed"
    echo "help: install it, on Debian with \`apt-get install valgrind\`"
    exit 1
}

cd "$repository/crates/bridge"
# With the whole workspace, because one package alone is built with other features, and so all over again.
binary=$(cargo test --workspace --test it --no-run --message-format=json --quiet |
    python3 -c 'import json, sys
artifacts = map(json.loads, sys.stdin)
source = "crates/bridge/tests/it/main.rs"
print(*(a["executable"] for a in artifacts if a.get("executable") and a["target"]["src_path"].endswith(source)))')

# One thread: memcheck runs threads one at a time anyhow.
RUST_BACKTRACE=0 valgrind --quiet --error-exitcode=1 --num-callers=50 \
    --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    --suppressions="$repository/tests/scripts/valgrind.supp" \
    "$binary" --test-threads=1 "$@"

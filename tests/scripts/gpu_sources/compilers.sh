# Sets `compilers`, a Python with NVIDIA's compilers and a clang from PyPI, which stays in `target`, and `nvidia`, where NVIDIA's are.
compilers=$target/compilers
if [[ ! -e $compilers/complete ]]; then
    rm -rf "$compilers"
    packages=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88 ziglang==0.15.2)
    if ! { python3 -m venv "$compilers" && "$compilers/bin/pip" install --quiet --disable-pip-version-check --no-deps "${packages[@]}"; }; then
        rm -rf "$compilers"
        echo "the compilers cannot be had from pip"
        exit 77
    fi
    touch "$compilers/complete"
fi
nvidia=$("$compilers/bin/python" -c 'import nvidia; print(next(iter(nvidia.__path__)))')/cu13
chmod +x "$nvidia/bin/ptxas"

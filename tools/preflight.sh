#!/bin/sh
# Checks a machine before the first build. Plain sh, because no other program is known to be installed.
#   preflight.sh check PYTHON   print one apt-get line that installs all missing packages
#   preflight.sh notice         print the terms of the default model before it is downloaded
set -u

least_python="3.11"
# The 1.5 GB that README names: .venv, the build and the default model.
least_disk_kib=1500000

notice() {
    echo "The default model is Gemma 3 270M, about 240 MB, fetched once."
    echo "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms;"
    echo "this is an unofficial third-party conversion of the base model, so chat is not its strength."
}

check() {
    python="$1"
    missing=""
    command -v git >/dev/null 2>&1 || missing="$missing git"
    command -v make >/dev/null 2>&1 || missing="$missing make"
    command -v g++ >/dev/null 2>&1 || missing="$missing g++"
    if command -v "$python" >/dev/null 2>&1; then
        "$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    found = ".".join(map(str, sys.version_info[:3]))
    print(f"transom: {sys.executable} is Python {found}; 3.11 or newer is needed.", file=sys.stderr)
    print("Install one (Debian 12 and Ubuntu 24.04 have it), then: make PYTHON=/path/to/python3 serve", file=sys.stderr)
    raise SystemExit(1)
PY
        has_headers "$python" || missing="$missing python3-dev"
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
    else
        missing="$missing python3-dev python3-venv"
    fi
    if [ -n "$missing" ]; then
        echo "transom: missing:$missing. Install with:" >&2
        echo "  sudo apt-get install -y$missing" >&2
        exit 1
    fi
    free_kib=$(df -Pk . | awk 'NR == 2 { print $4 }')
    if [ "$free_kib" -lt "$least_disk_kib" ]; then
        echo "transom: only $((free_kib / 1024)) MiB of disk are free in this folder; about 1.5 GB are needed." >&2
        exit 1
    fi
}

has_headers() {
    "$1" -c 'import os, sysconfig; raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

case "${1:-}" in
    check) check "${2:-python3}" ;;
    notice) notice ;;
    *) echo "usage: preflight.sh check PYTHON | notice (Python $least_python or newer)" >&2; exit 2 ;;
esac

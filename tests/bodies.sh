#!/usr/bin/env bash
# Compares how the gateway and how servers parse request bodies. The servers are Starlette, FastAPI and
# python-multipart, in current versions and in those of an early vLLM V1, and the crates of servers in Rust.
# The test fails if the gateway and a server both accept a body but read different models from it.
#
#   tests/bodies.sh [COUNT]     COUNT bodies for each set of versions; default: 100000
#
# The Python packages are installed into virtual environments under the target directory. Needs Python 3.10 or
# later with venv, and access to a Python package index.
#
#   CARGO_FLAGS   (default: --release)
set -euo pipefail
cd "$(dirname "$0")/.."

export BODIES=${1:-100000}
read -r -a flags <<<"${CARGO_FLAGS---release}"

compare() {
  local name=$1
  shift
  local venv=${CARGO_TARGET_DIR:-target}/bodies-$name
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  timeout 600 "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
  printf '\n== %s\n' "$*"
  BODIES_PYTHON=$venv/bin/python timeout --kill-after=20 3600 \
    cargo test --locked --quiet "${flags[@]}" --test suite -- --nocapture bodies::the_gateway
}

compare current fastapi==0.165.0 starlette==1.10.0 python-multipart==0.0.34 pydantic==2.14.3
compare early fastapi==0.115.0 starlette==0.38.6 python-multipart==0.0.9 pydantic==2.9.2

#!/usr/bin/env bash
# Tests the subscriber of KV events against publishers of pyzmq and msgspec, the libraries of vLLM.
#
#   tests/kv_events.sh
#
# Needs Python 3 with venv and the package index. PYTHON names an interpreter that has both libraries.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${PYTHON:-}" ]; then
  python3 -m venv target/kv-events-venv
  PYTHON=$PWD/target/kv-events-venv/bin/python
  "$PYTHON" -m pip install --quiet pyzmq msgspec
fi
PYTHON=$PYTHON cargo test -p tokenweir-kv-events --test pyzmq -- --ignored

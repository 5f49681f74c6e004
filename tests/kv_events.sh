#!/usr/bin/env bash
# Tests the subscriber of KV events against publishers of pyzmq and msgspec, the libraries of vLLM, and the cost of
# events and lookups. With REAL_VLLM, the folder of serve.sh and stop.sh, it also compares the cached tokens that two
# gateways predict with those that real vLLM servers report (4 GB, about 5 minutes for each front end).
#
#   tests/kv_events.sh
#   REAL_VLLM=FOLDER VENV=VENV [FRONT_ENDS="python rust"] [PORT=26010] tests/kv_events.sh
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
cargo test --release -p tokenweir-kv-events --test cost -- --ignored --nocapture --test-threads 1

[ -n "${REAL_VLLM:-}" ] || exit 0
cargo build
for front_end in ${FRONT_ENDS:-python}; do
  PYTHONPATH=tests/common timeout 1500 python3 tests/kv_events/real_vllm.py target/debug/tokenweir "$REAL_VLLM" "${PORT:-26010}" \
    --front-end "$front_end"
done

#!/usr/bin/env bash
# Compares several gateways without shared knowledge, with the exchange and with KV events, in real time, before the
# same simulated backends: goodput, cached tokens, the share of requests of one backend within 250 ms, and the CPU time
# and bytes of the exchange. Exit code 1 if the exchange is not better, or if requests of one moment go to
# one backend.
#
#   cargo build --release && cargo build --release --manifest-path lab/Cargo.toml
#   tests/several_gateways.sh [--gateways 2,4] [--rounds 2] [--requests 1500] [--system-prompts 64]
#
# Needs redis-server and Python 3. PROGRAM names another gateway, LAB another load generator. It stops after 30 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v redis-server >/dev/null || { echo "redis-server is missing" >&2; exit 1; }
export PYTHONPATH=$PWD/tests/common PYTHONDONTWRITEBYTECODE=1
exec timeout --kill-after=20 1800 \
  python3 tests/several_gateways/compare.py "${PROGRAM:-target/release/tokenweir}" "${LAB:-lab/target/release/tokenweir-lab}" "$@"

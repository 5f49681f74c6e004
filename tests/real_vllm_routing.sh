#!/usr/bin/env bash
# Routes one load round robin and by kv_aware, in turns, to two real vLLM replicas of which one has
# a quarter of the other's KV cache. kv_aware must have fewer preemptions and a lower p99 TTFT.
#
#   tests/real_vllm_routing.sh [--rounds 4] [--requests 240] [--rate 6] [--seed 1]
#
# Run it on a machine that has nothing else to do: a request that is silent for a minute is given up,
# and then the check fails.
#
# It needs what real_vllm.sh needs (REAL_VLLM, VENV), and is skipped without it.
#
#   TOKENWEIR  the gateway's binary   (default: built in release mode)
#   LIMIT      bound for all of it    (default: 720 seconds, and the time to build)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

. "$here/real_vllm/engine.sh"

gateway=${TOKENWEIR:-}
if [[ -z $gateway ]]; then
  cargo build --quiet --release --manifest-path "$root/Cargo.toml"
  gateway=${CARGO_TARGET_DIR:-$root/target}/release/tokenweir
fi

# In the background, so that a signal is heard.
timeout "${LIMIT:-720}" "$VENV/bin/python" "$here/real_vllm/routing.py" "$@" \
  --program "$gateway" --engine "$engine" --run "$RUN" --work "$work" &
wait "$!"

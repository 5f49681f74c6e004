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

skip() { echo "skipped: $*"; exit 0; }

for engine in ${REAL_VLLM:+"$REAL_VLLM"} "$root"/../real-vllm "$root"/../*/real-vllm; do
  [[ -x $engine/serve.sh && -x $engine/stop.sh ]] && break
done
[[ -x $engine/serve.sh ]] || skip "no serve.sh and stop.sh of a real vLLM; set REAL_VLLM"
engine=$(cd "$engine" && pwd)
VENV=${VENV:-$engine/.venv-vllm}
[[ -x $VENV/bin/python && -d $VENV/tiny ]] || skip "no vLLM environment in $VENV; set VENV"
VENV=$(cd "$VENV" && pwd)
export VENV

gateway=${TOKENWEIR:-}
if [[ -z $gateway ]]; then
  cargo build --quiet --release --manifest-path "$root/Cargo.toml"
  gateway=${CARGO_TARGET_DIR:-$root/target}/release/tokenweir
fi

work=$(mktemp -d)
export RUN=$work/run
mkdir "$RUN"

cleanup() {
  local status=$? file pid
  trap - EXIT
  for pid in $(jobs -pr); do kill -TERM "$pid" 2>/dev/null || true; done
  for file in "$RUN"/*.pid; do
    [[ -f $file ]] && "$engine/stop.sh" "$(basename "$file" .pid)" >/dev/null 2>&1 &
  done
  wait
  if [[ $status -eq 0 ]]; then rm -rf "$work"; else echo "logs are kept in $work" >&2; fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# In the background, so that a signal is heard.
timeout "${LIMIT:-720}" "$VENV/bin/python" "$here/real_vllm/routing.py" "$@" \
  --program "$gateway" --engine "$engine" --run "$RUN" --work "$work" &
wait "$!"

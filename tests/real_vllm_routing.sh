#!/usr/bin/env bash
# Sends the same load with several policies, in turns, to two real vLLM servers.
#
#   tests/real_vllm_routing.sh [--load mixed|decode|prefill] [--rounds 4] [--requests 240] [--rate 6] [--seed 1]
#
# mixed: one server has a quarter of the other's KV cache. kv_aware must have fewer preemptions and a lower
# p99 TTFT than round_robin. decode, prefill: equal servers. The p99 TTFT, the p99 TPOT and the preemptions of
# kv_aware must be lower than those of all other policies, or within the range of the best policy's rounds.
#
# Run it on an idle machine: the check fails if a request has no output for a minute.
#
# It has the requirements of real_vllm.sh (REAL_VLLM, VENV), and is skipped without them.
#
#   TOKENWEIR  the gateway's binary   (default: built in release mode)
#   LIMIT      time limit             (default: 720 seconds; the build is not included)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/gateway_program.sh"

. "$here/real_vllm/engine.sh"

gateway=$(gateway_program release)

# The command runs in the background, because a shell runs signal traps only between foreground commands.
PYTHONPATH=$here/common timeout "${LIMIT:-720}" "$VENV/bin/python" "$here/real_vllm/routing.py" "$@" \
  --program "$gateway" --engine "$engine" --run "$RUN" --work "$work" &
wait "$!"

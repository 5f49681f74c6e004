#!/usr/bin/env bash
# Sends the turns of agents to two real vLLM servers with small KV caches, with and without admission by live
# sessions, in turns.
#
#   tests/real_vllm_sessions.sh [--rounds 3] [--agents 24] [--think 1] [--seconds 75] [--blocks 400] [--seed 1]
#
# With the option there must be 1.4 times as many turns per minute, and no turn may wait longer than its bound.
#
# Run it on an idle machine. It has the requirements of real_vllm.sh (REAL_VLLM, VENV), and is skipped without them.
#
#   TOKENWEIR  the gateway's binary   (default: built in release mode)
#   LIMIT      time limit             (default: 900 seconds; the build is not included)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/gateway_program.sh"

. "$here/real_vllm/engine.sh"

gateway=$(gateway_program release)

# The command runs in the background, because a shell runs signal traps only between foreground commands.
PYTHONPATH=$here/common timeout "${LIMIT:-900}" "$VENV/bin/python" "$here/real_vllm/sessions.py" "$@" \
  --program "$gateway" --engine "$engine" --run "$RUN" --work "$work" &
wait "$!"

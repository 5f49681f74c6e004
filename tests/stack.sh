#!/usr/bin/env bash
# Runs the whole chain with real components on loopback: simulated replicas, the gateway, an
# OpenTelemetry Collector, Jaeger, Prometheus and Alertmanager, each with the configuration that
# ships. Then things go wrong, one after the other, and it checks what an operator would see:
#
#   - an exemplar in Prometheus is a trace in Jaeger: gateway, attempt, engine
#   - each alert fires under its fault, is told, and resolves
#   - every query of every dashboard has data
#   - Arize Phoenix, if it is installed, has the time to first token of the same spans
#
#   tests/stack.sh [--screenshots FOLDER] [--only alerts,traces,phoenix,dashboards,engine]
#     [--fault TEXT]
#
#   --screenshots  pictures of pages, taken with Chromium
#   --only         some of the steps
#   --fault        only faults whose names have this text
#
# The windows of rules are divided by 30, so that an hour ago is two minutes ago. Expressions and
# thresholds are those that ship.
#
#   STACK_TOOLS  the folder of tests/stack/install.sh DIR; without it the check is skipped
#   TOKENWEIR    the gateway's binary   (default: built in release mode)
#   REAL_VLLM    see tests/real_vllm.sh; with it the trace of a real engine is checked as well
#   LIMIT        bound for all of it    (default: 1500 seconds)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

skip() { echo "skipped: $*"; exit 0; }
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }

arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --screenshots | --only | --fault) [[ $# -ge 2 ]] || usage; arguments+=("$1" "$2"); shift 2 ;;
    *) usage ;;
  esac
done

tools=${STACK_TOOLS:-}
[[ -n $tools ]] || skip "no components; run tests/stack/install.sh DIR and set STACK_TOOLS=DIR"
tools=$(cd "$tools" && pwd)
for program in prometheus alertmanager jaeger otelcol; do
  [[ -x $tools/bin/$program ]] || skip "no $program in $tools; run tests/stack/install.sh $tools"
done
[[ -x $tools/phoenix/bin/phoenix ]] || echo "Arize Phoenix is not installed: not checked"

gateway=${TOKENWEIR:-}
if [[ -z $gateway ]]; then
  cargo build --quiet --release --manifest-path "$root/Cargo.toml"
  gateway=${CARGO_TARGET_DIR:-$root/target}/release/tokenweir
fi
gateway=$(realpath "$gateway")

if [[ -n ${REAL_VLLM:-} ]]; then
  export VENV=${VENV:-$REAL_VLLM/.venv-vllm}
  if [[ -x $REAL_VLLM/serve.sh && -x $VENV/bin/python ]]; then
    arguments+=(--engine "$(cd "$REAL_VLLM" && pwd)")
  else
    echo "no vLLM in REAL_VLLM or VENV: a real engine is not checked"
  fi
fi

work=$(mktemp -d)
cleanup() {
  local status=$? pid
  trap - EXIT
  for pid in $(jobs -pr); do kill -TERM "$pid" 2>/dev/null || true; done
  wait
  if [[ $status -eq 0 ]]; then rm -rf "$work"; else echo "logs are kept in $work" >&2; fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# In the background, so that a signal is heard. What it starts ends with it.
PYTHONPATH=$here/real_vllm timeout --kill-after=20 "${LIMIT:-1500}" \
  python3 "$here/stack/check.py" --gateway "$gateway" --tools "$tools" --work "$work" \
  --dashboards "$root/config/grafana" ${arguments[@]+"${arguments[@]}"} &
wait "$!"

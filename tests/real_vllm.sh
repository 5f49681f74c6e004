#!/usr/bin/env bash
# Runs the gateway in front of two real vLLM servers and compares its records with the observations of its
# clients and the counters of the engines.
#
#   tests/real_vllm.sh [--front-end python|rust|both|mixed] [--traces] [--kill] [--faults] [--only STEPS]
#
#   --front-end   vLLM's HTTP server: python, rust, both in sequence, or mixed: the first backend has the Python one and
#                 the second the Rust one, and the only step is that all APIs work (default: python)
#   --traces      also checks that the engine's spans are children of the gateway's, and compares the phases of the
#                 gateway with them (python only)
#   --kill        also kills a backend under load and starts it again, twice
#   --faults      also starts backends whose engine is stopped, paused, full or killed, and some
#                 whose events contain several tokens
#   --only        runs only these of the selected steps, comma-separated: answers, usage, byte for byte, official SDKs,
#                 cancel, bench, traces, phases, kill, frozen, pathologies, merged, byte for byte merged
#
# A whole run of one front end writes its row into tests/real_vllm/results.tsv, for docs/reference/engines.md.
#
# Requirements, without which the check is skipped:
#   REAL_VLLM  a folder with serve.sh PORT [vLLM arguments] and stop.sh PORT, which start and stop
#              a vLLM server with the model `tiny` on 127.0.0.1, and write PORT.pid and PORT.log to $RUN
#              (default: a folder real-vllm next to this repository, or in a folder next to it)
#   VENV       the Python environment of these scripts   (default: $REAL_VLLM/.venv-vllm)
#   VENV/tiny  the model
# Backends that already run are used and left running; they must have the selected front end.
#
# serve.sh runs the engines with a lower priority than the clients (NICE=10). With the same priority (NICE=0),
# the Python clients can read late. The checks of their times report that as a failure.
#
#   AIPERF     the program AIPerf, to compare its measurements, too (default: not compared)
#   TOKENWEIR  the gateway's binary        (default: built in release mode)
#   BACKENDS   ports of the two backends   (default: "8101 8102")
#   LIMIT      time limit per front end    (default: 1800 seconds)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
read -r -a ports <<<"${BACKENDS:-8101 8102}"
limit=${LIMIT:-1800}
front_end=python
only=
flags=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --traces | --kill | --faults) flags+=("$1") ;;
    --only=*) only=${1#*=} ;;
    --only) only=${2-} && shift ;;
    --front-end=*) front_end=${1#*=} ;;
    --front-end) front_end=${2-} && shift ;;
    *) front_end= ;;
  esac
  case $front_end in
    python | rust | both | mixed) shift ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
  esac
done
if [[ $front_end == both ]]; then
  status=0
  for each in python rust; do
    echo "== $each =="
    "$0" --front-end "$each" ${flags[@]+"${flags[@]}"} ${only:+--only "$only"} || status=$?
  done
  exit "$status"
fi

fail() { echo "failed: $*" >&2; exit 1; }
has() { [[ " ${flags[*]-} " == *" $1 "* ]]; }
has_traces() { has --traces && [[ $front_end == python ]]; }
# Runs a command with the remaining time as its limit. `run` runs it in the background, because a shell runs
# signal traps only between foreground commands.
bounded() { timeout "$((limit > SECONDS ? limit - SECONDS : 1))" "$@"; }
run() {
  bounded "$@" &
  wait "$!"
}

. "$here/common/gateway_program.sh"
. "$here/real_vllm/engine.sh"

# A Python with the official clients of OpenAI and Anthropic.
client_python() {
  python=$VENV/bin/python
  "$python" -c 'import anthropic, openai' 2>/dev/null && return
  "$python" -m venv "$work/client"
  python=$work/client/bin/python
  run "$python" -m pip install -q anthropic openai
}

start_receiver() {
  [[ -f $engine/otlp_receiver.py ]] || fail "--traces needs $engine/otlp_receiver.py"
  local otlp
  otlp=$(PYTHONPATH=$here/common "$python" -c 'import servers; print(*servers.free_ports(1))')
  "$VENV/bin/python" "$engine/otlp_receiver.py" "$otlp" "$work/spans.json" "$limit" &
  export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:$otlp OTEL_TRACES_SAMPLER=parentbased_always_on
  backend_arguments=(--otlp-traces-endpoint "$OTEL_EXPORTER_OTLP_ENDPOINT")
}

start_backends() {
  local port pid waits=()
  for port in "${ports[@]}"; do
    if curl -s -o /dev/null -m 2 --fail "http://127.0.0.1:$port/health"; then
      ! has --kill && ! has_traces || fail "a backend already runs at $port, but ${flags[*]} needs its own"
      continue
    fi
    if [[ $front_end == mixed && $port == "${ports[-1]}" ]]; then export CLI=1 VLLM_USE_RUST_FRONTEND=1; fi
    OTEL_SERVICE_NAME=vllm bounded "$engine/serve.sh" "$port" \
      ${backend_arguments[@]+"${backend_arguments[@]}"} &
    waits+=($!)
  done
  for pid in ${waits[@]+"${waits[@]}"}; do wait "$pid" || fail "a backend did not start"; done
}

client_python
vllm_rs=$VENV/bin/vllm-rs
if [[ ! -x $vllm_rs && -x $engine/get_vllm_rs.sh ]]; then
  run "$engine/get_vllm_rs.sh" "$VENV" || echo "vllm-rs is not available" >&2
fi
[[ $front_end == python || -x $vllm_rs ]] || skip "no vllm-rs"
if [[ $front_end == rust ]]; then export CLI=1 VLLM_USE_RUST_FRONTEND=1; fi
gateway=$(gateway_program release) || fail "the build of the gateway failed"
backend_arguments=()
if has_traces; then start_receiver; fi
start_backends

arguments=(
  --work "$work" --program "$gateway" --engine "$engine" --run "$RUN" --front-end "$front_end"
)
for port in "${ports[@]}"; do arguments+=(--backend "http://127.0.0.1:$port"); done
arguments+=(--tokenizer "$VENV/tiny")
for tool in "$vllm_rs" "$VENV/bin/vllm"; do
  [[ -x $tool ]] && arguments+=(--bench "$tool")
done
if has_traces; then arguments+=(--spans "$work/spans.json"); fi
if [[ -n $only ]]; then arguments+=(--only "$only"); fi
for flag in --kill --faults; do
  if has "$flag"; then arguments+=("$flag"); fi
done

run env PYTHONPATH="$here/common" "$python" "$here/real_vllm/check.py" "${arguments[@]}"

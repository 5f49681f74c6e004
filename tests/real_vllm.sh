#!/usr/bin/env bash
# Puts the gateway in front of two real vLLM replicas and checks what it says against what its
# clients see and what the engines count.
#
#   tests/real_vllm.sh [--front-end python|rust|both] [--traces] [--kill] [--faults]
#
#   --front-end   vLLM's HTTP server: the one in Python, the one in Rust, or both, one after the
#                 other (default: python)
#   --traces      also checks that the engine's spans are children of the gateway's (python only)
#   --kill        also kills a replica under load and starts it again, twice
#   --faults      also starts replicas whose engine is stopped, paused, full or killed, and some
#                 whose events carry several tokens
#
# The engine comes with three things, and without them the check is skipped:
#   REAL_VLLM  a folder with serve.sh PORT [vLLM arguments] and stop.sh PORT, which start and stop
#              a replica of the model `tiny` on 127.0.0.1, and keep PORT.pid and PORT.log in $RUN
#              (default: a folder real-vllm beside this repository, or in a folder beside it)
#   VENV       the Python environment of these scripts   (default: $REAL_VLLM/.venv-vllm)
#   VENV/tiny  the model
# Replicas that run already are used and left running; their front end must be the one asked for.
#
#   AIPERF     the program aiperf, to be held against the gateway too (default: it is left out)
#   TOKENWEIR  the gateway's binary        (default: built in release mode)
#   REPLICAS   ports of the two replicas   (default: "8101 8102")
#   LIMIT      bound for each front end    (default: 1800 seconds)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
read -r -a ports <<<"${REPLICAS:-8101 8102}"
limit=${LIMIT:-1800}
front_end=python
flags=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --traces | --kill | --faults) flags+=("$1") ;;
    --front-end=*) front_end=${1#*=} ;;
    --front-end) front_end=${2-} && shift ;;
    *) front_end= ;;
  esac
  case $front_end in
    python | rust | both) shift ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
  esac
done
if [[ $front_end == both ]]; then
  status=0
  for each in python rust; do
    echo "== $each =="
    "$0" --front-end "$each" ${flags[@]+"${flags[@]}"} || status=$?
  done
  exit "$status"
fi

fail() { echo "failed: $*" >&2; exit 1; }
has() { [[ " ${flags[*]-} " == *" $1 "* ]]; }
has_traces() { has --traces && [[ $front_end == python ]]; }
is_up() { curl -s -o /dev/null -m 2 --fail "http://127.0.0.1:$1/$2"; }
# Nothing that is waited for may outlive the bound. In the background, so that a signal is heard.
bounded() { timeout "$((limit > SECONDS ? limit - SECONDS : 1))" "$@"; }
run() {
  bounded "$@" &
  wait "$!"
}

. "$here/real_vllm/engine.sh"

# A Python that has the official OpenAI client.
client_python() {
  python=$VENV/bin/python
  "$python" -c 'import openai' 2>/dev/null && return
  "$python" -m venv "$work/client"
  python=$work/client/bin/python
  run "$python" -m pip install -q openai
}

free_ports() {
  "$python" - "$1" <<'P'
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))
P
}

start_receiver() {
  [[ -f $engine/otlp_receiver.py ]] || fail "--traces needs $engine/otlp_receiver.py"
  "$VENV/bin/python" "$engine/otlp_receiver.py" "$otlp" "$work/spans.json" "$limit" &
  export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:$otlp OTEL_TRACES_SAMPLER=parentbased_always_on
  replica_arguments=(--otlp-traces-endpoint "$OTEL_EXPORTER_OTLP_ENDPOINT")
}

start_replicas() {
  local port pid waits=()
  for port in "${ports[@]}"; do
    if is_up "$port" health; then
      ! has --kill && ! has_traces || fail "a replica runs at $port, but ${flags[*]} needs its own"
      continue
    fi
    OTEL_SERVICE_NAME=vllm bounded "$engine/serve.sh" "$port" \
      ${replica_arguments[@]+"${replica_arguments[@]}"} &
    waits+=($!)
  done
  for pid in ${waits[@]+"${waits[@]}"}; do wait "$pid" || fail "a replica did not start"; done
}

build_gateway() {
  gateway=${TOKENWEIR:-}
  [[ -n $gateway ]] && return
  run cargo build --quiet --release --manifest-path "$root/Cargo.toml" ||
    fail "the gateway does not build"
  gateway=${CARGO_TARGET_DIR:-$root/target}/release/tokenweir
}

# start_gateway NAME LISTEN ADMIN REPLICA...: a gateway, and wait until it is ready.
start_gateway() {
  local name=$1 listen=$2 admin=$3 backends=() port pid
  for port in "${@:4}"; do backends+=(--backend "http://127.0.0.1:$port"); done
  "$gateway" serve "${backends[@]}" --listen "127.0.0.1:$listen" --admin "127.0.0.1:$admin" \
    >"$work/$name.jsonl" 2>"$work/$name.log" &
  pid=$!
  for _ in {1..200}; do
    is_up "$admin" readyz && return
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/$name.log" >&2
  fail "the gateway is not ready"
}

client_python
vllm_rs=$VENV/bin/vllm-rs
if [[ ! -x $vllm_rs && -x $engine/get_vllm_rs.sh ]]; then
  run "$engine/get_vllm_rs.sh" "$VENV" || echo "vllm-rs cannot be had" >&2
fi
if [[ $front_end == rust ]]; then
  [[ -x $vllm_rs ]] || skip "no vllm-rs"
  export CLI=1 VLLM_USE_RUST_FRONTEND=1
fi
read -r listen admin single single_admin otlp <<<"$(free_ports 5)"
build_gateway
replica_arguments=()
if has_traces; then start_receiver; fi
start_replicas
start_gateway gateway "$listen" "$admin" "${ports[@]}"
start_gateway single "$single" "$single_admin" "${ports[0]}"

arguments=(
  --gateway "http://127.0.0.1:$listen" --admin "http://127.0.0.1:$admin"
  --single "http://127.0.0.1:$single" --access-log "$work/gateway.jsonl" --work "$work"
  --program "$gateway" --engine "$engine" --run "$RUN" --front-end "$front_end"
)
for port in "${ports[@]}"; do arguments+=(--replica "http://127.0.0.1:$port"); done
arguments+=(--tokenizer "$VENV/tiny")
for tool in "$vllm_rs" "$VENV/bin/vllm"; do
  [[ -x $tool ]] && arguments+=(--bench "$tool")
done
if [[ -n ${AIPERF:-} ]]; then arguments+=(--aiperf "$AIPERF"); fi
if has_traces; then arguments+=(--spans "$work/spans.json"); fi
for flag in --kill --faults; do
  if has "$flag"; then arguments+=("$flag"); fi
done

run "$python" "$here/real_vllm/check.py" "${arguments[@]}"

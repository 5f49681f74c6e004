#!/usr/bin/env bash
# Puts the gateway in front of two real vLLM replicas and checks what it says against what its
# clients see and what the engines count.
#
#   tests/real_vllm.sh [--traces] [--kill]
#
#   --traces   also checks that the engine's spans are children of the gateway's
#   --kill     also kills a replica under load and starts it again, twice
#
# The engine comes with three things, and without them the check is skipped:
#   REAL_VLLM  a folder with serve.sh PORT [vLLM arguments] and stop.sh PORT, which start and stop
#              a replica of the model `tiny` on 127.0.0.1, and keep PORT.pid and PORT.log in $RUN
#              (default: a folder real-vllm beside this repository, or in a folder beside it)
#   VENV       the Python environment of these scripts   (default: $REAL_VLLM/.venv-vllm)
#   VENV/tiny  the model
# Replicas that run already are used and left running.
#
#   TOKENWEIR  the gateway's binary        (default: built in release mode)
#   REPLICAS   ports of the two replicas   (default: "8101 8102")
#   LIMIT      bound for everything        (default: 1200 seconds)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
read -r -a ports <<<"${REPLICAS:-8101 8102}"
limit=${LIMIT:-1200}
flags=()
for flag in "$@"; do
  case $flag in
    --traces | --kill) flags+=("$flag") ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
  esac
done

skip() { echo "skipped: $*"; exit 0; }
fail() { echo "failed: $*" >&2; exit 1; }
has() { [[ " ${flags[*]-} " == *" $1 "* ]]; }
is_up() { curl -s -o /dev/null -m 2 --fail "http://127.0.0.1:$1/$2"; }
# Nothing that is waited for may outlive the bound. In the background, so that a signal is heard.
bounded() { timeout "$((limit > SECONDS ? limit - SECONDS : 1))" "$@"; }
run() {
  bounded "$@" &
  wait "$!"
}

engine_folder() {
  local folder
  for folder in ${REAL_VLLM:+"$REAL_VLLM"} "$root"/../real-vllm "$root"/../*/real-vllm; do
    [[ -x $folder/serve.sh && -x $folder/stop.sh ]] && { (cd "$folder" && pwd); return; }
  done
  return 1
}

engine=$(engine_folder) || skip "no serve.sh and stop.sh of a real vLLM; set REAL_VLLM"
VENV=${VENV:-$engine/.venv-vllm}
[[ -x $VENV/bin/python && -d $VENV/tiny ]] || skip "no vLLM environment in $VENV; set VENV"
VENV=$(cd "$VENV" && pwd)
export VENV

work=$(mktemp -d)
export RUN=$work/run
mkdir "$RUN"
started=() # ports of the replicas that are ours

cleanup() {
  local status=$? port pid
  trap - EXIT
  for pid in $(jobs -pr); do kill -TERM "$pid" 2>/dev/null || true; done
  for port in ${started[@]+"${started[@]}"}; do
    [[ -f $RUN/$port.pid ]] && "$engine/stop.sh" "$port" >/dev/null 2>&1 &
  done
  wait
  if [[ $status -eq 0 ]]; then rm -rf "$work"; else echo "logs are kept in $work" >&2; fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

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
  export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:$otlp
  replica_arguments=(--otlp-traces-endpoint "$OTEL_EXPORTER_OTLP_ENDPOINT")
}

start_replicas() {
  local port pid waits=()
  for port in "${ports[@]}"; do
    if is_up "$port" health; then
      [[ ${#flags[@]} -eq 0 ]] || fail "a replica runs at $port, but ${flags[*]} needs its own"
      continue
    fi
    started+=("$port")
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
read -r listen admin single single_admin otlp <<<"$(free_ports 5)"
build_gateway
replica_arguments=()
if has --traces; then start_receiver; fi
start_replicas
start_gateway gateway "$listen" "$admin" "${ports[@]}"
start_gateway single "$single" "$single_admin" "${ports[0]}"

arguments=(
  --gateway "http://127.0.0.1:$listen" --admin "http://127.0.0.1:$admin"
  --single "http://127.0.0.1:$single" --access-log "$work/gateway.jsonl" --work "$work"
)
for port in "${ports[@]}"; do arguments+=(--replica "http://127.0.0.1:$port"); done
if [[ ! -x $VENV/bin/vllm-rs && -x $engine/get_vllm_rs.sh ]]; then
  run "$engine/get_vllm_rs.sh" "$VENV" || echo "vllm-rs cannot be had" >&2
fi
[[ -x $VENV/bin/vllm-rs ]] && arguments+=(--bench "$VENV/bin/vllm-rs" --tokenizer "$VENV/tiny")
if has --traces; then arguments+=(--spans "$work/spans.json"); fi
if has --kill; then arguments+=(--kill "$engine" --run "$RUN"); fi

run "$python" "$here/real_vllm/check.py" "${arguments[@]}"

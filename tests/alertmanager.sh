#!/usr/bin/env bash
# Alerts of the gateway at a real Alertmanager: a backend goes down, its verdict fires after 3 minutes, and it is
# resolved 2 minutes after the backend is back. Then the Alertmanager restarts without its data and gets the
# state again. Needs `alertmanager` and `amtool` (Debian: prometheus-alertmanager) in PATH, and a build. 8 min.
set -euo pipefail
cd "$(dirname "$0")/.."

tokenweir=${TOKENWEIR:-${CARGO_TARGET_DIR:-target}/debug/tokenweir}
ports=${PORT:-19800}
backend=$ports gateway=$((ports + 1)) admin=$((ports + 2)) alertmanager=$((ports + 3))
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$work"/*.log >&2
  exit 1
}

# wait_for SECONDS TEXT COMMAND...: waits until the output of the command contains the text.
wait_for() {
  local limit=$1 text=$2
  shift 2
  for ((second = 0; second < limit; second++)); do
    if "$@" 2>/dev/null | grep -- "$text" >/dev/null; then
      echo "ok after $second s: $text"
      return
    fi
    sleep 1
  done
  fail "no \`$text\` within $limit s: $*"
}

alerts() {
  amtool alert query --alertmanager.url "http://127.0.0.1:$alertmanager" -o json "$@"
}

no_alerts() {
  [ "$(alerts | tr -d '[:space:]')" = '[]' ] && echo none
}

page() {
  curl -sS "http://127.0.0.1:$admin$1"
}

start_alertmanager() {
  alertmanager --config.file config/alertmanager/alertmanager.yml --storage.path "$work/data-$1" \
    --web.listen-address "127.0.0.1:$alertmanager" --cluster.listen-address= >>"$work/alertmanager.log" 2>&1 &
  alertmanager_pid=$!
  pids+=("$!")
}

start_backend() {
  "$tokenweir" sim --backends 1 --listen "127.0.0.1:$backend" >>"$work/sim.log" 2>&1 &
  backend_pid=$!
  pids+=("$!")
}

start_alertmanager 1
start_backend
cat >"$work/gateway.yaml" <<YAML
listen: 127.0.0.1:$gateway
admin: 127.0.0.1:$admin
backends: [{ url: "http://127.0.0.1:$backend", name: gpu-0 }]
alertmanagers: [{ url: "http://127.0.0.1:$alertmanager" }]
YAML
"$tokenweir" serve --config "$work/gateway.yaml" >"$work/gateway.log" 2>&1 &
pids+=("$!")

wait_for 60 'tokenweir_alertmanager_requests_total{result="ok"} [1-9]' page /metrics
wait_for 5 none no_alerts
kill "$backend_pid"
wait_for 240 '"verdict":"backend_down"' alerts
alerts | grep '"backend":"gpu-0"' >/dev/null || fail "the alert has no backend"
alerts | grep "http://127.0.0.1:$admin/runbooks#backend_down" >/dev/null || fail "the alert has no runbook"
page /runbooks | grep 'id="backend_down"' >/dev/null || fail "the runbook is missing"

# The new Alertmanager knows no alerts. It gets them with the next request.
kill "$alertmanager_pid"
wait "$alertmanager_pid" 2>/dev/null || true
wait_for 90 '"error": *"cannot connect' page /status
start_alertmanager 2
wait_for 60 '"verdict":"backend_down"' alerts
wait_for 60 'tokenweir_alertmanager_age_seconds [0-9]\.\|tokenweir_alertmanager_age_seconds [0-9]$' page /metrics

start_backend
wait_for 240 none no_alerts
failed=$(page /metrics | grep 'requests_total{result="failed"}' | grep alertmanager)
echo "all checked: $failed"

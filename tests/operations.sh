#!/usr/bin/env bash
# Checks what is installed around the gateway with the programs that will read it: promtool the
# rules, and each alert under its condition and beside it; amtool the routing. A program that is not
# there is skipped, loudly. Debian has them in the packages prometheus and prometheus-alertmanager.
set -euo pipefail
cd "$(dirname "$0")/.."

skipped=0
have() {
  command -v "$1" >/dev/null && return
  skip "$@"
  return 1
}

skip() {
  printf '\n!! %s is not installed: %s is NOT checked\n' "$1" "$2" >&2
  skipped=1
}

# Who is told, by the labels of an alert.
told() {
  local receiver=$1
  shift
  local got
  got=$(amtool config routes test --config.file config/alertmanager/alertmanager.yml "$@" 2>/dev/null)
  [ "$got" = "$receiver" ] || { echo "$* is told to $got, not to $receiver" >&2; exit 1; }
}

if have promtool "config/prometheus"; then
  promtool check config config/prometheus/prometheus.yml
  promtool test rules tests/operations/*.test.yml
fi
if have amtool "config/alertmanager"; then
  amtool check-config config/alertmanager/alertmanager.yml
  told page severity=page alertname=TokenweirErrors area=latency
  told ticket severity=ticket alertname=TokenweirStalls area=replicas
fi
if docker compose version >/dev/null 2>&1; then
  docker compose -f docker/compose.yml config --quiet
else
  skip "docker compose" "docker/compose.yml"
fi
[ "$skipped" = 0 ] && echo "all checked"
exit 0

#!/usr/bin/env bash
# Checks the shipped configurations with the programs that read them: promtool checks the rules, and that each
# alert fires under its condition and not otherwise; amtool checks the routing of alerts. A check whose program
# is missing is skipped with a message. Debian has the programs in prometheus and prometheus-alertmanager.
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

# assert_receiver RECEIVER LABEL...: alerts with these labels go to the receiver.
assert_receiver() {
  local receiver=$1
  shift
  local got
  got=$(amtool config routes test --config.file config/alertmanager/alertmanager.yml "$@" 2>/dev/null)
  [ "$got" = "$receiver" ] || { echo "$* goes to $got, not to $receiver" >&2; exit 1; }
}

if have promtool "config/prometheus"; then
  promtool check config config/prometheus/prometheus.yml
  promtool test rules tests/operations/*.test.yml
fi
if have amtool "config/alertmanager"; then
  amtool check-config config/alertmanager/alertmanager.yml
  assert_receiver page severity=page alertname=TokenweirErrors area=latency
  assert_receiver ticket severity=ticket alertname=TokenweirVerdict area=diagnosis
fi
if docker compose version >/dev/null 2>&1; then
  docker compose -f docker/compose.yml config --quiet
else
  skip "docker compose" "docker/compose.yml"
fi
[ "$skipped" = 0 ] && echo "all checked"
exit 0

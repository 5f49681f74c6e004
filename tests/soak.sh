#!/usr/bin/env bash
# Soak test: runs the gateway in front of simulated backends and one that fails, and compares its counters
# with the requests of the clients. It fails if memory or the number of open files grows, if a connection
# stays open, or if a request has no outcome.
#
#   tests/soak.sh [SECONDS | whole] [--reload]
#
#   SECONDS    duration (default: 600)
#   whole      4,320,000 requests: a day at 50 requests per second
#   --reload   sends SIGHUP to the gateway every five seconds, so that it reloads its configuration
set -euo pipefail
cd "$(dirname "$0")/.."

export SOAK_SECONDS=600
while [[ $# -gt 0 ]]; do
  case $1 in
    whole) export SOAK_SECONDS=86400 SOAK_REQUESTS=4320000 ;;
    --reload) export SOAK_RELOAD=5 ;;
    *[!0-9]* | '') sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
    *) export SOAK_SECONDS=$1 ;;
  esac
  shift
done

exec timeout --kill-after=20 $((SOAK_SECONDS + 3600)) cargo bench --locked --quiet --bench soak

#!/usr/bin/env bash
# Lets the gateway run in front of simulated replicas and one that fails, and holds what it says at the
# end against what its clients sent. It fails if anything grows, is left open or is not accounted for.
#
#   tests/soak.sh [SECONDS | whole] [--reload]
#
#   SECONDS    how long (default: 600)
#   whole      4,320,000 requests: a day of 50 a second
#   --reload   sends SIGHUP every five seconds, to a gateway that reloads its configuration
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

#!/usr/bin/env bash
# Runs the whole observability stack on loopback: simulated backends, the gateway, an OpenTelemetry Collector,
# Jaeger, Prometheus and Alertmanager, each with its shipped configuration. Then it injects faults, one after the
# other, and checks:
#
#   - each exemplar in Prometheus has a trace in Jaeger with spans of gateway, attempt and engine
#   - each alert fires under its fault, is sent to its receiver, and resolves
#   - every query of every dashboard has data
#
#   tests/stack.sh [--only alerts,traces,dashboards] [--fault TEXT] [--gateway-only]
#
#   --only         a selection of the steps
#   --fault        only faults whose names contain this text
#   --gateway-only Prometheus scrapes the gateway and no backend
#
# Without Jaeger, only alerts and dashboards are checked. tests/stack/pages.py serves the pages of a GPU
# exporter, and the metrics that the simulated engine lacks.
#
# The time windows of the rules are divided by 30: an hour becomes two minutes. Expressions and thresholds are
# the shipped ones.
#
#   STACK_TOOLS  the folder of tests/stack/install.sh DIR; without it the check is skipped
#   TOKENWEIR    the gateway's binary   (default: built in release mode)
#   LIMIT        time limit             (default: 1500 seconds)
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
. "$here/common/gateway_program.sh"

skip() { echo "skipped: $*"; exit 0; }
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }

arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --only | --fault) [[ $# -ge 2 ]] || usage; arguments+=("$1" "$2"); shift 2 ;;
    --gateway-only) arguments+=("$1"); shift ;;
    *) usage ;;
  esac
done

tools=${STACK_TOOLS:-}
[[ -n $tools ]] || skip "no components; run tests/stack/install.sh DIR and set STACK_TOOLS=DIR"
tools=$(cd "$tools" && pwd)
for program in prometheus alertmanager otelcol; do
  [[ -x $tools/bin/$program ]] || skip "no $program in $tools; run tests/stack/install.sh $tools"
done
[[ -x $tools/bin/jaeger ]] || echo "Jaeger is not installed: traces are not checked"

gateway=$(gateway_program release)

work=$(mktemp -d)
cleanup() {
  local status=$? pid
  trap - EXIT
  for pid in $(jobs -pr); do kill -TERM "$pid" 2>/dev/null || true; done
  wait
  if [[ $status -eq 0 ]]; then rm -rf "$work"; else echo "the logs are in $work" >&2; fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# The command runs in the background, because a shell runs signal traps only between foreground commands. When
# it ends, its child processes end.
PYTHONPATH=$here/common timeout --kill-after=20 "${LIMIT:-1500}" \
  python3 "$here/stack/check.py" --gateway "$gateway" --tools "$tools" --work "$work" \
  --dashboards "$root/config/grafana" ${arguments[@]+"${arguments[@]}"} &
wait "$!"

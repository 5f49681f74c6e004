#!/usr/bin/env bash
# Stages seventeen faults, one gateway with three simulated backends each, and records what page, top, diagnose, log,
# dashboards and alerts say 10 s, 60 s and 5 min after the begin, and 60 s after the end. Prints one Markdown table.
# Fails if fewer than all but one fault are named on the first screen within 60 s, if a verdict is about something
# else, or if page, top or diagnose still name a condition 60 s after the end.
#
#   tests/staged_faults.sh [--quick] [--only TEXT,TEXT] [--jobs N] [--real FOLDER]
#
#   --quick  without the 5 min
#   --only   faults whose names contain one of these texts
#   --jobs   faults that are staged at the same time (default: 3)
#   --real   stages faults of one real vLLM instead; FOLDER has serve.sh and stop.sh, VENV its environment
#
#   TOKENWEIR    the gateway's binary (default: built in release mode)
#   STACK_TOOLS  the folder of tests/stack/install.sh DIR, for the fault `collector gone`
#   LIMIT        time limit (default: 3600 seconds)
#
# It needs Prometheus, openssl and Python 3.11.
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

for program in prometheus openssl python3; do
  command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 0; }
done
gateway=${TOKENWEIR:-}
if [[ -z $gateway ]]; then
  cargo build --quiet --release --manifest-path "$root/Cargo.toml"
  gateway=${CARGO_TARGET_DIR:-$root/target}/release/tokenweir
fi
arguments=(--gateway "$(realpath "$gateway")" --prometheus "$(command -v prometheus)")
collector=${STACK_TOOLS:+$STACK_TOOLS/bin/otelcol}
[[ -n $collector && -x $collector ]] && arguments+=(--collector "$collector")

export PYTHONPATH=$here/common:$here/stack
exec timeout --kill-after=20 "${LIMIT:-3600}" python3 "$here/staged_faults/run.py" "${arguments[@]}" "$@"

#!/usr/bin/env bash
# Stages twenty-five faults for 5 min each, one gateway with three simulated backends each. Prints one Markdown table.
# Fails if fewer than all but one fault are named on the first screen within 60 s, if a verdict is about something
# else, or if the page or diagnose still name a condition 75 s after the end of the fault and of its ejections.
#
#   tests/staged_faults.sh [--quick] [--only TEXT,TEXT] [--jobs N] [--real FOLDER]
#
#   --quick  1 min each
#   --only   faults whose names contain one of these texts
#   --jobs   faults that are staged at the same time (default: 3)
#   --real   stages faults of one real vLLM instead; FOLDER has serve.sh and stop.sh, VENV its environment
#
#   TOKENWEIR    the gateway's binary (default: built in release mode)
#   STACK_TOOLS  the folder of tests/stack/install.sh DIR, for the fault `collector gone`
#   LIMIT        time limit (default: 3600 seconds)
#
# It needs openssl and Python 3.11.
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/gateway_program.sh"

for program in openssl python3; do
  command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 0; }
done
arguments=(--gateway "$(gateway_program release)")
collector=${STACK_TOOLS:+$STACK_TOOLS/bin/otelcol}
[[ -n $collector && -x $collector ]] && arguments+=(--collector "$collector")

export PYTHONPATH=$here/common:$here/stack
exec timeout --kill-after=20 "${LIMIT:-3600}" python3 "$here/staged_faults/run.py" "${arguments[@]}" "$@"

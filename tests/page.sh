#!/usr/bin/env bash
# Tests the live page in Chromium: how soon values are updated, keys, light and dark colours, a narrow screen,
# fleets of 3 and 50 backends with staged faults (`demo --fault`), history, the drain of the last backend,
# links from slow requests to their traces, verdicts, a gateway without available backends, the admin token, a
# gateway that has ended, a browser without JavaScript, names that contain HTML, and a walk with mouse, finger and
# keyboard. Needs chromium, chromedriver and python3. Screenshots go to FOLDER, or to target/page.
#
#   tests/page.sh [FOLDER]
#
#   AXE    the file axe.min.js of the npm package axe-core, which checks each view of the walk    (default: no check)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/common/gateway_program.sh
for tool in chromium chromedriver python3; do
    command -v "$tool" > /dev/null || { echo "$tool is missing" >&2; exit 1; }
done
binary=$(gateway_program debug)
exec python3 tests/page/check.py "$binary" "${1:-target/page}"

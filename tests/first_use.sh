#!/usr/bin/env bash
# Runs the commands of README.md and docs/start/install.md in a new home directory, from the installation to the
# first measured request, and measures the time. TOKENWEIR is the binary for the packages.
#
#   TOKENWEIR=BINARY tests/first_use.sh [URL of vLLM]        default: http://127.0.0.1:8000
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH=tests/common exec python3 tests/first_use.py "${TOKENWEIR:?set TOKENWEIR to a binary; packaging/static.sh builds one}" \
  "${1:-http://127.0.0.1:8000}"

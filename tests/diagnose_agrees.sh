#!/usr/bin/env bash
# Compares `tokenweir diagnose` with an independent tool, vllm-doctor, on the same simulated backends. Exit
# code 1 if one tool reports a problem that the other does not, except for the known differences.
#
#   PROGRAM=target/release/tokenweir tests/diagnose_agrees.sh
#
# It installs vllm-doctor into a temporary folder and takes two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${PROGRAM:-target/debug/tokenweir}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check vllm-doctor==0.6.0
HOME=$folder timeout 300 python3 tests/diagnose_agrees.py "$program" "$folder/venv/bin/vllm-doctor"

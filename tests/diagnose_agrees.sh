#!/usr/bin/env bash
# Asks an independent tool, vllm-doctor, and `tokenweir diagnose` about the same simulated replicas, and
# says where they differ. Exit 1 if one names what the other does not, unless it is written down why.
#
#   PROGRAM=target/release/tokenweir tests/diagnose_agrees.sh
#
# Installs vllm-doctor into a folder of its own that is removed at the end. Two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${PROGRAM:-target/debug/tokenweir}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check vllm-doctor==0.6.0
HOME=$folder timeout 300 python3 tests/diagnose_agrees.py "$program" "$folder/venv/bin/vllm-doctor"

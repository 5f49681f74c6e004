#!/usr/bin/env bash
# What somebody does who has only the repository and a vLLM: the commands of README.md as they stand
# there, in a home of their own, until a first request was measured; and how long that takes.
# TOKENWEIR is the binary that README's packages are made from.
#
#   TOKENWEIR=BINARY tests/first_use.sh [URL of vLLM]        default: http://127.0.0.1:8000
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tests/first_use.py "${TOKENWEIR:?name a binary in TOKENWEIR: packaging/static.sh makes one}" \
  "${1:-http://127.0.0.1:8000}"

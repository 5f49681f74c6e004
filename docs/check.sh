#!/usr/bin/env bash
# Checks the documents: what is printed by the program is as it prints it, links lead somewhere, and
# each example of a configuration is one. `docs/check.sh --renew` writes anew what is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cargo build --locked --quiet
program=${TOKENWEIR:-${CARGO_TARGET_DIR:-target}/debug/tokenweir}

if [ "${1-}" = --renew ]; then
  "$program" generate all --config docker/tokenweir.yaml --out .
  # The chart carries copies.
  cp config/prometheus/{alert,recording}-rules.yml config/grafana/dashboards/{overview,replica}.json \
    packaging/helm/tokenweir/files/
else
  "$program" generate all --config docker/tokenweir.yaml --out "$work" 2>/dev/null
  (cd "$work" && find . -type f) | while read -r file; do
    cmp --silent "$work/$file" "$file" ||
      { echo "$file is not what the program prints: run docs/check.sh --renew" >&2; exit 1; }
  done
fi

python=python3
if ! python3 -c 'import jsonschema, yaml' 2>/dev/null; then
  if python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet jsonschema==4.26.0 pyyaml==6.0.3; then
    python="$work/venv/bin/python"
  fi 2>/dev/null
fi
"$python" docs/check.py "$program"

#!/usr/bin/env bash
# Checks the documents: generated pages are as the program prints them, links resolve, docs/SUMMARY.md lists
# each page, each example of a configuration is valid, and mdBook builds the book if it is installed.
# `docs/check.sh --renew` writes the generated files again.
#
#   TOKENWEIR  the gateway's binary   (default: built in debug mode)
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

program=${TOKENWEIR:-}
if [[ -z $program ]]; then
  cargo build --locked --quiet
  program=${CARGO_TARGET_DIR:-target}/debug/tokenweir
fi
# The services of docker/compose.yml.
compose=(--spans collector:8889 --gpus dcgm-exporter:9400 --runbooks http://127.0.0.1:9090/runbooks)

"$program" generate all --config docker/tokenweir.simulator.yaml --out "$work" "${compose[@]}" 2>/dev/null
# The repository does not contain the schema and the catalogue of metrics: other programs get them from this one.
schema=$work/tokenweir.schema.json
metrics=$work/metrics.json
mv "$work/config/tokenweir.schema.json" "$schema"
mv "$work/config/metrics.json" "$metrics"
if [ "${1-}" = --renew ]; then
  cp -r "$work/config" "$work/docs" .
  python3 docs/check.py --renew "$schema" "$metrics"
else
  for file in $(cd "$work" && find config docs -type f); do
    cmp --silent "$work/$file" "$file" ||
      { echo "$file is not what the program prints: run docs/check.sh --renew" >&2; exit 1; }
  done
fi

python=python3
if ! python3 -c 'import duckdb, jsonschema, yaml' 2>/dev/null; then
  if python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet duckdb==2.0.1 jsonschema==4.26.0 pyyaml==6.0.3; then
    python="$work/venv/bin/python"
  fi 2>/dev/null
fi
python3 docs/check_words.py
"$python" docs/check.py "$program" "$schema" "$metrics"

if command -v mdbook >/dev/null; then
  mdbook build docs
else
  echo '!! mdbook is not installed: the book is NOT built (cargo install mdbook)' >&2
fi

#!/usr/bin/env bash
# Reads a live metrics page with the reference parser, Python's prometheus_client, and counts what
# it finds. Takes the parser from the Python package index if it is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT

python=python3
if ! python3 -c 'import prometheus_client' 2>/dev/null; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet prometheus_client==0.26.0
  python="$work/venv/bin/python"
fi

cargo build --locked --quiet --bin tokenweir
binary="${CARGO_TARGET_DIR:-target}/debug/tokenweir"
"$binary" demo --for 60s --listen 127.0.0.1:0 --admin 127.0.0.1:0 2>"$work/log" &
pid=$!

"$python" - "$work/log" <<'PY'
import re, sys, time, urllib.request
from prometheus_client.parser import text_string_to_metric_families

deadline = time.monotonic() + 30
admin = None
while admin is None and time.monotonic() < deadline:
    found = re.search(r"admin +http://(\S+)", open(sys.argv[1]).read())
    admin = found and found.group(1)
    time.sleep(0.1)
assert admin, open(sys.argv[1]).read()

def page():
    return urllib.request.urlopen(f"http://{admin}/metrics", timeout=5).read().decode()

def served(families):
    return sum(s.value for f in families if f.name == "tokenweir_requests"
               for s in f.samples if s.name.endswith("_total") and s.labels["outcome"] == "ok")

while time.monotonic() < deadline:
    families = list(text_string_to_metric_families(page()))
    if served(families) >= 3:
        break
    time.sleep(0.2)
assert served(families) >= 3, "the demo serves requests"
samples = sum(len(family.samples) for family in families)
print(f"{len(families)} families, {samples} samples, {served(families):.0f} requests served")
PY

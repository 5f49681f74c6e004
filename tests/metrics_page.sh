#!/usr/bin/env bash
# Parses /metrics of a running gateway with the reference parser, Python's prometheus_client, and counts
# families, samples and exemplars. Installs the parser from the Python package index if it is missing.
#
#   TOKENWEIR  the gateway's binary   (default: built in debug mode)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/common/gateway_program.sh
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT

python=python3
if ! python3 -c 'import prometheus_client' 2>/dev/null; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet prometheus_client==0.26.0
  python="$work/venv/bin/python"
fi

binary=$(gateway_program debug)
# No collector runs at this endpoint. It only makes the gateway sample traces, which exemplars need.
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9 OTEL_TRACES_SAMPLER=always_on \
  "$binary" demo --duration 60s --listen 127.0.0.1:0 --admin 127.0.0.1:0 2>"$work/log" &
pid=$!

"$python" - "$work/log" <<'PY'
import re, sys, time, urllib.request
from prometheus_client.parser import text_string_to_metric_families

deadline = time.monotonic() + 30
admin = None
while admin is None and time.monotonic() < deadline:
    found = re.search(r"curl http://(\S+)/metrics", open(sys.argv[1]).read())
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
assert served(families) >= 3, "the demo served fewer than 3 requests"
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

request = urllib.request.Request(f"http://{admin}/metrics", headers={
    "accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"})
def exemplars(families):
    return [s.exemplar for f in families for s in f.samples if s.exemplar]

while True:
    with urllib.request.urlopen(request, timeout=5) as response:
        media_type, text = response.headers["content-type"], response.read().decode()
    assert media_type == "application/openmetrics-text; version=1.0.0; charset=utf-8", media_type
    opened = list(open_metrics(text))
    if exemplars(opened) or time.monotonic() > deadline:
        break
    time.sleep(0.2)
assert exemplars(opened), "no bucket has the exemplar of a sampled trace"
assert all(len(e.labels["trace_id"]) == 32 for e in exemplars(opened))
classic = {f.name for f in text_string_to_metric_families(page())}
assert {f.name for f in opened} == classic, {f.name for f in opened} ^ classic
samples = sum(len(family.samples) for family in families)
print(f"{len(families)} families, {samples} samples, {len(exemplars(opened))} exemplars, "
      f"{served(families):.0f} requests served")
PY

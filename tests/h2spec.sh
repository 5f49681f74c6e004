#!/usr/bin/env bash
# Runs h2spec, the conformance tests of HTTP/2, against the client listener.
#
#   go install github.com/summerwind/h2spec/cmd/h2spec@latest
#   PROGRAM=target/release/tokenweir tests/h2spec.sh
#
# Only two tests may fail:
# - "Sends invalid connection preface": the listener also serves HTTP/1.1. It answers an invalid preface with a
#   400 in HTTP/1.1 before it closes the connection; h2spec expects it to close at once.
# - "Sends a DATA frame after sending RST_STREAM frame": sometimes the response was already sent when the
#   RST_STREAM arrived, and h2spec takes it for a response to the DATA frame.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v h2spec >/dev/null || { echo "h2spec is missing: see the comment at the top of $0" >&2; exit 1; }
program=${PROGRAM:-target/release/tokenweir} port=${PORT:-8911}
work=$(mktemp -d)
"$program" demo --listen "127.0.0.1:$port" --admin 127.0.0.1:0 --rate 1 >"$work/demo.out" 2>"$work/demo.err" &
demo=$!
trap 'kill "$demo" 2>/dev/null; rm -rf "$work"' EXIT
until curl -sf "http://127.0.0.1:$port/v1/models" >/dev/null; do
  kill -0 "$demo" 2>/dev/null || { cat "$work/demo.err" >&2; exit 1; }
  sleep 0.1
done
# The gateway reads the whole body of a request for this path before it answers, so it does not answer too
# early.
timeout 300 h2spec -h 127.0.0.1 -p "$port" -P /v1/chat/completions --strict -o 3 >"$work/report" || true
tail -1 "$work/report"
grep -q '^[0-9]* tests,' "$work/report" || { cat "$work/report" >&2; exit 1; }
failed=$(sed -n '/^Failures/,$p' "$work/report" | grep '×' | sort -u || true)
printf '%s\n' "$failed"
others=$(grep -v -e 'Sends invalid connection preface' -e 'Sends a DATA frame after sending RST_STREAM frame' <<<"$failed" || true)
[ -z "$others" ] || { sed -n '/^Failures/,$p' "$work/report" >&2; exit 1; }

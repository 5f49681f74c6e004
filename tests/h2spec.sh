#!/usr/bin/env bash
# The conformance tests of HTTP/2, h2spec, against the clients' port.
#
#   go install github.com/summerwind/h2spec/cmd/h2spec@latest
#   PROGRAM=target/release/tokenweir tests/h2spec.sh
#
# Two of them may fail, and no other:
# - "Sends invalid connection preface": the port speaks HTTP/1.1, too. What is neither is answered with a
#   400 in HTTP/1.1 before the connection is closed; h2spec wants it closed at once.
# - "Sends a DATA frame after sending RST_STREAM frame": now and then the answer was under way when the
#   RST_STREAM came, and h2spec takes it for an answer to what followed.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v h2spec >/dev/null || { echo "h2spec is missing: see the head of $0" >&2; exit 1; }
program=${PROGRAM:-target/release/tokenweir} port=${PORT:-8911}
work=$(mktemp -d)
"$program" demo --listen "127.0.0.1:$port" --admin 127.0.0.1:0 --rate 1 >"$work/demo.out" 2>"$work/demo.err" &
demo=$!
trap 'kill "$demo" 2>/dev/null; rm -rf "$work"' EXIT
until curl -sf "http://127.0.0.1:$port/v1/models" >/dev/null; do
  kill -0 "$demo" 2>/dev/null || { cat "$work/demo.err" >&2; exit 1; }
  sleep 0.1
done
# Requests for this path are read to their end before they are answered.
timeout 300 h2spec -h 127.0.0.1 -p "$port" -P /v1/chat/completions --strict -o 3 >"$work/said" || true
tail -1 "$work/said"
grep -q '^[0-9]* tests,' "$work/said" || { cat "$work/said" >&2; exit 1; }
failed=$(sed -n '/^Failures/,$p' "$work/said" | grep '×' | sort -u || true)
printf '%s\n' "$failed"
others=$(grep -v -e 'Sends invalid connection preface' -e 'Sends a DATA frame after sending RST_STREAM frame' <<<"$failed" || true)
[ -z "$others" ] || { sed -n '/^Failures/,$p' "$work/said" >&2; exit 1; }

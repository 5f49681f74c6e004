#!/bin/sh
# The live page in a real Chromium: numbers that move, and when; keys, both colour schemes, a narrow
# screen, slow requests that lead to their traces, verdicts, fleets of which nothing is up, a token, a
# gateway that is gone, a browser without JavaScript, and names that are markup.
# Needs chromium, chromedriver and python3. Pictures go to FOLDER, or target/page.
#
#   tests/page.sh [FOLDER]
set -eu
cd "$(dirname "$0")/.."
for tool in chromium chromedriver python3; do
    command -v "$tool" > /dev/null || { echo "$tool is missing" >&2; exit 1; }
done
binary=${TOKENWEIR:-}
if [ -z "$binary" ]; then
    cargo build --quiet
    binary=target/debug/tokenweir
fi
exec python3 tests/page/check.py "$binary" "${1:-target/page}"

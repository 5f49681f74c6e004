#!/usr/bin/env bash
# Load test: as many concurrent streams as the machine allows, over HTTP/1.1 and over HTTP/2, then thousands of
# slow readers and slow uploads beside normal clients. Prints figures. Exit code 1 if a bound is missed.
#
#   tests/load.sh [STREAMS [SLOW]]
#
#   STREAMS   concurrent streams over HTTP/1.1 (default: 9500, or as many as the limit of open files
#             allows). Over HTTP/2: 10000, or as many as the limit allows
#   SLOW      slow readers, and slow uploads (default: 5000, or as many as the limit allows)
#
# A stream over HTTP/1.1 takes two open files of the gateway. A slow reader and a slow upload together take
# three, but are two connections, and the gateway accepts only as many connections as it has files for one
# request on each.
set -euo pipefail
cd "$(dirname "$0")/.."

files=$(ulimit -Hn)
if [[ $files == unlimited ]]; then files=1000000; fi
min() { echo $(($1 < $2 ? $1 : $2)); }
LOAD_STREAMS=${1:-$(min 9500 $(((files - 500) / 2)))}
LOAD_STREAMS_HTTP2=$(min 10000 $((files - 1000)))
LOAD_SLOW=${2:-$(min 5000 $(((files - 500) / 4)))}
export LOAD_STREAMS LOAD_STREAMS_HTTP2 LOAD_SLOW

exec timeout --kill-after=20 1200 cargo bench --locked --quiet --bench load

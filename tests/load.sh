#!/usr/bin/env bash
# Holds as many streams as the machine lets it, over HTTP/1.1 and over HTTP/2, and then thousands of
# slow readers and slow uploads beside honest clients. Numbers, and exit 1 if a bar is missed.
#
#   tests/load.sh [STREAMS [SLOW]]
#
#   STREAMS   streams at once over HTTP/1.1 (default: 9500, or what the limit of open files allows);
#             over HTTP/2 they are 10000, or what it allows
#   SLOW      slow readers, and slow uploads (default: 5000, or what the limit allows)
#
# A stream over HTTP/1.1 takes two files of the gateway. A slow pair takes three, but is two connections,
# and the gateway takes no more of them than it has files for requests of all.
set -euo pipefail
cd "$(dirname "$0")/.."

files=$(ulimit -Hn)
if [[ $files == unlimited ]]; then files=1000000; fi
least() { echo $(($1 < $2 ? $1 : $2)); }
LOAD_STREAMS=${1:-$(least 9500 $(((files - 500) / 2)))}
LOAD_STREAMS_HTTP2=$(least 10000 $((files - 1000)))
LOAD_SLOW=${2:-$(least 5000 $(((files - 500) / 4)))}
export LOAD_STREAMS LOAD_STREAMS_HTTP2 LOAD_SLOW

exec timeout --kill-after=20 1200 cargo bench --locked --quiet --bench load

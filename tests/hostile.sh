#!/usr/bin/env bash
# The hostile suites of `cargo test` again, with as much as they can take: changed requests, floods of
# HTTP/2 frames, made-up label values, guesses at keys with a stop-watch, and clients that leave.
#
#   tests/hostile.sh [--quick]
#
#   --quick   a tenth of it
#
#   CARGO_FLAGS   (default: --release)
set -euo pipefail
cd "$(dirname "$0")/.."

share=1
case ${1:-} in
  '') ;;
  --quick) share=10 ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
export MUTATIONS=$((100000 / share)) HTTP2_FRAMES=$((50000 / share)) LEAVING=$((200 / share))
export LABEL_VALUES=$((1000000 / share))

read -r -a flags <<<"${CARGO_FLAGS---release}"
run() { timeout --kill-after=20 3600 cargo test --locked --quiet "${flags[@]}" --test suite -- --nocapture "$@"; }

run smuggling:: http2:: bombs::
run mutations::
run cardinality::
run --ignored access::timing
run --ignored leaving::

#!/usr/bin/env bash
# Runs the tests against hostile clients with large inputs: mutated requests, floods of HTTP/2 frames, invented
# label values, timing attacks on keys, and clients that disconnect.
#
#   tests/hostile.sh [--quick]
#
#   --quick   a tenth of the inputs
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
# cargo would succeed if no test matches the filter, so that is an error here: the test has been renamed.
run() {
  local listed
  listed=$(cargo test --locked --quiet "${flags[@]}" --test suite -- --list "$@")
  [[ $listed == *": test"* ]] || { echo "no test matches $*" >&2; exit 1; }
  timeout --kill-after=20 3600 cargo test --locked --quiet "${flags[@]}" --test suite -- --nocapture "$@"
}

run smuggling::
run http2_client::
run abusive_requests::
run mutated_requests::
run cardinality::
run client_disconnects::
run --ignored access::key_lookup_timing

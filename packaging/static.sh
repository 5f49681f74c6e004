#!/usr/bin/env bash
# Builds a static binary of less than 20 MB and tests it, and a static tokenweir-lab beside it. The last line of output is the
# path of the binary:
#
#   packaging/static.sh [OUT]                default: target/packages
#   packaging/static.sh --check BINARY       only tests an existing binary
#
# The binary contains the C library of this machine. FEATURES=kubernetes adds Kubernetes support. A static C
# library resolves host names by files and DNS only, whatever /etc/nsswitch.conf says.
set -euo pipefail
cd "$(dirname "$0")/.."

max_bytes=20000000
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
  printf '!! %s\n' "$*" >&2
  exit 1
}

# Tests a binary: size, static linking, and a run of the demo.
test_binary() {
  local binary=$1 size log
  strip -o "$scratch/stripped" "$binary"
  size=$(stat --format %s "$scratch/stripped")
  ((size < max_bytes)) || fail "$binary has $size bytes without its symbols; the limit is $max_bytes"
  # `file` names a position-independent static program static-pie.
  if command -v file >/dev/null; then
    file --brief "$binary" | grep --extended-regexp 'static(ally|-pie) linked' >/dev/null \
      || fail "$binary is not static: $(file --brief "$binary")"
  fi
  if command -v readelf >/dev/null; then
    ! readelf --dynamic "$binary" | grep NEEDED >/dev/null \
      || fail "$binary needs $(readelf --dynamic "$binary" | grep NEEDED)"
  fi
  { ldd "$binary" 2>&1 || true; } | grep --extended-regexp 'statically linked|not a dynamic executable' >/dev/null \
    || fail "$binary is not static: $(ldd "$binary" 2>&1)"
  "$binary" --version >&2
  # Runs the demo without environment variables, so that no library path is set.
  log=$(env --ignore-environment "$binary" demo --duration 3s --listen 127.0.0.1:0 --admin 127.0.0.1:0 2>&1) \
    || fail "the demo ended with an error: $log"
  printf '%s\n' "$log" | grep --extended-regexp 'served [1-9][0-9]* requests, 0 failed' >&2 \
    || fail "the demo served no request: $log"
  printf '%s bytes, static\n' "$size" >&2
}

if [ "${1:-}" = --check ]; then
  test_binary "$(realpath "${2:?usage: packaging/static.sh --check BINARY}")"
  exit
fi

mkdir -p "${1:-target/packages}"
out=$(cd "${1:-target/packages}" && pwd)
binary=$out/tokenweir-$(rustc -vV | sed -n 's/^host: //p')
# A position-independent program relocates its pointers at start. With packed relocations it reads a few KB
# for that. Other relocations would take 600 KB, which stay in memory. Packed relocations need glibc 2.36
# (2022) or later on this machine.
flags="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs"
built=$(RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }$flags" \
  packaging/release.sh ${FEATURES:+--features "$FEATURES"} | tail -1)
install --mode 755 --strip "$built" "$binary"
host=$(rustc -vV | sed -n 's/^host: //p')
install --mode 755 --strip "${built%/shipped/*}/lab/$host/release/tokenweir-lab" "$out/tokenweir-lab-$host"
test_binary "$binary"
echo "$binary"

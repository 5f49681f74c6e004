#!/usr/bin/env bash
# Builds a binary that needs no library of the system, below 20 MB, and tries it; the name of the file
# is the last line of what it prints:
#
#   packaging/static.sh [OUT]                default: target/packages
#   packaging/static.sh --check BINARY       only tries one that is there
#
# It is linked with the C library of this machine. FEATURES=kubernetes puts that in. Names are
# resolved by that library: of /etc/nsswitch.conf, a static one knows files and DNS.
set -euo pipefail
cd "$(dirname "$0")/.."

most=20000000
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
  printf '!! %s\n' "$*" >&2
  exit 1
}

# What can be said of a binary that is there.
try() {
  local binary=$1 size log
  strip -o "$scratch/stripped" "$binary"
  size=$(stat --format %s "$scratch/stripped")
  ((size < most)) || fail "$binary has $size bytes without its symbols; the most is $most"
  # A static program that may be loaded anywhere says so, or that it is no dynamic one at all.
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
  # Nothing of this machine's environment, and no library to be found.
  log=$(env --ignore-environment "$binary" demo --for 3s --listen 127.0.0.1:0 --admin 127.0.0.1:0 2>&1) \
    || fail "the demo ended with an error: $log"
  printf '%s\n' "$log" | grep --extended-regexp 'served [1-9][0-9]* requests, 0 failed' >&2 \
    || fail "the demo served no request: $log"
  printf '%s bytes, static\n' "$size" >&2
}

if [ "${1:-}" = --check ]; then
  try "$(realpath "${2:?usage: packaging/static.sh --check BINARY}")"
  exit
fi

mkdir -p "${1:-target/packages}"
out=$(cd "${1:-target/packages}" && pwd)
binary=$out/tokenweir-$(rustc -vV | sed -n 's/^host: //p')
# A program that may be loaded anywhere moves its own pointers when it starts. In the short form of their
# list it reads a few KB for that instead of 600, which would stay in its memory. That takes glibc 2.36
# (2022) or later here.
flags="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs"
built=$(RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }$flags" \
  packaging/release.sh ${FEATURES:+--features "$FEATURES"} | tail -1)
install --mode 755 --strip "$built" "$binary"
try "$binary"
echo "$binary"

#!/usr/bin/env bash
# Makes a wheel that carries the binary; the name of the file is the last line of what it prints:
#
#   packaging/wheel.sh BINARY [OUT]        default: target/packages
#
# Its tag says which systems it runs on: manylinux with the newest glibc that the binary asks for, or
# both manylinux and musllinux if it is static.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

binary=$(realpath "${1:?usage: packaging/wheel.sh BINARY [OUT]}")
mkdir -p "${2:-$here/../target/packages}"
out=$(cd "${2:-$here/../target/packages}" && pwd)

exec python3 "$here/wheel.py" "$binary" "$out"

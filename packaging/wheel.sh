#!/usr/bin/env bash
# Builds a wheel that contains the binary. The last line of output is the path of the wheel:
#
#   packaging/wheel.sh BINARY [OUT]        default: target/packages
#
#   LAB  the program tokenweir-lab, which the wheel then contains, too
#
# The platform tag is manylinux with the newest glibc version that the binary requires, or manylinux and
# musllinux if the binary is static.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

binary=$(realpath "${1:?usage: packaging/wheel.sh BINARY [OUT]}")
mkdir -p "${2:-$here/../target/packages}"
out=$(cd "${2:-$here/../target/packages}" && pwd)

exec python3 "$here/wheel.py" "$binary" "$out" ${LAB:+"$(realpath "$LAB")"}

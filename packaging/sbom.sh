#!/usr/bin/env bash
# Writes the software bill of materials of the program in the CycloneDX format. It needs cargo-cyclonedx. The last line of output
# is the path of the file:
#
#   packaging/sbom.sh [OUT]        default: target/packages
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-target/packages}"
out=$(cd "${1:-target/packages}" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# cargo-cyclonedx writes a file beside the manifest of each package of the workspace.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git archive HEAD | tar --extract --directory "$scratch"
(cd "$scratch" && cargo cyclonedx --quiet --format json --features dns,kubernetes --override-filename sbom >&2)
cp "$scratch/sbom.json" "$out/tokenweir-$version.cdx.json"
echo "$out/tokenweir-$version.cdx.json"

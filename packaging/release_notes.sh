#!/usr/bin/env bash
# Prints the section of a version in CHANGELOG.md:
#
#   packaging/release_notes.sh TAG       such as v0.2.0
#
# It fails if the tag is not the version of Cargo.toml, or if the changelog does not close that version with a date.
set -euo pipefail
cd "$(dirname "$0")/.."
tag=${1:?usage: packaging/release_notes.sh TAG}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
[ "$tag" = "v$version" ] || { echo "the tag is $tag, Cargo.toml has $version" >&2; exit 1; }
notes=$(awk -v head="## [$version] - " 'index($0, head) == 1 { inside = 1; next } /^## \[/ { inside = 0 } inside' CHANGELOG.md)
[ -n "$notes" ] || { echo "CHANGELOG.md has no section [$version] with a date" >&2; exit 1; }
printf '%s\n' "$notes"

#!/usr/bin/env bash
# Builds the release program with profile-guided optimisation. The last line of output is its path:
#
#   packaging/release.sh [CARGO ARGUMENT...]      such as --features kubernetes
#
# It builds twice: first an instrumented program, which packaging/train.py runs under the load generator of the
# laboratory to record a profile, and then the final program with that profile. It needs `rustup component add
# llvm-tools` and the linker lld, which is Rust's default on x86-64, and takes twice the time of
# `cargo build --profile dist`, which builds the same program without a profile.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if [ ! -x "$profdata" ]; then
  echo "$profdata is missing: run rustup component add llvm-tools" >&2
  exit 1
fi
target=$(cargo metadata --no-deps --format-version 1 --locked | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
profiles=$target/profiles
rm -rf "$profiles"
mkdir -p "$profiles"

# With --target, cargo uses these flags only for the program, not for build scripts and macros.
build() { RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build --locked --target "$host" --target-dir "$target/$2" "${@:3}"; }
gateway=(--profile dist --features dns --bin tokenweir "$@")

build "" lab --release --manifest-path lab/Cargo.toml
build "-Cprofile-generate=$profiles" instrumented "${gateway[@]}"
python3 packaging/train.py "$target/instrumented/$host/dist/tokenweir" "$target/lab/$host/release/tokenweir-lab" "$profiles"
"$profdata" merge --output "$profiles/gateway.profdata" "$profiles/gateway"
"$profdata" merge --output "$profiles/all.profdata" "$profiles/gateway" "$profiles/others"
# The linker places the functions that the gateway runs next to each other. The kernel loads a program by
# pages and every loaded page stays in memory, so fewer pages are loaded.
"$profdata" show --covered "$profiles/gateway.profdata" | sed 's/.*;//' >"$profiles/order"
order="-Clink-arg=-Wl,--symbol-ordering-file=$profiles/order,--no-warn-symbol-ordering"
build "-Cprofile-use=$profiles/all.profdata $order" shipped "${gateway[@]}"
ls "$target/shipped/$host/dist/tokenweir"

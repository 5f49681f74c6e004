#!/usr/bin/env bash
# Builds the program as it is shipped; its path is the last line of what is printed:
#
#   packaging/release.sh [ARGUMENT OF CARGO...]      such as --features kubernetes
#
# It is built twice: once to see which ways requests take, under packaging/train.py, and once more
# with what was seen, so that those ways lie close together. It needs `rustup component add
# llvm-tools`, the linker lld, which is Rust's own on x86-64, and twice the time of
# `cargo build --release`, which builds the same without all that.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if [ ! -x "$profdata" ]; then
  echo "$profdata is not there: rustup component add llvm-tools" >&2
  exit 1
fi
target=$(cargo metadata --no-deps --format-version 1 --locked | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
seen=$target/seen
rm -rf "$seen"
mkdir -p "$seen"

# With a target, build scripts and macros are built without these flags.
build() { RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build --release --locked --target "$host" --bin tokenweir --target-dir "$target/$2" "${@:3}"; }

build "-Cprofile-generate=$seen" seeing "$@"
python3 packaging/train.py "$target/seeing/$host/release/tokenweir" "$seen"
"$profdata" merge --output "$seen/gateway.profdata" "$seen/gateway"
"$profdata" merge --output "$seen/all.profdata" "$seen/gateway" "$seen/others"
# What a gateway runs lies together, too: the system reads a program by pages, and keeps what it read.
"$profdata" show --covered "$seen/gateway.profdata" | sed 's/.*;//' >"$seen/order"
together="-Clink-arg=-Wl,--symbol-ordering-file=$seen/order,--no-warn-symbol-ordering"
build "-Cprofile-use=$seen/all.profdata $together" shipped "$@"
ls "$target/shipped/$host/release/tokenweir"

#!/usr/bin/env bash
# Runs every fuzz target on stable Rust and one core, with seeds from the recordings in tests/wire.
#
#   fuzz/run.sh [executions per target]
#
# Each target runs on short inputs (up to 4 KiB), and for a hundredth of the executions on inputs of up to
# 256 KiB. The crate has no unsafe code, so there is no sanitizer; debug assertions and overflow checks are
# on. A failing input is stored in fuzz/artifacts, and the exit code is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-2500000}
# Maximum seconds of one target, for short and for long inputs each.
seconds=${FUZZ_SECONDS:-900}
# A selection of targets: FUZZ_TARGETS="headers config".
read -r -a targets <<<"${FUZZ_TARGETS:-sse json request metrics_page hostile_page observe headers config kv_events}"
work=fuzz/target/corpus

command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
cp Cargo.lock fuzz/Cargo.lock
fuzz() { cargo fuzz "$1" --sanitizer none "${@:2}"; }
fuzz build

# run FOLDER TARGET EXECUTIONS OPTION...: runs a target, prints its line of the table and adds to the total.
run() {
  local folder=$1 target=$2 log
  mkdir -p "$work/$folder/$target" "fuzz/artifacts/$target"
  log=$work/$folder/$target.log
  fuzz run "$target" "$work/$folder/$target" "fuzz/target/seeds/$folder/$target" \
    $(find fuzz/corpus -mindepth 1 -maxdepth 1 -name "$target" 2>/dev/null) -- \
    -runs="$3" -dict=fuzz/words.dict -max_total_time="$seconds" -timeout=10 -rss_limit_mb=512 \
    -print_final_stats=1 "${@:4}" >"$log" 2>&1 || { failed=1; grep -aE -A 1 'panicked|ERROR|Test unit' "$log" | cut -c1-200; }
  local executed rate memory
  executed=$(final number_of_executed_units) rate=$(final average_exec_per_sec) memory=$(final peak_rss_mb)
  total=$((total + executed))
  printf '%-13s %-6s %10d executions %8d per second %5d MiB\n' \
    "$target" "$folder" "$executed" "$rate" "$memory"
}
# final NAME: the number that libFuzzer reports under this name in $log. 0 if it reports none.
final() { awk -v name="stat::$1:" '$1 == name { found = $2 } END { print found + 0 }' "$log"; }

failed=0 total=0
python3 fuzz/seeds.py fuzz/target/seeds/short 4096
python3 fuzz/seeds.py fuzz/target/seeds/long 262144
for target in "${targets[@]}"; do
  run short "$target" "$runs" -max_len=4096
  run long "$target" $((runs / 100)) -max_len=262144 -len_control=0
done
printf '%-13s %-6s %10d executions\n' total '' "$total"
exit "$failed"

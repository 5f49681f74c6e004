#!/usr/bin/env bash
# Does `tokenweir bench` measure what another load generator measures? Both send the same prompts to
# the same simulated replica, in turns, and medians over the rounds are held beside each other.
#
#   cargo build --release
#   VLLM_RS=path/to/vllm-rs TOKENIZER=path/to/a/tokenizer tests/bench_agrees.sh [ROUNDS]
#
# `vllm-rs` is vLLM's own generator in Rust; its `vllm` wheel has it. It wants a tokenizer to count
# with, which says nothing about times: any folder with a tokenizer.json will do. Exit 1 if a median
# of TTFT or ITL at p50 or p99 is more than LIMIT percent apart (2 by default).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} limit=${LIMIT:-2} port=${PORT:-8901}
program=${PROGRAM:-target/release/tokenweir}
: "${VLLM_RS:?the path of vllm-rs}" "${TOKENIZER:?a folder with tokenizer.json}"
work=$(mktemp -d)
"$program" sim --replicas 1 --listen "127.0.0.1:$port" --blocks 8000 2> "$work/sim.log" &
sim=$!
trap 'kill "$sim" 2> /dev/null; rm -rf "$work"' EXIT
until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do sleep 0.1; done

# 256 words of four bytes, as `bench` makes them: 256 tokens of the simulator. No two are alike.
prompts() {
  python3 - "$1" "$2" << 'P'
import json, random, sys
seed, count = map(int, sys.argv[1:])
draw = random.Random(seed)
words = [" the", " and", " for", " are", " but", " not", " you", " all", " any", " can", " had", " her"]
for _ in range(count):
    print(json.dumps({"prompt": "".join(draw.choices(words, k=256)), "output_tokens": 64}))
P
}

# Arrivals at equal distances: two draws of random ones differ by more than the tools do. vllm-rs draws
# gaps from a gamma distribution, which this makes narrow.
even() { # COUNT RATE
  python3 - "$1" "$2" << 'P'
import json, sys
count, rate = int(sys.argv[1]), int(sys.argv[2])
for number in range(count):
    print(json.dumps({"timestamp": number * 1000 // rate, "input_length": 256, "output_length": 64, "hash_ids": [number]}))
P
}
even 300 20 > "$work/even.jsonl"

other() { # NAME SEED COUNT PACE...
  local name=$1 seed=$2 count=$3; shift 3
  prompts "$seed" "$count" > "$work/prompts.jsonl"
  "$VLLM_RS" bench serve --backend vllm --base-url "http://127.0.0.1:$port" \
    --endpoint /v1/completions --model sim-model --tokenizer "$TOKENIZER" --dataset-name custom \
    --dataset-path "$work/prompts.jsonl" --custom-output-len 64 --num-prompts "$count" \
    --num-warmups 1 --seed "$seed" --ignore-eos --save-result --save-detailed --disable-tqdm \
    --result-dir "$work" --result-filename "$name.json" "$@" > "$work/$name.log" 2>&1 ||
    { tail -20 "$work/$name.log"; exit 1; }
}

ours() { # NAME SEED COUNT PACE...
  local name=$1 seed=$2 count=$3; shift 3
  "$program" bench "http://127.0.0.1:$port" --prompt-tokens 256 --output-tokens 64 --seed "$seed" \
    --requests "$count" --json "$@" > "$work/$name.json" || echo "note: $name says that it is not valid"
}

for round in $(seq "$rounds"); do
  for who in other ours; do
    if [ "$who" = other ]; then
      other "other-users-$round" "$((round * 10))" 400 --request-rate inf --max-concurrency 8
      other "other-rate-$round" "$((round * 10 + 1))" 300 --request-rate 20 --burstiness 1000000
    else
      ours "ours-users-$round" "$((round * 10))" 400 --users 8
      ours "ours-rate-$round" "$((round * 10 + 1))" 300 --trace "$work/even.jsonl"
    fi
  done
done

python3 - "$work" "$rounds" "$limit" << 'P'
import json, math, sys
from pathlib import Path
from statistics import median

work, rounds, limit = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])

def quantile(values, q):
    return sorted(values)[max(math.ceil(q * len(values)), 1) - 1]

def other(run):
    gaps = [gap for gaps in run["itls"] for gap in gaps]
    return [quantile(run["ttfts"], 0.5), quantile(run["ttfts"], 0.99), quantile(gaps, 0.5), quantile(gaps, 0.99)]

def ours(run):
    of = run["latencies"]
    return [of["service_ttft"]["p50"], of["service_ttft"]["p99"], of["tbt"]["p50"], of["tbt"]["p99"]]

worst = 0.0
for pace, name in [("users", "closed loop, 8 users"), ("rate", "open loop, 20 a second, evenly")]:
    load = lambda who, round: json.loads((work / f"{who}-{pace}-{round}.json").read_text())
    a = [other(load("other", round)) for round in range(1, rounds + 1)]
    b = [ours(load("ours", round)) for round in range(1, rounds + 1)]
    print(f"{name}, medians of {rounds} rounds (least to most)")
    for place, what in enumerate(["TTFT p50", "TTFT p99", "ITL p50", "ITL p99"]):
        column = lambda runs: [run[place] * 1e3 for run in runs]
        x, y = column(a), column(b)
        apart = (median(y) / median(x) - 1) * 100
        worst = max(worst, abs(apart))
        shown = lambda values: f"{median(values):8.3f} ms ({min(values):.3f} to {max(values):.3f})"
        print(f"  {what}  vllm-rs {shown(x)}   tokenweir {shown(y)}   {apart:+.2f} %")
print(f"furthest apart: {worst:.2f} %")
sys.exit(worst > limit)
P

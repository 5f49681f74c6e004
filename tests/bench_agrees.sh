#!/usr/bin/env bash
# Compares `tokenweir-lab bench` with another load generator. Both send the same prompts to the same simulated
# backend, in turns. The medians over the rounds are compared.
#
#   cargo build --release && cargo build --release --manifest-path lab/Cargo.toml
#   VLLM_RS=path/to/vllm-rs TOKENIZER=path/to/a/tokenizer tests/bench_agrees.sh [ROUNDS]
#
# `vllm-rs` is vLLM's load generator in Rust, from the `vllm` wheel. It counts tokens with a tokenizer. The
# tokenizer has no effect on times: any folder with a tokenizer.json works. Exit code 1 if a median of TTFT or
# ITL at p50 or p99 differs by more than LIMIT percent (2 by default).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} limit=${LIMIT:-2} port=${PORT:-8901}
program=${PROGRAM:-target/release/tokenweir} lab=${LAB:-lab/target/release/tokenweir-lab}
: "${VLLM_RS:?the path of vllm-rs}" "${TOKENIZER:?a folder with tokenizer.json}"
work=$(mktemp -d)
"$program" sim --backends 1 --listen "127.0.0.1:$port" --blocks 8000 2> "$work/sim.log" &
sim=$!
trap 'kill "$sim" 2> /dev/null; rm -rf "$work"' EXIT
until curl -sf "http://127.0.0.1:$port/health" > /dev/null; do sleep 0.1; done

# Prompts of 256 words of four bytes, as `bench` generates them: 256 tokens of the simulator. All differ.
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

# A trace with arrivals at a constant rate: two draws of random arrivals differ by more than the tools do.
# vllm-rs draws the times between arrivals from a gamma distribution; --burstiness below makes it narrow.
constant_rate_trace() { # COUNT RATE
  python3 - "$1" "$2" << 'P'
import json, sys
count, rate = int(sys.argv[1]), int(sys.argv[2])
for number in range(count):
    print(json.dumps({"timestamp": number * 1000 // rate, "input_length": 256, "output_length": 64, "hash_ids": [number]}))
P
}
constant_rate_trace 300 20 > "$work/constant-rate.jsonl"

run_vllm_rs() { # NAME SEED COUNT PACE...
  local name=$1 seed=$2 count=$3; shift 3
  prompts "$seed" "$count" > "$work/prompts.jsonl"
  "$VLLM_RS" bench serve --backend vllm --base-url "http://127.0.0.1:$port" \
    --endpoint /v1/completions --model sim-model --tokenizer "$TOKENIZER" --dataset-name custom \
    --dataset-path "$work/prompts.jsonl" --custom-output-len 64 --num-prompts "$count" \
    --num-warmups 1 --seed "$seed" --ignore-eos --save-result --save-detailed --disable-tqdm \
    --result-dir "$work" --result-filename "$name.json" "$@" > "$work/$name.log" 2>&1 ||
    { tail -20 "$work/$name.log"; exit 1; }
}

run_tokenweir() { # NAME SEED COUNT PACE...
  local name=$1 seed=$2 count=$3; shift 3
  "$lab" bench "http://127.0.0.1:$port" --prompt-tokens 256 --output-tokens 64 --seed "$seed" \
    --requests "$count" --json "$@" > "$work/$name.json" || echo "note: $name reports that its result is not valid"
}

for round in $(seq "$rounds"); do
  for tool in vllm_rs tokenweir; do
    if [ "$tool" = vllm_rs ]; then
      run_vllm_rs "vllm_rs-closed-$round" "$((round * 10))" 400 --request-rate inf --max-concurrency 8
      run_vllm_rs "vllm_rs-open-$round" "$((round * 10 + 1))" 300 --request-rate 20 --burstiness 1000000
    else
      run_tokenweir "tokenweir-closed-$round" "$((round * 10))" 400 --concurrency 8
      run_tokenweir "tokenweir-open-$round" "$((round * 10 + 1))" 300 --trace "$work/constant-rate.jsonl"
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

def of_vllm_rs(run):
    gaps = [gap for gaps in run["itls"] for gap in gaps]
    return [quantile(run["ttfts"], 0.5), quantile(run["ttfts"], 0.99), quantile(gaps, 0.5), quantile(gaps, 0.99)]

def of_tokenweir(run):
    latencies = run["latencies"]
    ttft, itl = latencies["service_ttft"], latencies["tbt"]
    return [ttft["p50"], ttft["p99"], itl["p50"], itl["p99"]]

worst = 0.0
for pace, name in [("closed", "closed loop, concurrency 8"), ("open", "open loop, constant rate of 20/s")]:
    load = lambda tool, round: json.loads((work / f"{tool}-{pace}-{round}.json").read_text())
    a = [of_vllm_rs(load("vllm_rs", round)) for round in range(1, rounds + 1)]
    b = [of_tokenweir(load("tokenweir", round)) for round in range(1, rounds + 1)]
    print(f"{name}, medians of {rounds} rounds (minimum to maximum)")
    for index, metric in enumerate(["TTFT p50", "TTFT p99", "ITL p50", "ITL p99"]):
        column = lambda runs: [run[index] * 1e3 for run in runs]
        x, y = column(a), column(b)
        difference = (median(y) / median(x) - 1) * 100
        worst = max(worst, abs(difference))
        shown = lambda values: f"{median(values):8.3f} ms ({min(values):.3f} to {max(values):.3f})"
        print(f"  {metric}  vllm-rs {shown(x)}   tokenweir {shown(y)}   {difference:+.2f} %")
print(f"largest difference: {worst:.2f} %")
sys.exit(worst > limit)
P

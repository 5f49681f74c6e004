"""The replicas of tests/diagnose_agrees.sh, under load, and what two tools say of each."""

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

# name: what the replica has, and its load.
REPLICAS = {
    "healthy": ([], ["--users", "8", "--output-tokens", "100"]),
    "KV cache too small": (["--blocks", "160", "--max-num-seqs", "32"], ["--users", "24", "--prompt-tokens", "200-400", "--output-tokens", "200-400"]),
    "too few sequences": (["--max-num-seqs", "4"], ["--users", "40", "--output-tokens", "100"]),
    "idle": ([], None),
}
# Rules of vllm-doctor, and the verdicts that name the same.
SAME = {
    "kv_cache_pressure": {"kv_thrashing", "kv_backlog"},
    "preemption_pressure": {"kv_thrashing"},
    "queue_pressure": {"kv_thrashing", "kv_backlog", "prefill_starvation", "decode_starvation"},
    "queue_latency": {"kv_thrashing", "kv_backlog", "prefill_starvation", "decode_starvation"},
}
# Where they may differ, and why.
WRITTEN_DOWN = {
    "prefix_cache_efficiency": "it fires at any hit rate below 50 %, also where prompts have nothing in common; ours needs a gateway, which knows what was sent before",
}
SETTLING, WATCHING = 8, 60


def watch(program: str, other: str, name: str) -> tuple[str, list[str], list[str]]:
    """What vllm-doctor finds, and what `tokenweir diagnose` does."""
    has, load = REPLICAS[name]
    simulator = subprocess.Popen([program, "sim", "--listen", "127.0.0.1:0", "--replicas", "1", *has], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    url = next(found.group(0) for line in simulator.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
    threading.Thread(target=lambda: [None for _ in simulator.stderr], daemon=True).start()
    bench = load and subprocess.Popen([program, "bench", url, "--for", f"{SETTLING + WATCHING + 10}s", "--max-lag", "1h", *load], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(SETTLING)
        ours = subprocess.Popen([program, "diagnose", "--backend", url, "--for", f"{WATCHING}s", "--json"], stdout=subprocess.PIPE, text=True)
        time.sleep(WATCHING * 3 / 4)
        theirs = subprocess.run([other, "diagnose", f"{url}/metrics", "-o", "json"], capture_output=True, text=True, check=False)
        found = [check["id"] for check in json.loads(theirs.stdout)["checks"] if check["finding"]]
        return name, found, [verdict["verdict"] for verdict in json.loads(ours.communicate()[0])["verdicts"]]
    finally:
        for process in filter(None, (bench, simulator)):
            process.terminate()
            process.wait()


def differences(theirs: list[str], ours: list[str]) -> list[str]:
    """What one of them names and the other does not, where nothing is written down about it."""
    alone = [rule for rule in theirs if rule not in WRITTEN_DOWN and not SAME.get(rule, set()) & set(ours)]
    covered = set().union(*(SAME.get(rule, set()) for rule in theirs))
    return alone + [verdict for verdict in ours if verdict not in covered]


def main() -> None:
    program, other = sys.argv[1:]
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda name: watch(program, other, name), REPLICAS))
    print("| replica | vllm-doctor 0.6.0 | tokenweir diagnose |\n|---|---|---|")
    for name, theirs, ours in results:
        print(f"| {name} | {', '.join(theirs) or 'nothing'} | {', '.join(ours) or 'nothing'} |")
    for rule, why in WRITTEN_DOWN.items():
        print(f"\n{rule}: {why}.")
    if wrong := {name: alone for name, theirs, ours in results if (alone := differences(theirs, ours))}:
        sys.exit(f"\n!! only one of them names: {wrong}")


if __name__ == "__main__":
    main()

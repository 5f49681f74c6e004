"""Runs simulated backends under load and compares the findings of two tools. See tests/diagnose_agrees.sh."""

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

# name: (options of the simulator, options of the load generator).
BACKENDS = {
    "healthy": ([], ["--concurrency", "8", "--output-tokens", "100"]),
    "KV cache too small": (["--blocks", "160", "--max-num-seqs", "32"], ["--concurrency", "24", "--prompt-tokens", "200-400", "--output-tokens", "200-400"]),
    "too few sequences": (["--max-num-seqs", "4"], ["--concurrency", "40", "--output-tokens", "100"]),
    "idle": ([], None),
}
# Rules of vllm-doctor and the equivalent verdicts.
EQUIVALENT = {
    "kv_cache_pressure": {"kv_thrashing", "kv_backlog"},
    "preemption_pressure": {"kv_thrashing"},
    "queue_pressure": {"kv_thrashing", "kv_backlog", "prefill_starvation", "decode_starvation"},
    "queue_latency": {"kv_thrashing", "kv_backlog", "prefill_starvation", "decode_starvation"},
}
# Known differences and their reasons.
KNOWN_DIFFERENCES = {
    "prefix_cache_efficiency": "it fires at any hit rate below 50 %, even if prompts share no prefix; the verdict of tokenweir needs a gateway, which knows the prompts sent before",
}
WARMUP_SECONDS, MEASUREMENT_SECONDS = 8, 60


def measure(program: str, vllm_doctor: str, name: str) -> tuple[str, list[str], list[str]]:
    """The name, the rules that vllm-doctor reports, and the verdicts of `tokenweir diagnose`."""
    options, load = BACKENDS[name]
    simulator = subprocess.Popen([program, "sim", "--listen", "127.0.0.1:0", "--backends", "1", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    url = next(found.group(0) for line in simulator.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
    threading.Thread(target=lambda: [None for _ in simulator.stderr], daemon=True).start()
    bench = load and subprocess.Popen([program, "bench", url, "--duration", f"{WARMUP_SECONDS + MEASUREMENT_SECONDS + 10}s", "--max-lag", "1h", *load], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(WARMUP_SECONDS)
        diagnose = subprocess.Popen([program, "diagnose", "--backend", url, "--duration", f"{MEASUREMENT_SECONDS}s", "--json"], stdout=subprocess.PIPE, text=True)
        time.sleep(MEASUREMENT_SECONDS * 3 / 4)
        doctor = subprocess.run([vllm_doctor, "diagnose", f"{url}/metrics", "-o", "json"], capture_output=True, text=True, check=False)
        rules = [check["id"] for check in json.loads(doctor.stdout)["checks"] if check["finding"]]
        return name, rules, [verdict["verdict"] for verdict in json.loads(diagnose.communicate()[0])["verdicts"]]
    finally:
        for process in filter(None, (bench, simulator)):
            process.terminate()
            process.wait()


def differences(rules: list[str], verdicts: list[str]) -> list[str]:
    """Rules and verdicts that only one tool reports, without the known differences."""
    unmatched = [rule for rule in rules if rule not in KNOWN_DIFFERENCES and not EQUIVALENT.get(rule, set()) & set(verdicts)]
    covered = set().union(*(EQUIVALENT.get(rule, set()) for rule in rules))
    return unmatched + [verdict for verdict in verdicts if verdict not in covered]


def main() -> None:
    program, vllm_doctor = sys.argv[1:]
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda name: measure(program, vllm_doctor, name), BACKENDS))
    print("| backend | vllm-doctor 0.6.0 | tokenweir diagnose |\n|---|---|---|")
    for name, rules, verdicts in results:
        print(f"| {name} | {', '.join(rules) or 'nothing'} | {', '.join(verdicts) or 'nothing'} |")
    for rule, reason in KNOWN_DIFFERENCES.items():
        print(f"\n{rule}: {reason}.")
    if unmatched := {name: only for name, rules, verdicts in results if (only := differences(rules, verdicts))}:
        sys.exit(f"\n!! only one tool reports: {unmatched}")


if __name__ == "__main__":
    main()

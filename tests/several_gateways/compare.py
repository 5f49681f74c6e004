"""Compares what several gateways before the same simulated backends know of the caches, in real time: the prompts that each
sent itself, the exchange, or KV events.

    compare.py PROGRAM [--gateways 2,4] [--rounds 2] [--requests 1500] [--system-prompts 64] [--port 24100]

Each round runs all cases in turn with backends of empty caches. The load is a trace of prompts that share system prompts,
more of them than one cache holds; request i goes to gateway i mod K. Each case reports:

- goodput: share of requests with a first token within 1 s;
- cached: share of prompt tokens that the backends had cached, by their own counters;
- burst: greatest share of one backend among the requests of all gateways within 250 ms, of windows with at least 8
  requests (median over windows, and 99th percentile);
- CPU time of all gateways per request, and bytes of the exchange per decision. With few system prompts, every cache holds
  all of them, so the backends do the same work with and without the exchange, and the CPU times can be compared.
"""

import argparse
import collections
import datetime
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from metrics_page import Page, fetch
from servers import wait_until_ready

BACKENDS = 8
# The KV cache of one backend holds 10 system prompts.
CACHE_BLOCKS, BLOCK_TOKENS = 2_048, 16
SYSTEM_BLOCKS, TRACE_BLOCK_TOKENS = 6, 512
RATE = 40.0
TTFT = "1s"
WINDOW_SECONDS, LEAST_WINDOW_REQUESTS = 0.25, 8
# The case in which gateways know of each other's requests.
SHARED_VIEW = "exchange"
KEY = "0123456789abcdef0123456789abcdef"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write_trace(options: argparse.Namespace, folder: Path, gateways: int, seed: int) -> list[Path]:
    """Writes the requests of each gateway in the format of Mooncake."""
    draw = random.Random(seed)
    lines: list[list[str]] = [[] for _ in range(gateways)]
    now, unique = 0.0, options.system_prompts * SYSTEM_BLOCKS
    for number in range(options.requests):
        now += draw.expovariate(RATE)
        prompt = draw.randrange(options.system_prompts)
        blocks = [prompt * SYSTEM_BLOCKS + block for block in range(SYSTEM_BLOCKS)] + [unique]
        unique += 1
        tokens = SYSTEM_BLOCKS * TRACE_BLOCK_TOKENS + draw.randrange(64, 256)
        record = {"timestamp": now * 1e3, "input_length": tokens, "output_length": draw.randrange(16, 64), "hash_ids": blocks}
        lines[number % gateways].append(json.dumps(record))
    files = [folder / f"trace-{number}.jsonl" for number in range(gateways)]
    for file, own in zip(files, lines, strict=True):
        file.write_text("\n".join(own) + "\n")
    return files


class Case:
    """Backends, gateways and, for `exchange`, a Redis server. `KV events`: the backends publish them."""

    def __init__(self, options: argparse.Namespace, folder: Path, gateways: int, view: str) -> None:
        self.options, self.folder, self.gateways, self.view = options, folder, gateways, view
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = options.port
        self.cpu: list[float] = []

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "KEY": KEY})
        self.processes.append(process)
        return process

    def admin(self, number: int) -> str:
        return f"http://127.0.0.1:{self.port + 40 + number}"

    def run(self, traces: list[Path]) -> dict[str, float]:
        program, port = self.options.program, self.port
        try:
            events = ("--kv-events-port", "0") if self.view == "KV events" else ()
            self.start(
                program, "sim", "--backends", str(BACKENDS), "--listen", f"127.0.0.1:{port}", "--blocks", str(CACHE_BLOCKS),
                "--block-size", str(BLOCK_TOKENS), "--keep-alive", "60s", *events, log="sim.log",
            )
            view = "kv_events: { enabled: true }\n" if events else ""
            if self.view == SHARED_VIEW:
                self.start("redis-server", "--bind", "127.0.0.1", "--port", str(port + 60), "--save", "", log="redis.log")
                view = f"peer_exchange: {{ url: 'redis://127.0.0.1:{port + 60}', key: {{ env: KEY }} }}\n"
            backends = "".join(f"  - url: http://127.0.0.1:{port + number}\n" for number in range(BACKENDS))
            gateways = []
            for number in range(self.gateways):
                config = self.folder / f"gateway-{number}.yaml"
                config.write_text(
                    f"listen: 127.0.0.1:{port + 20 + number}\nadmin: 127.0.0.1:{port + 40 + number}\n"
                    f"backends:\n{backends}{view}log: {{ format: json, access_per_second: null }}\n"
                )
                gateways.append(self.start(program, "serve", "--config", str(config), log=f"gateway-{number}.log"))
            for number in range(self.gateways):
                wait_until_ready(f"{self.admin(number)}/readyz")
            if self.view == SHARED_VIEW:
                others = self.gateways - 1
                self.wait_for("exchange", lambda page: page.total("tokenweir_peer_gateways") >= others)
            elif events:
                state = "tokenweir_backend_kv_events_state"
                self.wait_for("KV events", lambda page: page.by(state, "state")["exact"] == BACKENDS)
            before = [cpu_seconds(process.pid) for process in gateways]
            benches = [
                subprocess.Popen(
                    [self.options.lab, "bench", f"http://127.0.0.1:{port + 20 + number}", "--trace", str(trace), "--ttft", TTFT,
                     "--salt", "1", "--warmup", "0", "--json", "--max-lag", "1s", "--save", str(self.folder / f"report-{number}.json")],
                    stdout=subprocess.DEVNULL, stderr=(self.folder / f"bench-{number}.log").open("wb"),
                )
                for number, trace in enumerate(traces)
            ]
            self.processes += benches
            for number, bench in enumerate(benches):
                if bench.wait() != 0:
                    log = (self.folder / f"bench-{number}.log").read_text()
                    raise SystemExit(f"the load generator failed with {bench.returncode}; is the machine busy? {log}")
            cpu = sum(cpu_seconds(process.pid) - start for process, start in zip(gateways, before, strict=True))
            return self.result(cpu)
        finally:
            for process in reversed(self.processes):
                process.terminate()
            for process in self.processes:
                process.wait(timeout=30)

    def wait_for(self, what: str, is_ready: Callable[[Page], bool]) -> None:
        """Waits until the metrics page of each gateway shows that the exchange or the KV events work."""
        for _ in range(200):
            if all(is_ready(fetch(self.admin(number))) for number in range(self.gateways)):
                return
            time.sleep(0.1)
        raise SystemExit(f"{what}: not ready at all gateways")

    def result(self, cpu: float) -> dict[str, float]:
        reports = [json.loads((self.folder / f"report-{number}.json").read_text()) for number in range(self.gateways)]
        counts = [report["counts"] for report in reports]
        requests = sum(count["served"] + count["failed"] + count["unfinished"] for count in counts)
        good = sum(count["good"] for count in counts)
        engines = [fetch(f"http://127.0.0.1:{self.port + number}") for number in range(BACKENDS)]
        queries = sum(page.total("vllm:prefix_cache_queries_total") for page in engines)
        hits = sum(page.total("vllm:prefix_cache_hits_total") for page in engines)
        pages = [fetch(self.admin(number)) for number in range(self.gateways)]
        decisions = sum((page.by("tokenweir_peer_decisions_total", "result") for page in pages), collections.Counter())
        messages = sum(page.by("tokenweir_peer_messages_total", "result")["sent"] for page in pages)
        # A gateway without the exchange does not have this metric.
        sent = sum(page.total("tokenweir_peer_sent_bytes_total") for page in pages) if decisions["sent"] else 0.0
        shares = self.burst_shares()
        return {
            "requests": requests,
            "goodput": good / requests,
            "cached": hits / queries,
            "burst p50": statistics.median(shares),
            "burst p99": sorted(shares)[math.ceil(len(shares) * 0.99) - 1],
            "CPU us/request": cpu / requests * 1e6,
            "bytes/decision": sent / decisions["sent"] if sent else 0.0,
            "messages/decision": messages / decisions["sent"] if sent else 0.0,
            "dropped": decisions["dropped"],
        }

    def burst_shares(self) -> list[float]:
        """The share of the busiest backend in each window with enough requests, over all gateways."""
        windows: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for number in range(self.gateways):
            for line in (self.folder / f"gateway-{number}.log").read_text().splitlines():
                record = json.loads(line)
                if (backend := record.get("backend")) and "duration_ms" in record:
                    end = datetime.datetime.fromisoformat(record["ts"].replace("Z", "+00:00")).timestamp()
                    start = end - record["duration_ms"] / 1e3
                    windows[int(start / WINDOW_SECONDS)][backend] += 1
        counts = [window for window in windows.values() if window.total() >= LEAST_WINDOW_REQUESTS]
        return [max(window.values()) / window.total() for window in counts] or [0.0]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("lab")
    parser.add_argument("--gateways", default="2,4")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1_500)
    parser.add_argument("--system-prompts", type=int, default=64)
    parser.add_argument("--port", type=int, default=24_100)
    options = parser.parse_args()
    cases = [(1, "own prompts"), (1, "KV events")]
    cases += [(int(count), view) for count in options.gateways.split(",") for view in ("own prompts", "KV events", SHARED_VIEW)]
    results: dict[tuple[int, str], list[dict[str, float]]] = {case: [] for case in cases}
    for seed in range(options.rounds):
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder)
                traces = write_trace(options, path, case[0], seed)
                results[case].append(Case(options, path, *case).run(traces))
            print(*case, {name: round(value, 3) for name, value in results[case][-1].items()}, file=sys.stderr, flush=True)
    names = list(next(iter(results.values()))[0])
    print("| gateways | knows | " + " | ".join(names) + " |\n|--:|---|" + "--:|" * len(names))
    medians = {}
    for case, runs in results.items():
        medians[case] = {name: statistics.median(run[name] for run in runs) for name in names}
        print(f"| {case[0]} | {case[1]} | " + " | ".join(f"{value:.3g}" for value in medians[case].values()) + " |")
    failures = []
    for count in {count for count, _ in cases if count > 1}:
        own, shared = medians[count, "own prompts"], medians[count, SHARED_VIEW]
        for name in ("goodput", "cached"):
            if shared[name] <= own[name]:
                failures.append(f"{count} gateways: the exchange does not improve {name}")
        # With an even distribution over 8 backends, the busiest one gets 0.25 to 0.5 of the requests of a window.
        if shared["burst p50"] > 0.5:
            failures.append(f"{count} gateways: requests of one moment go to the same backend")
    print("\n".join(failures), file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())

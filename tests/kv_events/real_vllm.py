"""Compares the cached tokens that two gateways predict from KV events with those that real vLLM servers report.

    real_vllm.py GATEWAY ENGINE_FOLDER FIRST_PORT [--requests N] [--front-end python|rust] [--blocks N] [--without-events]

GATEWAY is the program. ENGINE_FOLDER has serve.sh and stop.sh, which start one vLLM server each. Two servers run at
FIRST_PORT and after it. A third client sends requests to the servers without a gateway. Then one server is killed and
started again, its cache is cleared, and a gateway is stopped for a while so that it falls behind. The script fails if
a bound is missed. With --without-events the gateways do not use events, for comparison: only the first load runs.
"""

import argparse
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 32
STATES = ("off", "gap", "from_here", "exact")


def get(url: str, body: Any = None, headers: dict[str, str] | None = None, seconds: float = 60) -> Any:
    """Returns the JSON document, or the text, at a URL."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=seconds) as response:
        text = response.read()
    return json.loads(text) if text else None


class Fleet:
    """Two vLLM servers and two gateways."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.ports = [options.first_port, options.first_port + 1]
        self.gateways: list[tuple[subprocess.Popen[bytes], str, str]] = []

    def environment(self) -> dict[str, str]:
        rust = {"CLI": "1", "VLLM_USE_RUST_FRONTEND": "1"} if self.options.front_end == "rust" else {}
        return {**os.environ, "NICE": "0", "WAIT": "600", "RUN": str(self.work), "VLLM_SERVER_DEV_MODE": "1", **rust}

    def start_server(self, port: int) -> None:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{port + 100}",
            "replay_endpoint": f"tcp://*:{port + 200}",
        }
        arguments = ["--kv-events-config", json.dumps(events), "--num-gpu-blocks-override", str(self.options.blocks)]
        command = [self.options.engine / "serve.sh", str(port), *arguments]
        subprocess.run(command, check=True, env=self.environment(), stdout=subprocess.DEVNULL)

    def stop_server(self, port: int) -> None:
        subprocess.run([self.options.engine / "stop.sh", str(port)], env=self.environment(), stdout=subprocess.DEVNULL)

    def start_gateway(self, number: int) -> None:
        listen, admin = (self.options.first_port + 20 + 2 * number + offset for offset in (0, 1))
        backends = "\n".join(f"  - {{ url: 'http://127.0.0.1:{port}', name: gpu-{port} }}" for port in self.ports)
        config = self.work / f"gateway-{number}.yaml"
        config.write_text(
            f"listen: 127.0.0.1:{listen}\nadmin: 127.0.0.1:{admin}\nbackends:\n{backends}\n"
            f"kv_events: {{ enabled: {str(not self.options.without_events).lower()} }}\n"
            "routing: { decision_log_size: 4096 }\n"
        )
        log = (self.work / f"gateway-{number}.log").open("wb")
        command = [self.options.gateway, "serve", "--config", config]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self.gateways.append((process, f"http://127.0.0.1:{listen}", f"http://127.0.0.1:{admin}"))

    def events(self, admin: str) -> dict[str, Any]:
        """For each backend, what the gateway reports about its KV events."""
        backends = get(f"{admin}/status")["backends"]
        return {backend["backend"]: backend["kv_events"] for backend in backends}

    def wait_state(self, backends: list[str], state: str, seconds: float) -> float:
        """Waits until all gateways report `state` for the KV events of these backends. Returns the seconds."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            try:
                states = [self.events(admin)[backend]["state"] for _, _, admin in self.gateways for backend in backends]
                if all(found == state for found in states):
                    return time.monotonic() - began
            except (OSError, TypeError):
                pass  # No such state yet: the gateway is starting, or does not use KV events.
            time.sleep(0.05)
            if self.options.without_events and get(f"{self.gateways[-1][2]}/status")["ready"]:
                return 0.0
        raise SystemExit(f"no state {state} after {seconds} s: {[self.events(a) for _, _, a in self.gateways]}")

    def stop(self) -> None:
        for process, _, _ in self.gateways:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for port in self.ports:
            self.stop_server(port)


def words(source: random.Random, count: int) -> str:
    """Text of about `count` words."""
    return " ".join("".join(source.choice("abcdefghijklmnop") for _ in range(source.randint(2, 8))) for _ in range(count))


class Workload:
    """Documents with a common beginning, each with some questions, so that prompts share prefixes and repeat."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        system = words(source, 60)
        documents = [f"{system} {words(source, source.randint(40, 250))}" for _ in range(10)]
        self.prompts = [f"{document} {words(source, 8)}" for document in documents for _ in range(3)]

    def body(self) -> dict[str, Any]:
        message = {"role": "user", "content": self.source.choice(self.prompts)}
        return {"model": "tiny", "messages": [message], "max_tokens": self.source.choice([4, 40]), "temperature": 0}


def run(fleet: Fleet, count: int, seed: int) -> list[tuple[str, int, int]]:
    """Sends requests. Returns, for those through a gateway, the source of the prediction, and predicted and reported
    cached tokens."""
    source = random.Random(seed)
    workload = Workload(random.Random(1))
    plan = []
    for number in range(count):
        target = source.choice(["gateway", "gateway", "gateway", "server"])
        plan.append((number, target, source.randrange(2), workload.body()))

    def send(item: tuple[int, str, int, Any]) -> tuple[str, str] | None:
        number, target, which, body = item
        if target == "server":
            get(f"http://127.0.0.1:{fleet.ports[which]}/v1/chat/completions", body)
            return None
        _, url, admin = fleet.gateways[which]
        request_id = f"kv-{seed}-{number}"
        get(f"{url}/v1/chat/completions", body, {"x-request-id": request_id})
        return admin, request_id

    with concurrent.futures.ThreadPoolExecutor(fleet.options.concurrency) as pool:
        sent = [found for found in pool.map(send, plan) if found]
    results = []
    for admin, request_id in sent:
        decision = get(f"{admin}/decisions/{request_id}")
        predicted, actual = decision["predicted"], decision["actual"]
        if actual["cached_tokens"] is not None:
            results.append((predicted["cached_source"], int(predicted["cached_tokens"]), actual["cached_tokens"]))
    return results


def report(title: str, results: list[tuple[str, int, int]]) -> dict[str, float]:
    """Prints the errors of predictions by source. Returns the share of predictions that are right to one block."""
    shares = {}
    for name in ("exact", "approximate"):
        errors = sorted(abs(predicted - actual) for source, predicted, actual in results if source == name)
        if errors:
            right = sum(error <= BLOCK_TOKENS for error in errors) / len(errors)
            shares[name] = right
            print(f"{title}: {name}: {len(errors)} requests, {100 * right:.1f} % within one block, "
                  f"mean error {sum(errors) / len(errors):.1f} tokens, largest {errors[-1]}", flush=True)
    return shares


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gateway", type=Path)
    parser.add_argument("engine", type=Path)
    parser.add_argument("first_port", type=int)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--front-end", choices=["python", "rust"], default="python")
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--without-events", action="store_true")
    fleet = Fleet(parser.parse_args(), Path(tempfile.mkdtemp(prefix="kv-events-")))
    failures = []
    try:
        for port in fleet.ports:
            fleet.start_server(port)
        names = [f"gpu-{port}" for port in fleet.ports]
        for number in range(2):
            fleet.start_gateway(number)
        print(f"states exact after {fleet.wait_state(names, 'exact', 30):.1f} s", flush=True)
        results = run(fleet, fleet.options.requests, 1)
        shares = report("load", results)
        if fleet.options.without_events:
            return
        exact = sum(source == "exact" for source, _, _ in results)
        print(f"{exact} of {len(results)} predictions are exact")
        if shares.get("exact", 0) < 0.99 or exact < len(results) / 4:
            failures.append("exact predictions")
        victim = fleet.ports[0]
        fleet.stop_server(victim)
        print(f"gap after the end of a server: {fleet.wait_state(names[:1], 'gap', 20):.2f} s")
        fleet.start_server(victim)
        print(f"exact after its restart: {fleet.wait_state(names[:1], 'exact', 20):.2f} s", flush=True)
        shares = report("after the restart", run(fleet, fleet.options.requests // 4, 2))
        if shares.get("exact", 1) < 0.99:
            failures.append("after a restart")
        for port in fleet.ports:
            get(f"http://127.0.0.1:{port}/reset_prefix_cache", {})
        # An idle engine publishes the events of its last blocks only with its next step.
        for port in fleet.ports:
            get(f"http://127.0.0.1:{port}/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1})
        shares = report("after reset_prefix_cache", run(fleet, fleet.options.requests // 4, 3))
        if shares.get("exact", 1) < 0.99:
            failures.append("after a cleared cache")
        process, _, _ = fleet.gateways[0]
        process.send_signal(signal.SIGSTOP)
        for port in fleet.ports:
            for _ in range(20):
                get(f"http://127.0.0.1:{port}/v1/chat/completions", Workload(random.Random()).body())
        process.send_signal(signal.SIGCONT)
        print(f"exact after a stopped gateway goes on: {fleet.wait_state(names, 'exact', 30):.2f} s")
        shares = report("after a stop of a gateway", run(fleet, fleet.options.requests // 4, 4))
        if shares.get("exact", 1) < 0.99:
            failures.append("after a stop of a gateway")
        for _, _, admin in fleet.gateways:
            print(json.dumps(fleet.events(admin)))
    finally:
        fleet.stop()
    if failures:
        sys.exit(f"failed: {failures}; logs in {fleet.work}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs an instrumented program under load to record a profile for its compiler:

    packaging/train.py PROGRAM LAB FOLDER

The load is `tokenweir-lab bench` (LAB) and small requests of this script, the backends are `tokenweir sim`, and all
telemetry is on. Profiles of the gateway go to FOLDER/gateway, those of the other processes to FOLDER/others.
It uses loopback only and takes about two minutes.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from http.client import HTTPConnection
from pathlib import Path

# Numbers of backends. Of 80 backends, the policy evaluates only a sample for each request.
FLEETS = (1, 80)
SMALL_REQUESTS = 6_000
SMALL_CONNECTIONS = 8
# Simulated seconds per real second of the simulated backends.
TIME_SCALE = 20
CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends: [{backends}]
log: {{ access: true, format: json }}
tracing: {{ endpoint: "http://{collector}", protocol: http/protobuf }}
"""
ADDRESS = re.compile(r"http://(127\.0\.0\.1:\d+)")


def profile_environment(folder: Path) -> dict[str, str]:
    """The environment of a program that writes its profile to the folder."""
    return {**os.environ, "LLVM_PROFILE_FILE": str(folder / "%p.profraw")}


def start(*command: str, until: str, folder: Path, count: int = 1) -> tuple[subprocess.Popen, list[str]]:
    """Starts a program and reads its standard error until `count` lines contained `until`.

    Returns the process and the addresses in these lines.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=profile_environment(folder))
    lines, addresses = [], []
    for line in process.stderr:
        lines.append(line)
        addresses += ADDRESS.findall(line)
        count -= until in line
        if count == 0:
            break
    else:
        sys.exit(f"{' '.join(command)} ended with {process.wait()}:\n{''.join(lines)}")
    # A full pipe would block the program.
    threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()
    return process, addresses


def terminate(process: subprocess.Popen) -> None:
    """Ends a program with SIGTERM: it writes its profile when it exits."""
    process.terminate()
    process.wait(60)


def send_small_requests(address: str, count: int) -> None:
    """Sends small requests without streams, one after the other on one connection. Exits if one fails."""
    connection = HTTPConnection(address, timeout=30)
    body = {"model": "sim-model", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
    for _ in range(count):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            sys.exit(f"a small request was answered with {response.status}")


def bench(lab: str, address: str, *arguments: str) -> None:
    command = [lab, "bench", f"http://{address}", "--max-lag", "1h", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def train(program: str, lab: str, backends: int, folder: Path, scratch: Path) -> None:
    """Runs a gateway in front of this many simulated backends with small requests, streams and long prompts."""
    others = folder / "others"
    simulator, addresses = start(program, "sim", "--listen", "127.0.0.1:0", "--backends", str(backends), "--time-scale", str(TIME_SCALE), until="simulated", folder=others, count=backends)
    file = scratch / "tokenweir.yaml"
    urls = ", ".join(f'{{ url: "http://{address}" }}' for address in addresses)
    file.write_text(CONFIGURATION.format(backends=urls, collector=addresses[0]))
    gateway, addresses = start(program, "serve", "--config", str(file), until="policy", folder=folder / "gateway")
    threads = [threading.Thread(target=send_small_requests, args=(addresses[0], SMALL_REQUESTS // SMALL_CONNECTIONS)) for _ in range(SMALL_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for api in ("chat", "completions"):
        bench(lab, addresses[0], "--api", api, "--concurrency", "32", "--requests", "400", "--output-tokens", "100-300")
    bench(lab, addresses[0], "--concurrency", "8", "--requests", "100", "--prompt-tokens", "2000-6000", "--output-tokens", "5")
    terminate(gateway)
    terminate(simulator)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        for backends in FLEETS:
            train(sys.argv[1], sys.argv[2], backends, Path(sys.argv[3]), Path(name))

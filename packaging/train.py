#!/usr/bin/env python3
"""Leads a program through what requests do, so that its compiler can see which ways they take:

    packaging/train.py PROGRAM FOLDER

The program's own simulator stands behind it and its own generator of load before it, with all
telemetry on. What was seen of the gateway comes to FOLDER/gateway, the rest to FOLDER/others. Loopback
only; about two minutes.
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

# One that is looked at whole for each request, and one of which a short list is made.
FLEETS = (1, 80)
SMALL_REQUESTS = 6_000
SMALL_CONNECTIONS = 8
# The simulator's steps are this much faster than a GPU's.
FASTER = 20
CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends: [{replicas}]
log: {{ access: true, format: json }}
tracing: {{ endpoint: "http://{collector}", protocol: http/protobuf }}
"""
ADDRESS = re.compile(r"http://(127\.0\.0\.1:\d+)")


def seen_in(folder: Path) -> dict[str, str]:
    """The environment of a program that is to leave there what was seen of it."""
    return {**os.environ, "LLVM_PROFILE_FILE": str(folder / "%p.profraw")}


def start(*command: str, until: str, folder: Path, count: int = 1) -> tuple[subprocess.Popen, list[str]]:
    """Starts it; the addresses that it tells, up to and with so many lines that have `until`."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=seen_in(folder))
    said, found = [], []
    for line in process.stderr:
        said.append(line)
        found += ADDRESS.findall(line)
        count -= until in line
        if count == 0:
            break
    else:
        sys.exit(f"{' '.join(command)} ended with {process.wait()}:\n{''.join(said)}")
    # What nobody reads would stop it.
    threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()
    return process, found


def end(process: subprocess.Popen) -> None:
    """What was seen is written when a program ends by itself."""
    process.terminate()
    process.wait(60)


def ask(address: str, count: int) -> None:
    """Small requests for whole answers, one after another over one connection."""
    connection = HTTPConnection(address, timeout=30)
    body = {"model": "sim-model", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
    for _ in range(count):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            sys.exit(f"a small request was answered with {answer.status}")


def bench(program: str, address: str, folder: Path, *arguments: str) -> None:
    command = [program, "bench", f"http://{address}", "--max-lag", "1h", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=seen_in(folder))


def lead(program: str, replicas: int, folder: Path, scratch: Path) -> None:
    """Leads a gateway in front of so many replicas through small requests, streams and prompts."""
    others = folder / "others"
    simulator, addresses = start(program, "sim", "--listen", "127.0.0.1:0", "--replicas", str(replicas), "--time-scale", str(FASTER), until="simulated", folder=others, count=replicas)
    file = scratch / "tokenweir.yaml"
    urls = ", ".join(f'{{ url: "http://{address}" }}' for address in addresses)
    file.write_text(CONFIGURATION.format(replicas=urls, collector=addresses[0]))
    gateway, addresses = start(program, "serve", "--config", str(file), until="policy", folder=folder / "gateway")
    asking = [threading.Thread(target=ask, args=(addresses[0], SMALL_REQUESTS // SMALL_CONNECTIONS)) for _ in range(SMALL_CONNECTIONS)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    for api in ("chat", "completions"):
        bench(program, addresses[0], others, "--api", api, "--users", "32", "--requests", "400", "--output-tokens", "100-300")
    bench(program, addresses[0], others, "--users", "8", "--requests", "100", "--prompt-tokens", "2000-6000", "--output-tokens", "5")
    end(gateway)
    end(simulator)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        for replicas in FLEETS:
            lead(sys.argv[1], replicas, Path(sys.argv[2]), Path(name))

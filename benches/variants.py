#!/usr/bin/env python3
"""Measures the CPU time of a small request by protocol, features and number of backends, relative to HTTP/1.1 with one
backend:

    benches/variants.py PROGRAM [ROUNDS [CORE,CORE]]

The gateway has all telemetry and runs on the first core (0). h2load, `tokenweir sim` and Redis run on the second core
(1). In each round, each variant is measured once. Needs h2load (nghttp2-client), redis-server, openssl and taskset.
Takes about a minute for each round.
"""

import hashlib
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM, ROUNDS = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
CORES = (sys.argv[3] if len(sys.argv) > 3 else "0,1").split(",")
BACKENDS, REQUESTS, TENANTS = 1_000, 8_000, 4
ADDRESS = re.compile(r'"clients":"(https?://[^/]+)/v1"')
# The prompt is longer than one block of KV cache, so that KV events describe it.
BODY = '{"model":"sim-model","max_tokens":1,"messages":[{"role":"user","content":"%s"}]}' % ("What is a good word? " * 24)
# The name of each variant, with its number of backends, its configuration, and its arguments of h2load.
VARIANTS = {
    "HTTP/1.1, 1 backend": (1, "", ["--h1"]),
    "HTTP/2": (1, "", []),
    "HTTP/1.1, TLS": (1, "{tls}", ["--h1"]),
    "HTTP/2, TLS": (1, "{tls}", []),
    "4 tenants": (1, "{keys}", ["--h1"]),
    "KV events": (1, "{events}", ["--h1"]),
    "exchange": (1, "{exchange}", ["--h1"]),
    "128 backends": (128, "", ["--h1"]),
    "128 backends, 4 tenants, KV events, exchange": (128, "{keys}{events}{exchange}", ["--h1"]),
    "1,000 backends": (1_000, "", ["--h1"]),
}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(folder, core, until, *command):
    """Starts a program on a core. Returns it and the line of its output that contains `until`."""
    output = folder / "output"
    output.unlink(missing_ok=True)
    with output.open("w") as file:
        # The standard output of the gateway is its access log.
        stdout = subprocess.DEVNULL if "serve" in command else file
        process = subprocess.Popen(["taskset", "-c", CORES[core], *command], stdout=stdout, stderr=file)
    while process.poll() is None:
        for line in output.read_text().splitlines():
            if until in line:
                return process, line
        time.sleep(0.1)
    sys.exit(f"{command} ended with {process.returncode}:\n{output.read_text()}")


def cpu_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measure(folder, first_backend, count, extra, options, parts):
    """CPU time of the gateway for a request in microseconds, with `count` backends and the configuration `extra`."""
    backends = ", ".join(f'{{ url: "http://127.0.0.1:{first_backend + n}" }}' for n in range(count))
    scrape = "scrape: { min_interval: 1m, max_interval: 1m }\n" if count > 16 else ""
    file, log = folder / "gateway.yaml", "log: { access: true, format: json }"
    text = f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: [{backends}]\nusage: passive\n{log}\nadmission: {{ enabled: false }}\n{scrape}"
    if "{events}" not in extra:
        text += "kv_events: { enabled: false }\n"
    file.write_text(text + f'tracing: {{ endpoint: "http://127.0.0.1:{first_backend}", protocol: http/protobuf }}\n' + extra.format(**parts))
    gateway, line = start(folder, 0, '"clients":', PROGRAM, "serve", "--config", str(file))
    try:
        time.sleep(1)
        load = ["h2load", "-t1", "-c16", "-d", str(folder / "body"), "-H", "content-type: application/json", *options]
        load += ["-H", "authorization: Bearer key-0"] if "{keys}" in extra else []
        load += [ADDRESS.search(line)[1] + "/v1/chat/completions"]
        for requests in (REQUESTS // 8, REQUESTS):
            before = cpu_seconds(gateway)
            output = subprocess.run(["taskset", "-c", CORES[1], *load, "-n", str(requests)], capture_output=True, text=True, check=True).stdout
            assert f"{requests} 2xx" in output, output
        return (cpu_seconds(gateway) - before) / REQUESTS * 1e6
    finally:
        gateway.terminate()
        gateway.wait()


def main():
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), []
        (folder / "body").write_text(BODY)
        hashes = [hashlib.sha256(f"key-{n}".encode()).hexdigest() for n in range(TENANTS)]
        tenants = "".join(f'  - {{ name: tenant-{n}, keys: [{{ name: a, hash: "sha256:{value}" }}] }}\n' for n, value in enumerate(hashes))
        (folder / "keys.yaml").write_text(f"tenants:\n{tenants}")
        (folder / "peers").write_text("k" * 32)
        (folder / "peers").chmod(0o600)
        pair = ["-keyout", folder / "key", "-out", folder / "certificate", "-subj", "/CN=localhost", "-days", "2"]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *pair], check=True, capture_output=True)
        redis, first = free_port(), 20_000
        parts = {
            "tls": f"tls: {{ cert: {folder}/certificate, key: {folder}/key }}\n",
            "keys": f"access: {{ keys_file: {folder}/keys.yaml }}\n",
            "events": "kv_events: { enabled: true }\n",
            "exchange": f'peer_exchange: {{ url: "redis://127.0.0.1:{redis}", key: {{ file: {folder}/peers }} }}\n',
        }
        sim = ["sim", "--listen", f"127.0.0.1:{first}", "--backends", str(BACKENDS), "--time-scale", "1000"]
        try:
            sim += ["--kv-events-port", str(first + BACKENDS), "--kv-events-replay-port", str(first + 2 * BACKENDS)]
            started.append(start(folder, 1, f":{first + BACKENDS - 1},", PROGRAM, *sim)[0])
            redis_options = ["--port", str(redis), "--save", "", "--bind", "127.0.0.1"]
            started.append(start(folder, 1, "Ready to accept", "redis-server", *redis_options)[0])
            rounds = []
            for number in range(ROUNDS):
                rounds.append([measure(folder, first, *variant, parts) for variant in VARIANTS.values()])
                print(f"round {number + 1}: {[round(value, 1) for value in rounds[-1]]}", file=sys.stderr)
        finally:
            for process in started:
                process.terminate()
                process.wait()
        print("| variant | µs | ÷ HTTP/1.1, 1 backend (range) |\n|---|--:|--:|")
        for index, variant in enumerate(VARIANTS):
            values = [values[index] for values in rounds]
            ratios = sorted(values[index] / values[0] for values in rounds)
            print(f"| {variant} | {statistics.median(values):.1f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f}) |")


main()

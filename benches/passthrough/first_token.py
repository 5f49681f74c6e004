#!/usr/bin/env python3
"""Measures how much a proxy delays the first token: the gateway, and a minimal proxy built with hyper.

It sends one request at a time, each on a new connection: to the backend directly, through hyper, through the
gateway, and so on in turn, so that changes of the machine's speed affect all three equally.

    cargo bench --bench passthrough --no-run    # prints the path of BENCH, which contains the hyper proxy
    benches/passthrough/first_token.py GATEWAY BENCH

In the first run the backend writes the response head and the first chunk at once, in the second run 3 ms
apart, as after a prefill. It prints the added median and p99 in µs, of 600 requests each. Needs taskset.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median, quantiles

REQUESTS = 600
PREFILLS = (0.0, 0.003)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{%s},"finish_reason":%s}]}\n\n'
BODY = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"Hello"}]}'
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
PAGES = {b"/v1/models": b'{"data":[{"id":"tiny","owned_by":"vllm"}]}', b"/version": b'{"version":"0.33.0"}'}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


FIRST = chunk(EVENT % (b'"content":"first"', b"null"))
REST = chunk(EVENT % (b"", b'"stop"')) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Backend:
    """A backend that answers every chat request with the same stream."""

    def __init__(self) -> None:
        self.prefill = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, connection.makefile("rb") as lines:
            while request := lines.readline():
                length = 0
                while (line := lines.readline().lower()) not in (b"\r\n", b""):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                lines.read(length)
                path = request.split()[1]
                if path == b"/v1/chat/completions":
                    self.send_stream(connection)
                else:
                    page = PAGES.get(path, b"")
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page))

    def send_stream(self, connection: socket.socket) -> None:
        connection.sendall(HEAD)
        if self.prefill:
            time.sleep(self.prefill)
        connection.sendall(FIRST)
        time.sleep(0.001)
        connection.sendall(REST)


def first_token(port: int) -> float:
    """Microseconds from the request to the first token."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin, received = time.perf_counter(), b""
        connection.sendall(REQUEST % (len(BODY), BODY))
        while b'"first"' not in received:
            received += connection.recv(65536) or sys.exit(f"a stream was cut: {received!r}")
        elapsed = time.perf_counter() - begin
        while b"[DONE]" not in received:
            received += connection.recv(65536)
    return elapsed * 1e6


def start(command: list[str], pattern: str, **environment: str) -> tuple[subprocess.Popen, int]:
    """Starts a program with one worker thread on core 0. Returns it and the port that it prints."""
    environment = {"PATH": os.environ["PATH"], "TOKIO_WORKER_THREADS": "1", **environment}
    process = subprocess.Popen(
        ["taskset", "-c", "0", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    port = next((int(found[1]) for line in process.stdout if (found := re.search(pattern, line))), None)
    # A full pipe would block the program.
    threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True).start()
    return process, port or sys.exit(f"{command[0]} ended with {process.wait()}")


def main(gateway: str, bench: str) -> None:
    os.sched_setaffinity(0, {1})
    backend = Backend()
    file = Path(tempfile.mkdtemp()) / "tokenweir.yaml"
    url = f"http://127.0.0.1:{backend.port}"
    file.write_text(f'listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nusage: passive\nbackends: [{{ url: "{url}" }}]\n')
    hyper, hyper_port = start([bench, "--bench"], r":(\d+)$", PASSTHROUGH_FLOOR=f"127.0.0.1:{backend.port}")
    gateway_process, gateway_port = start([gateway, "serve", "--config", str(file)], r'"clients":"http://127\.0\.0\.1:(\d+)')
    try:
        time.sleep(1)
        for backend.prefill in PREFILLS:
            by_port: dict[int, list[float]] = {backend.port: [], hyper_port: [], gateway_port: []}
            for _ in range(REQUESTS):
                for port, times in by_port.items():
                    times.append(first_token(port))
            direct, by_hyper, by_gateway = ((median(times), quantiles(times, n=100)[98]) for times in by_port.values())
            print(f"prefill {backend.prefill * 1e3:.0f} ms: added p50 / p99, µs: ", end="")
            for name, (p50, p99) in (("hyper", by_hyper), ("gateway", by_gateway)):
                print(f" {name} {p50 - direct[0]:.0f} / {p99 - direct[1]:.0f}", end="")
            print()
    finally:
        hyper.terminate()
        gateway_process.terminate()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])

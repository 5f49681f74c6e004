#!/usr/bin/env python3
"""How much later does a first token come through hyper, and through the gateway? One request at a time,
each on a new connection: to the replica, through hyper, through the gateway, and again, so that the
machine's mood falls on all three.

    cargo bench --bench passthrough --no-run        # prints the path of BENCH, which has hyper in it
    benches/passthrough/first_token.py GATEWAY BENCH

The replica writes the head of its answer and the first chunk at once, and then 3 ms apart, as after a
prefill. Medians, and p99, of 600 requests each, in µs. Needs taskset.
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


class Replica:
    """Answers every chat with the same stream."""

    def __init__(self) -> None:
        self.prefill = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.converse, args=(connection,), daemon=True).start()

    def converse(self, connection: socket.socket) -> None:
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
                    self.play(connection)
                else:
                    page = PAGES.get(path, b"")
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page))

    def play(self, connection: socket.socket) -> None:
        connection.sendall(HEAD)
        if self.prefill:
            time.sleep(self.prefill)
        connection.sendall(FIRST)
        time.sleep(0.001)
        connection.sendall(REST)


def first_token(port: int) -> float:
    """Microseconds from the request to it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun, came = time.perf_counter(), b""
        connection.sendall(REQUEST % (len(BODY), BODY))
        while b'"first"' not in came:
            came += connection.recv(65536) or sys.exit(f"a stream was cut: {came!r}")
        took = time.perf_counter() - begun
        while b"[DONE]" not in came:
            came += connection.recv(65536)
    return took * 1e6


def start(command: list[str], pattern: str, **environment: str) -> tuple[subprocess.Popen, int]:
    """Starts it with one worker on the first core; the port that it names."""
    environment = {"PATH": os.environ["PATH"], "TOKIO_WORKER_THREADS": "1", **environment}
    process = subprocess.Popen(
        ["taskset", "-c", "0", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    port = next((int(found[1]) for line in process.stdout if (found := re.search(pattern, line))), None)
    # What nobody reads would stop it.
    threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True).start()
    return process, port or sys.exit(f"{command[0]} ended with {process.wait()}")


def main(gateway: str, bench: str) -> None:
    os.sched_setaffinity(0, {1})
    replica = Replica()
    file = Path(tempfile.mkdtemp()) / "tokenweir.yaml"
    backend = f"http://127.0.0.1:{replica.port}"
    file.write_text(f'listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nusage: passive\nbackends: [{{ url: "{backend}" }}]\n')
    hyper, hypers = start([bench, "--bench"], r":(\d+)$", PASSTHROUGH_FLOOR=f"127.0.0.1:{replica.port}")
    ours, port = start([gateway, "serve", "--config", str(file)], r"clients +http://127\.0\.0\.1:(\d+)")
    try:
        time.sleep(1)
        for replica.prefill in PREFILLS:
            took: dict[int, list[float]] = {replica.port: [], hypers: [], port: []}
            for _ in range(REQUESTS):
                for to, times in took.items():
                    times.append(first_token(to))
            directly, by_hyper, by_us = ((median(times), quantiles(times, n=100)[98]) for times in took.values())
            print(f"prefill {replica.prefill * 1e3:.0f} ms: added p50 / p99, µs: ", end="")
            for name, of in (("hyper", by_hyper), ("gateway", by_us)):
                print(f" {name} {of[0] - directly[0]:.0f} / {of[1] - directly[1]:.0f}", end="")
            print()
    finally:
        hyper.terminate()
        ours.terminate()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])

#!/usr/bin/env python3
"""Measures the memory of the gateway for each stream whose client does not read.

A backend in this process sends endless streams. READERS clients each request a stream and read nothing. The
script reads the gateway's resident memory before, and again when it no longer grows.

    tests/slow_readers.py target/release/tokenweir [--readers 1000] [--max-kib 512] [--tls]

It prints KiB per stream, and fails if they exceed --max-kib. It takes about 20 s.
"""

import argparse
import asyncio
import pathlib
import re
import resource
import ssl
import subprocess
import sys
import tempfile
import time

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT) * 100
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    b'content-length: 27\r\n\r\n{"model":"m","stream":true}'
)


# Writers of the backend that send a stream.
STREAMING = set()


async def backend(reader, writer):
    """A minimal vLLM with endless streams."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1]
            length = re.search(rb"content-length: (\d+)", head)
            if length:
                await reader.readexactly(int(length[1]))
            if path.startswith(b"/v1/chat"):
                STREAMING.add(writer)
                writer.write(HEAD)
                while True:
                    writer.write(CHUNK)
                    await writer.drain()
            body = b'{"data":[{"id":"m","owned_by":"vllm"}]}' if b"models" in path else b""
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        STREAMING.discard(writer)
        writer.close()


def rss(pid):
    """Resident memory in KiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1])


def stable_rss(pid, timeout=15):
    """Yields None until the memory has not grown by more than 1 % for two seconds, then the memory."""
    last, since, begin = rss(pid), time.monotonic(), time.monotonic()
    while time.monotonic() - since < 2 and time.monotonic() - begin < timeout:
        yield None
        now = rss(pid)
        if now > last * 1.01:
            last, since = now, time.monotonic()
    yield last


def certificate(folder):
    """Creates a self-signed certificate for localhost."""
    cert, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert]
        + ["-addext", "subjectAltName=DNS:localhost"],
        check=True,
        capture_output=True,
    )
    return cert, key


async def measure(arguments, folder):
    server = await asyncio.start_server(backend, "127.0.0.1", 0, limit=1 << 16, backlog=4096)
    backend_port = server.sockets[0].getsockname()[1]
    tls, config = None, folder / "gateway.yaml"
    text = f"backends: [{{ url: 'http://127.0.0.1:{backend_port}', name: a }}]\n"
    text += "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nadmission: { enabled: false }\n"
    # Long timeouts: the process that sends the streams also answers the health checks.
    text += "scrape: { timeout: 1m }\ntimeouts: { connect: 1m }\n"
    if arguments.tls:
        cert, key = certificate(folder)
        text += f"tls: {{ cert: {cert}, key: {key} }}\n"
        tls = ssl.create_default_context(cafile=cert)
    config.write_text(text)
    command = [arguments.program, "serve", "--config", config, "--log-format", "human"]
    gateway = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    writers = []
    try:
        port = None
        while port is None:
            line = (await asyncio.wait_for(gateway.stderr.readline(), 20)).decode()
            found = re.search(r"\bclients\W+https?://127.0.0.1:(\d+)", line)
            port = found and int(found[1])
        await asyncio.sleep(1)
        before = rss(gateway.pid)
        for number in range(arguments.readers):
            host = {"server_hostname": "localhost"} if tls else {}
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls, limit=1, **host
            )
            writer.transport.pause_reading()
            writer.write(REQUEST)
            writers.append((reader, writer))
            if number % 50 == 0:
                await asyncio.sleep(0.02)
        deadline = time.monotonic() + 30
        while len(STREAMING) < arguments.readers and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        for after in stable_rss(gateway.pid):
            await asyncio.sleep(0.25)
        return before, after, len(STREAMING)
    finally:
        gateway.terminate()
        try:
            await asyncio.wait_for(gateway.wait(), 2)
        except asyncio.TimeoutError:
            gateway.kill()
        for _, writer in writers:
            writer.transport.abort()
        server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--max-kib", type=float, default=512, help="maximum KiB per stream")
    parser.add_argument("--tls", action="store_true", help="readers use TLS")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        work = measure(arguments, pathlib.Path(folder))
        before, after, streams = asyncio.run(asyncio.wait_for(work, 120))
    per_stream = (after - before) / arguments.readers
    is_complete = streams == arguments.readers
    verdict = "PASS" if is_complete and per_stream <= arguments.max_kib else "FAIL"
    print(
        f"{verdict} {streams} of {arguments.readers} streams without reads: {before / 1024:.1f} to "
        f"{after / 1024:.1f} MiB, {per_stream:.1f} KiB each (at most {arguments.max_kib:.0f})"
    )
    return 0 if verdict == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())

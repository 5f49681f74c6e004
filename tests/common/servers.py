"""Servers on this machine: free ports, and waiting for an answer."""

import asyncio
import random
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


def answers(url: str) -> bool:
    """Whether a server answers at the URL with a 2xx."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def free_ports(count: int) -> list[int]:
    """Free ports below the range of outgoing connections, which could take a port before a server starts."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as limits:
        first = min(int(limits.read().split()[0]), 32768)
    listeners: list[socket.socket] = []
    while len(listeners) < count:
        try:
            listeners.append(socket.create_server(("127.0.0.1", random.randrange(first // 2, first))))
        except OSError:
            continue
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def wait_until_ready(url: str, seconds: float = 30.0) -> None:
    """Waits until a server answers at the URL with a 2xx."""
    deadline = time.monotonic() + seconds
    while not answers(url):
        if time.monotonic() > deadline:
            raise SystemExit(f"{url} does not answer within {seconds:.0f} s")
        time.sleep(0.05)


@asynccontextmanager
async def gateway(program: str, listen: int, admin: int, config: str) -> AsyncIterator[None]:
    """A gateway that is ready. Its log is in a temporary folder."""
    folder = Path(tempfile.mkdtemp())
    (folder / "gateway.yaml").write_text(f"listen: 127.0.0.1:{listen}\nadmin: 127.0.0.1:{admin}\n{config}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", "--config", folder / "gateway.yaml"], stdout=log, stderr=log)
    try:
        # In a thread, because backends can be part of this process and must answer meanwhile.
        await asyncio.to_thread(wait_until_ready, f"http://127.0.0.1:{admin}/readyz")
        yield
    finally:
        process.terminate()
        process.wait()


async def post(port: int, path: str, body: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a POST on a new connection, which closes after the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def until(condition, seconds: float, every: float = 0.02) -> float | None:
    """Waits for a condition. Returns the seconds, or `None` after the timeout."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if condition():
            return time.monotonic() - begin
        await asyncio.sleep(every)
    return None

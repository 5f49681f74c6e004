"""A proxy in front of a backend that changes what the gateway gets from it."""

import asyncio
import random
from contextlib import suppress

HEAD_END = b"\r\n\r\n"


class Proxy:
    """Forwards HTTP/1.1 on one address to another one. Each connection has one request after the other."""

    def __init__(self, listen: tuple[str, int], backend: tuple[str, int]):
        self.listen, self.backend = listen, backend
        self.status: str | None = None
        """The status line with which each POST is answered at once. `None`: it is forwarded."""
        self.cut_share = 0.0
        """Share of the responses to POST that are cut after their first bytes."""
        self.freezes_metrics = False
        """Whether the metrics page stays as it was."""
        self.write_delay = 0.0
        """Seconds before each write of a response to POST."""
        self.page = b""
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens until `end`."""
        self.server = await asyncio.start_server(self._serve, *self.listen)

    def end(self) -> None:
        """Stops listening."""
        if self.server is not None:
            self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(HEAD_END)
        body = await reader.readexactly(length_of(head))
        is_post, is_metrics = head.startswith(b"POST "), head.startswith(b"GET /metrics")
        if is_metrics and self.freezes_metrics and self.page:
            writer.write(self.page)
            await writer.drain()
            return False
        if is_post and self.status:
            text = b'{"error": {"message": "refused by the proxy", "type": "error"}}'
            lines = f"HTTP/1.1 {self.status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
            writer.write(lines.encode() + text)
            await writer.drain()
            return True
        to_backend = await asyncio.open_connection(*self.backend)
        # Without keep-alive, the end of the connection to the backend is the end of the response.
        to_backend[1].write(without_keep_alive(head) + body)
        received = await self._forward(to_backend[0], writer, is_post)
        to_backend[1].close()
        if is_metrics:
            self.page = received
        return False

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_post: bool) -> bytes:
        is_cut = is_post and random.random() < self.cut_share
        received = b""
        while data := await reader.read(65536):
            if len(received) < 1 << 20:
                received += data
            if is_post and self.write_delay:
                await asyncio.sleep(self.write_delay)
            writer.write(data)
            await writer.drain()
            if is_cut and len(received) > 2000:
                writer.transport.abort()
                break
        return received


def length_of(head: bytes) -> int:
    """The content length of a request."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def without_keep_alive(head: bytes) -> bytes:
    """The head of a request for a connection of its own."""
    lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"connection: close"]) + HEAD_END

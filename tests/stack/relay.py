"""A relay between the gateway and one backend, which injects faults of networks and servers."""

import asyncio
import random
import re
from dataclasses import dataclass, field


@dataclass
class Connection:
    """One connection between the gateway and the backend."""

    writer: asyncio.StreamWriter
    request: bytes = b""
    """The first bytes of the last request."""
    length: int = 0
    """The number of bytes of the response to the last request that have arrived."""
    is_kept: bool = False
    """Whether the relay answers the last request itself."""
    is_cut: bool = False
    """Whether the response to the last request is cut after its first bytes."""

    @property
    def is_inference(self) -> bool:
        """Whether the last request is an inference request."""
        return self.request.startswith(b"POST ")

    @property
    def is_metrics(self) -> bool:
        """Whether the last request is a scrape."""
        return self.request.startswith(b"GET /metrics")


@dataclass
class Relay:
    """Forwards bytes. The fields inject faults and can be changed at any time."""

    backend: int
    """The port of the backend."""
    delay: float = 0.0
    """Delay in seconds of the first chunk of each response to an inference request."""
    blocks_output: bool = False
    """Whether responses to inference requests are held back. Health checks and scrapes pass."""
    write_delay: float = 0.0
    """Delay in seconds of each chunk of a response to an inference request."""
    status: str | None = None
    """The status line with which each inference request is answered at once. `None`: it is forwarded."""
    cut_share: float = 0.0
    """Share of the responses to inference requests that are cut after their first bytes."""
    freezes_metrics: bool = False
    """Whether the metrics page stays as it was."""
    swallows: bool = False
    """Whether inference requests get no response. Health checks and scrapes pass."""
    buffers: bool = False
    """Whether each response to an inference request is held back until its end."""
    repeats: bool = False
    """Whether each character of the text of a response is replaced by an exclamation mark."""
    others: tuple[int, ...] = ()
    """Ports of further backends: each connection, and each scrape, goes to one of all, as behind a load balancer."""
    page: bytes = b""
    """The last response with a metrics page."""
    open: dict[int, Connection] = field(default_factory=dict)
    server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Forwards connections to this port until `stop`."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    def stop(self) -> None:
        """Refuses connections until `start`."""
        if self.server:
            self.server.close()

    def active(self) -> list[Connection]:
        """Connections on which a response has begun. Some of the responses may have ended."""
        return [one for one in self.open.values() if one.is_inference and one.length]

    def cut(self) -> None:
        """Resets the connections on which a response has begun."""
        for connection in self.active():
            connection.writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self.open[id(connection)] = connection
        try:
            port = random.choice((self.backend, *self.others))
            backend_reader, backend_writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            del self.open[id(connection)]
            writer.transport.abort()
            return
        directions = [
            asyncio.create_task(self._forward_requests(connection, reader, backend_writer)),
            asyncio.create_task(self._forward_responses(connection, backend_reader, writer)),
        ]
        try:
            # When one side closes its connection, close the connection to the other side at once.
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # The check is ending. Without this, asyncio would log the exception for each connection.
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        backend_writer.close()
        writer.close()
        del self.open[id(connection)]

    async def _forward_requests(self, connection: Connection, reader, writer) -> None:
        while chunk := await reader.read(1 << 16):
            if chunk.startswith((b"GET ", b"POST ")):
                connection.request, connection.length = chunk[:16], 0
                connection.is_cut = connection.is_inference and random.random() < self.cut_share
                answer = await self._own_answer(connection)
                connection.is_kept = answer is not None
                connection.writer.write(answer or b"")
            if not connection.is_kept and not (self.swallows and connection.is_inference):
                writer.write(chunk)
                await writer.drain()

    async def _own_answer(self, connection: Connection) -> bytes | None:
        """The response of the relay itself to the last request. `None`: the backend answers it."""
        if connection.is_metrics and self.others:
            return await page_of(random.choice((self.backend, *self.others)))
        if connection.is_metrics and self.freezes_metrics and self.page:
            return self.page
        if connection.is_inference and self.status:
            text = b'{"error": {"message": "refused by the relay", "type": "error"}}'
            lines = f"HTTP/1.1 {self.status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
            return lines.encode() + text
        return None

    async def _forward_responses(self, connection: Connection, reader, writer) -> None:
        held = b""
        while chunk := await reader.read(1 << 16):
            is_first = connection.length == 0
            if connection.is_inference:
                await asyncio.sleep(self.write_delay + (self.delay if is_first else 0.0))
            if connection.is_metrics:
                self.page = chunk if is_first else self.page + chunk
            connection.length += len(chunk)
            while connection.is_inference and self.blocks_output:
                await asyncio.sleep(0.05)
            if connection.is_inference and self.repeats:
                chunk = TEXT.sub(lambda text: text[1] + b"!" * len(text[2]), chunk)
            if connection.is_inference and self.buffers:
                held += chunk
                if not held.endswith(b"0\r\n\r\n"):
                    continue
                chunk, held = held, b""
            writer.write(chunk)
            await writer.drain()
            if connection.is_cut and connection.length > 2000:
                writer.transport.abort()
                return


async def page_of(port: int) -> bytes:
    """The response of a backend with its metrics page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: backend\r\nconnection: close\r\n\r\n")
    response = await reader.read(-1)
    writer.close()
    return response


TEXT = re.compile(rb'("content": ?")([^"\\]+)')
"""The text of an event, without escaped characters."""

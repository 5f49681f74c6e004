"""A TCP relay between the gateway and one backend, which injects faults of networks and servers."""

import asyncio
from dataclasses import dataclass, field


@dataclass
class Connection:
    """One connection between the gateway and the backend."""

    writer: asyncio.StreamWriter
    is_inference: bool = False
    is_answered: bool = False
    """Whether a part of the response to the last request has arrived."""


@dataclass
class Relay:
    """Forwards bytes. The fields inject faults and can be changed at any time."""

    backend: int
    """The port of the backend."""
    delay: float = 0.0
    """Delay in seconds of the first chunk of each response to an inference request."""
    blocks_output: bool = False
    """Whether responses to inference requests are held back. Health checks and scrapes pass."""
    open: dict[int, Connection] = field(default_factory=dict)
    server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Forwards connections to this port until the process ends."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    def active(self) -> list[Connection]:
        """Connections on which a response has begun. Some of the responses may have ended."""
        return [one for one in self.open.values() if one.is_inference and one.is_answered]

    def cut(self) -> None:
        """Resets the connections on which a response has begun."""
        for connection in self.active():
            connection.writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self.open[id(connection)] = connection
        try:
            backend_reader, backend_writer = await asyncio.open_connection("127.0.0.1", self.backend)
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
                connection.is_inference = chunk.startswith(b"POST ")
                connection.is_answered = False
            writer.write(chunk)
            await writer.drain()

    async def _forward_responses(self, connection: Connection, reader, writer) -> None:
        while chunk := await reader.read(1 << 16):
            if connection.is_inference and not connection.is_answered and self.delay:
                await asyncio.sleep(self.delay)
            connection.is_answered = True
            while connection.is_inference and self.blocks_output:
                await asyncio.sleep(0.05)
            writer.write(chunk)
            await writer.drain()

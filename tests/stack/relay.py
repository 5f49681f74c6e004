"""Stands between the gateway and one replica, and does what networks and servers do."""

import asyncio
from dataclasses import dataclass, field


@dataclass
class Connection:
    """What goes on between the gateway and the replica on one connection."""

    writer: asyncio.StreamWriter
    is_inference: bool = False
    is_answered: bool = False
    """Something of the answer to the last request has come."""


@dataclass
class Relay:
    """Passes bytes on, unless it is told otherwise. It may be told so at any time."""

    replica: int
    """The replica's port."""
    delay: float = 0.0
    """Seconds that the first piece of each answer to an inference request is late."""
    is_silent: bool = False
    """Nothing of answers to inference requests comes through; health and metrics do."""
    hides_metrics: bool = False
    """Requests for the metrics page end in a closed connection."""
    open: dict[int, Connection] = field(default_factory=dict)
    server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Serves until the process ends."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    def under_way(self) -> list[Connection]:
        """Those on which an answer has begun. Some may have ended since their last request."""
        return [each for each in self.open.values() if each.is_inference and each.is_answered]

    def cut(self) -> None:
        """Closes the connections whose answers are under way."""
        for connection in self.under_way():
            connection.writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self.open[id(connection)] = connection
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.replica)
        except ConnectionError:
            del self.open[id(connection)]
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(self._ask(connection, reader, to_writer)),
            asyncio.create_task(self._answer(connection, to_reader, writer)),
        ]
        try:
            # Whichever side closes first: the other one is told at once.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # The end of the check, which asyncio would log as an error of each connection.
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_writer.close()
        writer.close()
        del self.open[id(connection)]

    async def _ask(self, connection: Connection, reader, writer) -> None:
        while piece := await reader.read(1 << 16):
            if piece.startswith((b"GET ", b"POST ")):
                connection.is_inference = piece.startswith(b"POST ")
                connection.is_answered = False
            if self.hides_metrics and piece.startswith(b"GET /metrics"):
                return
            writer.write(piece)
            await writer.drain()

    async def _answer(self, connection: Connection, reader, writer) -> None:
        while piece := await reader.read(1 << 16):
            if connection.is_inference and not connection.is_answered and self.delay:
                await asyncio.sleep(self.delay)
            connection.is_answered = True
            while connection.is_inference and self.is_silent:
                await asyncio.sleep(0.05)
            writer.write(piece)
            await writer.drain()

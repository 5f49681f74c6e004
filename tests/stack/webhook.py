"""Receives what Alertmanager would tell people."""

import asyncio
import json
import time


class Webhook:
    """Every alert of every notification, in the order in which they came."""

    def __init__(self):
        self.told: list[tuple[float, str, str]] = []
        self.server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Serves until the process ends."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    def has(self, alert: str, status: str, since: float) -> bool:
        """Whether it was told since then that this alert is `firing` or `resolved`."""
        return any(t >= since and (a, s) == (alert, status) for t, a, s in self.told)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:-1])
                length = int(fields["Content-Length"])
                note = json.loads(await reader.readexactly(length))
                for alert in note["alerts"]:
                    name = alert["labels"]["alertname"]
                    self.told.append((time.time(), name, alert["status"]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

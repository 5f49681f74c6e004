"""Receives what Alertmanager would tell people, and judges answers."""

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
                lines = head.decode().lower().splitlines()[1:-1]
                fields = dict(line.split(": ", 1) for line in lines)
                length = int(fields["content-length"])
                note = json.loads(await reader.readexactly(length))
                for alert in note.get("alerts", []):
                    name = alert["labels"]["alertname"]
                    self.told.append((time.time(), name, alert["status"]))
                # Who sends no alerts is the gateway, with an answer to judge.
                body = b"" if "alerts" in note else b'{"score": 0.8}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

"""Load: clients that send a request, read the response to its end, and repeat."""

import asyncio
import json
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DEADLINE_SECONDS = 120.0


class Load:
    """Concurrent clients, which run until they are stopped."""

    def __init__(self, gateway: tuple[str, int], seed: int = 1, tls: ssl.SSLContext | None = None):
        self.gateway, self.tls = gateway, tls
        self.random = random.Random(seed)
        self.statuses: Counter = Counter()
        self.tasks: set[asyncio.Task] = set()

    def start(self, clients: int, **options) -> list[asyncio.Task]:
        """Starts clients that repeat requests with the same options: see `send`."""
        tasks = [asyncio.create_task(self._client(**options)) for _ in range(clients)]
        self.tasks.update(tasks)
        return tasks

    async def stop(self, tasks: list[asyncio.Task] | None = None) -> None:
        """Stops some clients, or all, and cancels their requests."""
        tasks = list(self.tasks if tasks is None else tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tasks.difference_update(tasks)

    @asynccontextmanager
    async def more(self, clients: int, **options) -> AsyncIterator[None]:
        """Runs this many clients in addition to the others, for the duration of the context."""
        tasks = self.start(clients, **options)
        try:
            yield
        finally:
            await self.stop(tasks)

    async def _client(self, pause: float = 0.05, spread: float = 0.0, **options) -> None:
        await asyncio.sleep(self.random.uniform(0, spread))
        while True:
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    self.statuses[await self.send(**options)] += 1
            except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                self.statuses["broken"] += 1
            await asyncio.sleep(pause * self.random.uniform(0.5, 1.5))

    async def send(
        self,
        model: str = "sim-model",
        words: int = 100,
        tokens: int = 40,
        stream: bool = True,
        patience: float | None = None,
        usage: dict | None = None,
    ) -> int | str:
        """Sends one request. Returns the status, or `left` if the client disconnects after this many seconds without output."""
        prompt = " ".join(self.random.choice(WORDS) for _ in range(words))
        body = json.dumps({
            "model": model,
            "stream": stream,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": prompt}],
            **({"stream_options": usage} if usage else {}),
        }).encode()
        lines = {"host": "gateway", "content-type": "application/json", "connection": "close"}
        lines["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        reader, writer = await asyncio.open_connection(*self.gateway, ssl=self.tls)
        try:
            writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
            try:
                async with asyncio.timeout(patience):
                    status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
                    last = chunk = await reader.read(1 << 16)
            except TimeoutError:
                return "left"
            while chunk := chunk and await reader.read(1 << 16):
                last = chunk
            if status == 200 and stream and not last.endswith(b"0\r\n\r\n"):
                raise ConnectionError("the response was cut")
            return status
        finally:
            writer.close()


WORDS = "river stone lamp window harbour letter summer bridge garden engine silver thread".split()

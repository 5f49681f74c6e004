"""One streamed request on a raw connection, with the client's clock. It records data that no SDK exposes: comments,
the time of each chunk, and the termination of the connection."""

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlsplit

from sdk import MODEL

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
USAGE = {"stream_options": {"include_usage": True}}
DONE = "[DONE]"


@dataclass(frozen=True)
class Event:
    """One event with the arrival time of its last byte."""

    at: float
    data: str

    @property
    def body(self) -> dict:
        """The JSON object of the event, empty for [DONE]."""
        return {} if self.data == DONE else json.loads(self.data)

    @property
    def has_output(self) -> bool:
        """Whether the event has output."""
        for choice in self.body.get("choices", ()):
            part = choice.get("delta") or choice
            if any(part.get(name) for name in ("content", "reasoning", "tool_calls", "text")):
                return True
        return False


class Stream:
    """A request on its own connection, with the response received so far."""

    def __init__(self, base: str, request_id: str, api: str, prompt: str, body: dict):
        self.base, self.request_id, self.path = base, request_id, PATHS[api]
        chat = {"messages": [{"role": "user", "content": prompt}]}
        prompt_fields = chat if api == "chat" else {"prompt": prompt}
        self.body = {"model": MODEL, "stream": True} | prompt_fields | body
        self.status = None
        self.sent = None
        self.is_cut = False
        self.chunks: list[tuple[float, bytes]] = []

    async def read(self) -> "Stream":
        """Sends the request and reads until the response ends or the connection is cut."""
        await asyncio.to_thread(self._read)
        return self

    def _read(self) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.base).netloc, timeout=60)
        connection.connect()
        headers = {"content-type": "application/json", "x-request-id": self.request_id}
        self.sent = time.perf_counter()
        try:
            connection.request("POST", self.path, json.dumps(self.body), headers)
            response = connection.getresponse()
            self.status = response.status
            while chunk := response.read1(1 << 16):
                self.chunks.append((time.perf_counter(), chunk))
        except (http.client.HTTPException, ConnectionError):
            self.is_cut = True
        finally:
            connection.close()

    def blocks(self) -> Iterator[tuple[float, str]]:
        """The complete blocks of the event stream with their arrival times."""
        rest = b""
        for at, chunk in self.chunks:
            *blocks, rest = (rest + chunk).split(b"\n\n")
            yield from ((at, block.decode()) for block in blocks)

    def events(self) -> list[Event]:
        """All events, without comments."""
        start = "data: "
        return [
            Event(at, block.removeprefix(start))
            for at, block in self.blocks()
            if block.startswith(start)
        ]

    def comments(self) -> list[float]:
        """The arrival times of comments."""
        return [at for at, block in self.blocks() if block.startswith(":")]

    def outputs(self) -> list[float]:
        """The arrival times of output."""
        return [event.at for event in self.events() if event.has_output]

    def usage(self) -> dict | None:
        """The last usage that the engine reported."""
        reported = [event.body.get("usage") for event in self.events()]
        return next((usage for usage in reversed(reported) if usage), None)

    def ttft_ms(self) -> float:
        """Milliseconds from the request to the first output."""
        return (self.outputs()[0] - self.sent) * 1e3

    def gap_max_ms(self) -> float:
        """The longest time between two outputs, in milliseconds."""
        return max(later - earlier for earlier, later in pairwise(self.outputs())) * 1e3

    def tpot_ms(self, tokens: int) -> float:
        """Mean time per token after the first, in milliseconds."""
        outputs = self.outputs()
        return (outputs[-1] - outputs[0]) * 1e3 / (tokens - 1)

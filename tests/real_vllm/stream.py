"""One raw streamed request, with the client's own clock. What no SDK shows is seen here: comments,
which piece came when, and how the connection ended."""

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
    """One event, and when its last byte came."""

    at: float
    data: str

    @property
    def body(self) -> dict:
        """What it says. The last event of a stream says nothing."""
        return {} if self.data == DONE else json.loads(self.data)

    @property
    def has_output(self) -> bool:
        """Whether it brings something that the model wrote."""
        for choice in self.body.get("choices", ()):
            part = choice.get("delta") or choice
            if any(part.get(name) for name in ("content", "reasoning", "tool_calls", "text")):
                return True
        return False


class Stream:
    """A request on a connection of its own, and its answer as far as it came."""

    def __init__(self, base: str, request_id: str, api: str, prompt: str, body: dict):
        self.base, self.request_id, self.path = base, request_id, PATHS[api]
        chat = {"messages": [{"role": "user", "content": prompt}]}
        asked = chat if api == "chat" else {"prompt": prompt}
        self.body = {"model": MODEL, "stream": True} | asked | body
        self.status = None
        self.sent = None
        self.is_cut = False
        self.pieces: list[tuple[float, bytes]] = []

    async def read(self) -> "Stream":
        """Makes the request and reads until the answer is over or the connection is cut."""
        await asyncio.to_thread(self._read)
        return self

    def _read(self) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.base).netloc, timeout=60)
        connection.connect()
        headers = {"content-type": "application/json", "x-request-id": self.request_id}
        self.sent = time.perf_counter()
        try:
            connection.request("POST", self.path, json.dumps(self.body), headers)
            answer = connection.getresponse()
            self.status = answer.status
            while piece := answer.read1(1 << 16):
                self.pieces.append((time.perf_counter(), piece))
        except (http.client.HTTPException, ConnectionError):
            self.is_cut = True
        finally:
            connection.close()

    def blocks(self) -> Iterator[tuple[float, str]]:
        """Whole blocks of the event stream."""
        held = b""
        for at, piece in self.pieces:
            *whole, held = (held + piece).split(b"\n\n")
            yield from ((at, block.decode()) for block in whole)

    def events(self) -> list[Event]:
        """Everything but comments."""
        start = "data: "
        return [
            Event(at, block.removeprefix(start))
            for at, block in self.blocks()
            if block.startswith(start)
        ]

    def comments(self) -> list[float]:
        """When comments came."""
        return [at for at, block in self.blocks() if block.startswith(":")]

    def outputs(self) -> list[float]:
        """When output came."""
        return [event.at for event in self.events() if event.has_output]

    def usage(self) -> dict | None:
        """What the engine says that it counted."""
        said = [event.body.get("usage") for event in self.events()]
        return next((usage for usage in reversed(said) if usage), None)

    def ttft_ms(self) -> float:
        """From the request to the first output."""
        return (self.outputs()[0] - self.sent) * 1e3

    def gap_max_ms(self) -> float:
        """The longest time between two outputs."""
        return max(later - sooner for sooner, later in pairwise(self.outputs())) * 1e3

    def tpot_ms(self, tokens: int) -> float:
        """Mean time of each token after the first."""
        outputs = self.outputs()
        return (outputs[-1] - outputs[0]) * 1e3 / (tokens - 1)

"""The access log and the metrics pages of the gateway and the backends."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from metrics_page import Page, fetch
from servers import until


class AccessLog:
    """The access log of a gateway."""

    def __init__(self, path: Path):
        self.path = path

    def lines(self) -> list[dict]:
        """All complete lines so far."""
        text = self.path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def has(self, request_ids: list[str]) -> bool:
        """Whether the log already has the lines of these requests."""
        return set(request_ids) <= {line["request_id"] for line in self.lines()}

    async def lines_of(self, request_ids: list[str]) -> dict[str, dict]:
        """Waits for the lines of these requests. Raises LookupError for a missing or a second line."""
        await until(lambda: self.has(request_ids), 5.0)
        wanted = set(request_ids)
        lines = [line for line in self.lines() if line["request_id"] in wanted]
        by_id = {line["request_id"]: line for line in lines}
        if missing := wanted - by_id.keys():
            raise LookupError(f"no access-log line for {sorted(missing)[:5]}")
        if len(lines) > len(by_id):
            raise LookupError("a request has more than one access-log line")
        return by_id


@dataclass(frozen=True)
class Totals:
    """Counters of the engines, summed, and of the gateway, while no request is open."""

    engine: Counter
    engine_finish: Counter
    tokens: Counter
    finish: Counter
    outcome: Counter

    def since(self, before: "Totals") -> "Totals":
        """The increase of each counter since `before`. Counters that did not increase are left out."""
        pairs = zip(vars(self).values(), vars(before).values())
        return Totals(*(after - before for after, before in pairs))


@dataclass(frozen=True)
class FrontEnd:
    """Features of one of vLLM's HTTP servers. Both serve chat and completions, with and without streams."""

    has_responses: bool
    has_choices: bool
    """Serves more than one choice per request."""
    has_limits: bool
    """Rejects requests that are too long or too many, and reports the phases of a request with its response."""
    counts_cancels: bool
    """Counts requests whose clients disconnected, as aborted."""
    outcome_of_death: str
    """The gateway's outcome of a stream whose engine died."""


FRONT_ENDS = {
    "python": FrontEnd(True, True, True, False, "stream_error"),
    "rust": FrontEnd(False, False, False, True, "truncated"),
    "mixed": FrontEnd(True, False, False, False, "truncated"),
}


@dataclass(frozen=True)
class Fleet:
    """A gateway with its backends."""

    gateway: str
    admin: str
    backends: list[str]
    log: AccessLog
    front_end: FrontEnd

    def page(self) -> Page:
        """The gateway's metrics page."""
        return fetch(self.admin)

    def in_flight(self) -> float:
        """The sum of the gateway's in-flight gauges, for clients and for backends."""
        page = self.page()
        gauges = ("tokenweir_requests_in_flight", "tokenweir_backend_requests_in_flight")
        return sum(page.total(name) for name in gauges)

    def attempts_at(self, url: str) -> float:
        """Attempts at the backend with this URL. The gateway counts them when the request has ended."""
        return self.page().by("tokenweir_attempts_total", "backend")[urlsplit(url).netloc]

    def engine_load(self, *states: str) -> float:
        """Sequences in these states in the engines (default: those that run or wait)."""
        pages = [fetch(backend) for backend in self.backends]
        names = [f"vllm:num_requests_{state}" for state in states or ("running", "waiting")]
        return sum(page.total(name) for page in pages for name in names)

    def totals(self) -> Totals:
        """The current counters."""
        engine, engine_finish = Counter(), Counter()
        for backend in self.backends:
            page = fetch(backend)
            for kind in ("prompt_tokens", "generation_tokens", "prompt_tokens_cached"):
                engine[kind] += page.total(f"vllm:{kind}_total")
            engine_finish += page.by("vllm:request_success_total", "finished_reason")
        page = self.page()
        return Totals(
            engine,
            engine_finish,
            page.by("tokenweir_tokens_total", "type"),
            page.by("tokenweir_finish_reasons_total", "reason"),
            page.by("tokenweir_requests_total", "outcome"),
        )

    async def settled(self, seconds: float = 10.0) -> Totals:
        """The counters when no request is open and they no longer change."""
        deadline, last = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            now = self.totals()
            if now == last and self.engine_load() == 0 and self.in_flight() == 0:
                return now
            last = now
            await asyncio.sleep(0.3)
        raise TimeoutError("requests are still in flight")

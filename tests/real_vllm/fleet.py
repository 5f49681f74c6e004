"""What the gateway and the replicas say of themselves: the access log and the metrics pages."""

import asyncio
import json
import re
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SERIES = re.compile(r'^([\w:]+)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Page:
    """One metrics page, as it was when it was fetched."""

    def __init__(self, text: str):
        self.series = []
        for line in text.splitlines():
            if found := SERIES.match(line):
                name, labels, value = found.groups()
                self.series.append((name, dict(LABEL.findall(labels or "")), float(value)))

    def by(self, name: str, label: str) -> Counter:
        """The sums of a metric for each value of a label."""
        sums = Counter()
        for found, labels, value in self.series:
            if found == name:
                sums[labels[label]] += value
        return sums

    def total(self, name: str) -> float:
        """The sum of a metric over all its labels. A metric that is not there is an error."""
        values = [value for found, _, value in self.series if found == name]
        if not values:
            raise KeyError(f"no series {name}")
        return sum(values)


class AccessLog:
    """The lines that the gateway wrote for its requests."""

    def __init__(self, path: Path):
        self.path = path

    def lines(self) -> list[dict]:
        """All whole lines so far."""
        text = self.path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def has(self, request_ids: list[str]) -> bool:
        """Whether the lines of these requests are there."""
        return set(request_ids) <= {line["request_id"] for line in self.lines()}

    async def of(self, request_ids: list[str]) -> dict[str, dict]:
        """The lines of these requests, once all are there. Two lines for one are an error."""
        await until(lambda: self.has(request_ids), 5.0)
        wanted = set(request_ids)
        lines = [line for line in self.lines() if line["request_id"] in wanted]
        found = {line["request_id"]: line for line in lines}
        if missing := wanted - found.keys():
            raise LookupError(f"no access-log line for {sorted(missing)[:5]}")
        if len(lines) > len(found):
            raise LookupError("a request has more than one access-log line")
        return found


@dataclass(frozen=True)
class Totals:
    """Counters of the engines, summed, and of the gateway, at one quiet moment."""

    engine: Counter
    engine_finish: Counter
    tokens: Counter
    finish: Counter
    outcome: Counter

    def since(self, before: "Totals") -> "Totals":
        """What was counted in between. Zero counts are left out."""
        pairs = zip(vars(self).values(), vars(before).values())
        return Totals(*(now - then for now, then in pairs))


@dataclass(frozen=True)
class FrontEnd:
    """What one of vLLM's HTTP servers serves. Both have chat and completions, streamed or whole."""

    has_responses: bool
    has_choices: bool
    """More than one answer to a request."""
    has_limits: bool
    """Refuses what is too long or too much, and tells with an answer where its time went."""
    counts_cancels: bool
    """Its counters have requests whose clients left, as aborted ones."""
    outcome_of_death: str
    """The gateway's word for a stream whose engine died."""


FRONT_ENDS = {
    "python": FrontEnd(True, True, True, False, "stream_error"),
    "rust": FrontEnd(False, False, False, True, "truncated"),
}


@dataclass(frozen=True)
class Fleet:
    """Where everything is."""

    gateway: str
    admin: str
    replicas: list[str]
    log: AccessLog
    front_end: FrontEnd

    def page(self) -> Page:
        """The gateway's metrics."""
        return fetch(self.admin)

    def in_flight(self) -> float:
        """What the gateway's gauges say is in flight, at both ends."""
        page = self.page()
        ends = ("tokenweir_requests_in_flight", "tokenweir_backend_requests_in_flight")
        return sum(page.total(name) for name in ends)

    def engine_load(self) -> float:
        """Sequences that run or wait in any engine."""
        pages = [fetch(replica) for replica in self.replicas]
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return sum(page.total(name) for page in pages for name in names)

    def totals(self) -> Totals:
        """All counters now."""
        engine, engine_finish = Counter(), Counter()
        for replica in self.replicas:
            page = fetch(replica)
            for kind in ("prompt_tokens", "generation_tokens", "prompt_tokens_cached"):
                engine[kind] += page.total(f"vllm:{kind}_total")
            engine_finish += page.by("vllm:request_success_total", "finished_reason")
        page = self.page()
        return Totals(
            engine,
            engine_finish,
            page.by("tokenweir_tokens_total", "type"),
            page.by("tokenweir_finish_total", "reason"),
            page.by("tokenweir_requests_total", "outcome"),
        )

    async def settled(self, seconds: float = 10.0) -> Totals:
        """The counters once nothing runs and nothing changes any more."""
        deadline, last = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            now = self.totals()
            if now == last and self.engine_load() == 0 and self.in_flight() == 0:
                return now
            last = now
            await asyncio.sleep(0.3)
        raise TimeoutError("requests are still in flight")


def fetch(base: str) -> Page:
    """The metrics page of a server on this machine."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=5) as answer:
        return Page(answer.read().decode())


async def until(condition, seconds: float, every: float = 0.02) -> float | None:
    """Seconds until the condition held, `None` if it did not in time."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if condition():
            return time.monotonic() - begin
        await asyncio.sleep(every)
    return None

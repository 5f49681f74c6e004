"""Asks Prometheus and the others over HTTP."""

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass


async def fetch(url: str, **parameters: str) -> dict:
    """A JSON document."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    return await asyncio.to_thread(_fetch, url + query)


def _fetch(url: str) -> dict:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise LookupError(f"{url}: {error.code} {error.read()[:300]!r}") from error


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    async def value(self, query: str) -> float | None:
        """The first value of a query now."""
        result = (await fetch(f"{self.url}/api/v1/query", query=query))["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    async def series(self, query: str, begin: float, end: float, step: float) -> int:
        """How many series a query has in a time, not counting those that are never a number."""
        times = {"start": f"{begin}", "end": f"{end}", "step": f"{step}"}
        document = await fetch(f"{self.url}/api/v1/query_range", query=query, **times)
        result = document["data"]["result"]
        return sum(any(value != "NaN" for _, value in series["values"]) for series in result)

    async def exemplars(self, query: str, begin: float, end: float) -> list[dict]:
        """The exemplars of a query's series in a time."""
        times = {"start": f"{begin}", "end": f"{end}"}
        document = await fetch(f"{self.url}/api/v1/query_exemplars", query=query, **times)
        return [exemplar for series in document["data"] for exemplar in series["exemplars"]]

    async def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = (await fetch(f"{self.url}/api/v1/alerts"))["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    async def rules(self) -> list[dict]:
        """All rules, with their state and health."""
        groups = (await fetch(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

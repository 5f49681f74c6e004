"""Queries Prometheus and other components over HTTP."""

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass


async def fetch(url: str, **parameters: str) -> dict:
    """Fetches a JSON document."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    return await asyncio.to_thread(_fetch, url + query)


def _fetch(url: str) -> dict:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise LookupError(f"{url}: {error.code} {error.read()[:300]!r}") from error


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    async def value(self, query: str) -> float | None:
        """The first value of an instant query. None: the query has no result."""
        result = (await fetch(f"{self.url}/api/v1/query", query=query))["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    async def series(self, query: str, begin: float, end: float, step: float) -> int:
        """The number of series of a range query, without series whose values are all NaN."""
        times = {"start": f"{begin}", "end": f"{end}", "step": f"{step}"}
        document = await fetch(f"{self.url}/api/v1/query_range", query=query, **times)
        result = document["data"]["result"]
        return sum(any(value != "NaN" for _, value in series["values"]) for series in result)

    async def exemplars(self, query: str, begin: float, end: float) -> list[dict]:
        """The exemplars of a query in a time range."""
        times = {"start": f"{begin}", "end": f"{end}"}
        document = await fetch(f"{self.url}/api/v1/query_exemplars", query=query, **times)
        return [exemplar for series in document["data"] for exemplar in series["exemplars"]]

    async def firing(self) -> set[str]:
        """The names of the firing alerts."""
        alerts = (await fetch(f"{self.url}/api/v1/alerts"))["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def rules(self) -> list[dict]:
        """All rules, with their state and health."""
        groups = (await fetch(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

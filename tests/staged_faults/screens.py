"""What each screen says at one moment: page, `top`, `diagnose`, log, dashboards and alerts."""

import asyncio
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dashboards import queries, substituted
from prometheus import fetch
from testbed import Testbed

DASHBOARDS = Path(__file__).parents[2] / "config/grafana/dashboards"
STATS = ("Requests", "Failed", "Refused", "Backends up", "Queue depth", "TTFT p95", "KV usage, maximum")
"""The panels of the first row of the main dashboard that the table shows, if their value has changed."""


@dataclass(frozen=True)
class Screens:
    """The texts of all screens, and the values that decide."""

    page: str
    verdicts: list[dict]
    state: str
    top: str
    diagnose: str
    diagnose_code: int
    log: list[str]
    panels: dict[str, float | None]
    empty_queries: int
    alerts: dict[str, str]


def page_text(document: dict) -> str:
    """The first screen of the live page in words: the state, and the verdicts."""
    reasons = "; ".join(document["state_reasons"])
    words = [f"{document['state']}{': ' if reasons else ''}{reasons}"]
    return " / ".join(words + [verdict_text(it) for it in document["verdicts"]])


def verdict_text(verdict: dict) -> str:
    """A verdict with its subject and its cause."""
    scope = {"gateway": "gateway", "fleet": "all"}.get(verdict.get("scope"), verdict["backend"])
    cause = f" ({verdict['cause']})" if verdict.get("cause") else ""
    return f"{verdict['severity']} {verdict['verdict']} {scope}{cause}"


async def streams(testbed: Testbed) -> dict:
    """The document of the live page and of `top`."""
    return await fetch(f"{testbed.url('admin')}/streams")


async def look(testbed: Testbed, seen_log: int) -> Screens:
    """Reads all screens. Log lines before `seen_log` bytes are left out."""
    document = await streams(testbed)
    top = await command(testbed, "top", "--once")
    diagnose = await command(testbed, "diagnose")
    panels, empty = await dashboards(testbed)
    alerts = (await fetch(f"{testbed.url('prometheus')}/api/v1/alerts"))["data"]["alerts"]
    return Screens(
        page_text(document),
        document["verdicts"],
        document["state"],
        top.stdout,
        diagnose.stdout,
        diagnose.returncode,
        log_lines(testbed, seen_log),
        panels,
        empty,
        {alert["labels"]["alertname"]: alert["state"] for alert in alerts},
    )


async def command(testbed: Testbed, *words: str) -> subprocess.CompletedProcess:
    """Runs a command of the program against the gateway."""
    line = [str(testbed.tools.gateway), *words, "--admin", testbed.url("admin")]
    run = lambda: subprocess.run(line, capture_output=True, text=True, timeout=30)
    return await asyncio.to_thread(run)


def log_lines(testbed: Testbed, start: int) -> list[str]:
    """The warnings and errors of the gateway's log, and the ends of conditions."""
    with testbed.processes["gateway"].log.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").splitlines()
    texts = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            texts.append(line[:200])
            continue
        fields = entry.get("fields", entry)
        parts = [fields.get(name) for name in ("backend", "verdict")]
        subject = " ".join(part for part in parts if part)
        texts.append(f"{entry['level']} {fields.get('message')} [{subject}]".replace(" []", ""))
    return texts


async def dashboards(testbed: Testbed) -> tuple[dict[str, float | None], int]:
    """The values of the stat panels, and the number of queries of all dashboards that Prometheus refuses."""
    panels, refused = {}, 0
    for file in sorted(DASHBOARDS.glob("*.json")):
        for title, query in queries(json.loads(file.read_text())):
            try:
                url = f"{testbed.url('prometheus')}/api/v1/query"
                result = (await fetch(url, query=substituted(query)))["data"]["result"]
            except LookupError:
                refused += 1
                continue
            if file.stem == "overview" and title in STATS and title not in panels and result:
                panels[title] = float(result[0]["value"][1])
    return panels, refused

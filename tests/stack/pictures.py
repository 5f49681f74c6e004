"""Screenshots of Prometheus and Phoenix, with Chromium. Jaeger's API serves no pages."""

import asyncio
import urllib.parse
from pathlib import Path

from report import Report
from stand import Stand

LIMIT_SECONDS = 60.0
ALERTS = 'sum by (alertname) (ALERTS{alertstate="firing"})'


def graphs_page(stand: Stand, minutes: int, queries: list[str], stacked: bool = False) -> str:
    """The URL of a Prometheus page with a graph of each query."""
    parameters = {}
    for number, query in enumerate(queries):
        graph = {"expr": query, "tab": "0", "stacked": str(int(stacked)), "range_input": f"{minutes}m"}
        parameters |= {f"g{number}.{name}": value for name, value in graph.items()}
    return f"{stand.url('prometheus')}/classic/graph?{urllib.parse.urlencode(parameters)}"


def trace_page(stand: Stand, trace_id: str) -> str:
    """The URL of a trace in Phoenix."""
    return f"{stand.url('phoenix')}/redirects/traces/{trace_id}"


async def take(
    stand: Stand, report: Report, folder: Path, name: str, page: str, height: int = 1000
) -> None:
    """Takes a screenshot of a page after its scripts have run."""
    browser = stand.tools.path("chromium")
    if not browser.exists():
        report.note("screenshots", name, "skipped: no Chromium")
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.png"
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--window-size=1280,{height}", "--virtual-time-budget=15000",
        f"--user-data-dir={stand.work / 'chromium'}", f"--screenshot={file}", page,
    ]
    with (stand.work / "chromium.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*map(str, command), stdout=log, stderr=log)
        try:
            await asyncio.wait_for(process.wait(), LIMIT_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
    report.note("screenshots", name, f"{file.stat().st_size} bytes" if file.exists() else "none")

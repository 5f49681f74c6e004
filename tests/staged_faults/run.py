"""Stages faults and records what each screen says. See tests/staged_faults.sh."""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from faults import FAULTS, Fault
from screens import Screens, look, streams, verdict_text
from testbed import WARM_SECONDS, Testbed, Tools

CLEAR_SECONDS = 60.0
NAMED_SECONDS = 60.0
MOMENTS = (10.0, 60.0, 300.0)
POLL_SECONDS = 2.0


@dataclass
class Result:
    """What the screens said about a fault."""

    fault: Fault
    screens: dict[str, Screens] = field(default_factory=dict)
    named_after: float | None = None
    wrong: set[str] = field(default_factory=set)
    error: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the first screen names the fault within the limit."""
        return self.named_after is not None and self.named_after <= NAMED_SECONDS

    @property
    def left(self) -> list[str]:
        """What the page, `top` and `diagnose` still say after the end."""
        after = self.screens.get("after")
        if after is None:
            return ["not seen"]
        left = [verdict_text(it) for it in after.verdicts]
        left += [] if after.state == "ready" else [f"page: {after.state}"]
        left += [f"diagnose: exit {after.diagnose_code}"] if after.diagnose_code not in (0, 3) else []
        return left


async def stage(fault: Fault, tools: Tools, work: Path, moments: tuple[float, ...]) -> Result:
    """Stages one fault in a testbed of its own."""
    result = Result(fault)
    testbed = Testbed(tools, work / fault.name.replace(" ", "_"), fault.options)
    try:
        await testbed.start()
        testbed.load.start(fault.clients, model=testbed.model, **fault.request)
        await asyncio.sleep(WARM_SECONDS)
        log = testbed.processes["gateway"].log
        start_of_log = log.stat().st_size
        result.screens["before"] = await look(testbed, start_of_log)
        watching = asyncio.create_task(watch(testbed, result))
        begin = time.monotonic()
        async with fault.begin(testbed):
            for moment in moments:
                await asyncio.sleep(begin + moment - time.monotonic())
                result.screens[f"{moment:g} s"] = await look(testbed, start_of_log)
        await asyncio.sleep(CLEAR_SECONDS)
        watching.cancel()
        end_of_log = log.stat().st_size
        result.screens["after"] = await look(testbed, end_of_log)
    except Exception:  # noqa: BLE001 The other faults go on.
        result.error = traceback.format_exc()
    finally:
        await testbed.load.stop()
        await asyncio.to_thread(testbed.end)
    print(f"{fault.name}: {outcome(result)}", file=sys.stderr, flush=True)
    return result


async def watch(testbed: Testbed, result: Result) -> None:
    """Notes when the first screen first names the fault, and all verdicts about something else."""
    begin = time.monotonic()
    while True:
        try:
            document = await streams(testbed)
        except OSError:
            # The machine is busy. The next look follows.
            document = {"verdicts": []}
        for text in map(verdict_text, document["verdicts"]):
            if result.fault.is_named_by(text) and result.named_after is None:
                result.named_after = time.monotonic() - begin
            if result.fault.is_wrong(text):
                result.wrong.add(text)
        await asyncio.sleep(POLL_SECONDS)


def outcome(result: Result) -> str:
    """The judgement in words."""
    if result.error:
        return f"error: {result.error.strip().splitlines()[-1]}"
    named = f"named after {result.named_after:.0f} s" if result.named_after is not None else "NOT NAMED"
    wrong = f"; WRONG: {sorted(result.wrong)}" if result.wrong else ""
    left = f"; LEFT: {result.left}" if result.left else ""
    return named + wrong + left


def cell(text: str) -> str:
    """Text as the content of a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", "<br>")


def row(result: Result, moment: str) -> str:
    """One row: a fault at one moment on all screens."""
    screens, before = result.screens.get(moment), result.screens.get("before")
    if screens is None:
        return f"| {result.fault.name} | {moment} | {cell(result.error or '')[-200:]} | | | | | |"
    first = screens.top.splitlines()[0] if screens.top else ""
    severities = ("critical", "warning", "info")
    lines = [line for line in screens.top.splitlines() if line.strip().lower().startswith(severities)]
    top = " ".join(first.split()) + "".join(f"<br>{' '.join(line.split())[:90]}" for line in lines[:3])
    names = [line.strip()[:90] for line in screens.diagnose.splitlines() if line.strip().startswith(severities)]
    log = list(dict.fromkeys(screens.log))
    panels = [
        f"{title} {before.panels.get(title, float('nan')):.3g} → {value:.3g}"
        for title, value in screens.panels.items()
        if before and abs(value - before.panels.get(title, 0.0)) > 0.1 * abs(before.panels.get(title, 0.0)) + 1e-3
    ]
    alerts = [f"{name.removeprefix('Tokenweir')} {state}" for name, state in sorted(screens.alerts.items())]
    cells = [
        screens.page,
        top,
        f"exit {screens.diagnose_code}" + "".join(f"<br>{name}" for name in names[:3]),
        "<br>".join(log[:5]) + (f"<br>and {len(log) - 5} more" if len(log) > 5 else ""),
        "<br>".join(panels),
        "<br>".join(alerts),
    ]
    return f"| {result.fault.name} | {moment} | " + " | ".join(cell(it) or "–" for it in cells) + " |"


def report(results: list[Result], moments: list[str]) -> str:
    """The table, and the summary above it."""
    named = sum(result.is_named for result in results)
    wrong = [result.fault.name for result in results if result.wrong]
    left = [result.fault.name for result in results if result.left]
    refused = max((it.empty_queries for result in results for it in result.screens.values()), default=0)
    lines = [
        f"{named} of {len(results)} faults were named on the first screen within {NAMED_SECONDS:g} s. "
        f"Verdicts about something else: {', '.join(wrong) or 'none'}. "
        f"Left {CLEAR_SECONDS:g} s after the end: {', '.join(left) or 'nothing'}. "
        f"Queries of the dashboards that Prometheus refused: {refused}.",
        "",
        "| fault | result |",
        "|---|---|",
        *(f"| {result.fault.name} | {cell(outcome(result))} |" for result in results),
        "",
        "| fault | at | page | `top` | `diagnose` | log | panels that changed | alerts |",
        "|---|---|---|---|---|---|---|---|",
        *(row(result, moment) for result in results for moment in [*moments, "after"]),
    ]
    return "\n".join(lines)


async def run(arguments: argparse.Namespace) -> int:
    """Stages the selected faults, some at a time."""
    tools = Tools(arguments.gateway, arguments.prometheus, arguments.collector, arguments.real)
    moments = MOMENTS[:2] if arguments.quick else MOMENTS
    is_selected = lambda fault: not arguments.only or any(it in fault.name for it in arguments.only.split(","))
    selected = [fault for fault in FAULTS if is_selected(fault)]
    selected = [it for it in selected if (it.options.real is not None) == (tools.real is not None)]
    if tools.collector is None:
        print("no otelcol: the fault `collector gone` is left out", file=sys.stderr)
        selected = [fault for fault in selected if not fault.options.collector]
    work = Path(tempfile.mkdtemp(prefix="staged-faults-", dir=arguments.work))
    limit = asyncio.Semaphore(arguments.jobs)

    async def one(fault: Fault) -> Result:
        async with limit:
            return await stage(fault, tools, work, moments)

    results = await asyncio.gather(*map(one, selected))
    text = report(results, [f"{moment:g} s" for moment in moments])
    print(re.sub(rf"{re.escape(str(work))}/\w+/", "", text))
    print(f"the logs are in {work}", file=sys.stderr)
    (work / "log.json").write_text(json.dumps({it.fault.name: sorted(it.wrong) for it in results}))
    is_good = sum(it.is_named for it in results) >= len(results) - 1
    return 0 if is_good and not any(it.wrong or it.left or it.error for it in results) else 1


def main() -> int:
    """Parses the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", type=Path, required=True)
    parser.add_argument("--prometheus", type=Path, required=True)
    parser.add_argument("--collector", type=Path)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

"""Stages faults and judges the verdicts of the gateway. See tests/staged_faults.sh."""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from faults import FAULTS, Fault
from prometheus import fetch
from testbed import WARM_SECONDS, Testbed, Tools

# After this time without an ejected backend, no condition may be named. A condition counts requests of the last minute,
# and requests of the fault end after it.
CLEAR_SECONDS = 75.0
NAMED_SECONDS = 60.0
FAULT_SECONDS = 300.0
POLL_SECONDS = 2.0
# The longest ejection takes 5 min, and the first request after it a moment.
MAX_EJECTED_SECONDS = 330.0


@dataclass
class Result:
    """What the gateway said about a fault."""

    fault: Fault
    named_after: float | None = None
    wrong: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=lambda: ["not seen"])
    """The conditions that the page and `diagnose` still name after the fault has ended."""
    error: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the first screen names the fault within the limit."""
        return self.named_after is not None and self.named_after <= NAMED_SECONDS

    def __str__(self) -> str:
        if self.error:
            return f"error: {self.error.strip().splitlines()[-1]}"
        named = f"named after {self.named_after:.0f} s" if self.named_after is not None else "NOT NAMED"
        wrong = f"; WRONG: {sorted(self.wrong)}" if self.wrong else ""
        left = f"; LEFT: {self.left}" if self.left else ""
        return named + wrong + left


async def stage(fault: Fault, tools: Tools, work: Path, seconds: float) -> Result:
    """Stages one fault in a testbed of its own."""
    result = Result(fault)
    testbed = Testbed(tools, work / fault.name.replace(" ", "_"), fault.options)
    try:
        await testbed.start()
        testbed.load.start(fault.clients, model=testbed.model, **fault.request)
        await asyncio.sleep(WARM_SECONDS)
        watching = asyncio.create_task(watch(testbed, result))
        async with fault.begin(testbed):
            await asyncio.sleep(seconds)
        await admitted(testbed)
        await asyncio.sleep(CLEAR_SECONDS)
        watching.cancel()
        result.left = await conditions(testbed)
    except Exception:  # noqa: BLE001 The other faults go on.
        result.error = traceback.format_exc()
    finally:
        await testbed.load.stop()
        await asyncio.to_thread(testbed.end)
    print(f"{fault.name}: {result}", file=sys.stderr, flush=True)
    return result


async def streams(testbed: Testbed) -> dict:
    """The document /streams, which the live page and `tokenweir top` show."""
    return await fetch(f"{testbed.url('admin')}/streams")


async def admitted(testbed: Testbed) -> None:
    """Waits until no backend is ejected. An ejected backend gets no requests, so nothing shows that the fault has ended."""
    async with asyncio.timeout(MAX_EJECTED_SECONDS):
        while True:
            with suppress(OSError):
                status = await fetch(f"{testbed.url('admin')}/status")
                if all(backend["breaker"] != "open" for backend in status["backends"]):
                    return
            await asyncio.sleep(POLL_SECONDS)


def verdict_text(verdict: dict) -> str:
    """A verdict as text: its name, its subject and its cause."""
    scope = {"gateway": "gateway", "fleet": "all"}.get(verdict.get("scope"), verdict["backend"])
    cause = f" ({verdict['cause']})" if verdict.get("cause") else ""
    return f"{verdict['severity']} {verdict['verdict']} {scope}{cause}"


async def watch(testbed: Testbed, result: Result) -> None:
    """Notes when the first screen first names the fault, and all verdicts about something else."""
    begin = time.monotonic()
    while True:
        try:
            document = await streams(testbed)
        except OSError:
            # The machine is busy: ignore the error, the next request follows.
            document = {"verdicts": []}
        for text in map(verdict_text, document["verdicts"]):
            if result.fault.is_named_by(text) and result.named_after is None:
                result.named_after = time.monotonic() - begin
            if result.fault.is_wrong(text):
                result.wrong.add(text)
        await asyncio.sleep(POLL_SECONDS)


async def conditions(testbed: Testbed) -> list[str]:
    """The conditions that the page and `diagnose` name now."""
    document = await streams(testbed)
    found = [verdict_text(it) for it in document["verdicts"]]
    if document["state"] != "ready":
        found.append(f"page: {document['state']} ({'; '.join(document['state_reasons'])})")
    command = [str(testbed.tools.gateway), "diagnose", "--admin", testbed.url("admin")]
    run = lambda: subprocess.run(command, capture_output=True, timeout=30)
    code = (await asyncio.to_thread(run)).returncode
    return found + ([] if code in (0, 3) else [f"diagnose: exit {code}"])


def cell(text: str) -> str:
    """Text as the content of a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", "<br>")


def report(results: list[Result]) -> str:
    """A Markdown table with a summary above it."""
    named = sum(result.is_named for result in results)
    wrong = [result.fault.name for result in results if result.wrong]
    left = [result.fault.name for result in results if result.left]
    lines = [
        f"{named} of {len(results)} faults were named on the first screen within {NAMED_SECONDS:g} s. "
        f"Verdicts about something else: {', '.join(wrong) or 'none'}. "
        f"Left {CLEAR_SECONDS:g} s after the end and the last ejection: {', '.join(left) or 'nothing'}.",
        "",
        "| fault | result |",
        "|---|---|",
        *(f"| {result.fault.name} | {cell(str(result))} |" for result in results),
    ]
    return "\n".join(lines)


async def run(arguments: argparse.Namespace) -> int:
    """Stages the selected faults, some at a time."""
    tools = Tools(arguments.gateway, arguments.collector, arguments.real)
    seconds = NAMED_SECONDS if arguments.quick else FAULT_SECONDS
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
            return await stage(fault, tools, work, seconds)

    results = await asyncio.gather(*map(one, selected))
    print(report(results))
    print(f"the logs are in {work}", file=sys.stderr)
    is_good = sum(it.is_named for it in results) >= len(results) - 1
    return 0 if is_good and not any(it.wrong or it.left or it.error for it in results) else 1


def main() -> int:
    """Parses the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", type=Path, required=True)
    parser.add_argument("--collector", type=Path)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

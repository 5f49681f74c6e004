#!/usr/bin/env python3
"""Starts the whole chain, makes load and faults, and checks what an operator would see.

Exit code 1: something did not hold. ../stack.sh calls this.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import alerts
import dashboards
import engine
import phoenix
import pictures
import traces
from prometheus import Prometheus
from report import Report
from stand import Stand, Tools

BASELINE_CLIENTS = 8
SLOW = "slow_first_token"
"""Why the trace in the picture was kept."""
STEPS = ("alerts", "traces", "phoenix", "dashboards", "engine")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--gateway", required=True, type=Path, help="the program")
    add("--tools", required=True, type=Path, help="the folder of install.sh")
    add("--work", required=True, type=Path, help="a folder for logs and data")
    add("--dashboards", required=True, type=Path, help="the folder of dashboards that ship")
    add("--faster", type=float, default=30.0, help="what the windows of rules are divided by")
    add("--only", default=",".join(STEPS), help="steps, with commas")
    add("--fault", default="", help="only faults whose names have this text")
    add("--engine", type=Path, help="folder of serve.sh and stop.sh of a real vLLM")
    add("--screenshots", type=Path, help="a folder for pictures")
    return parser.parse_args()


async def main() -> int:
    args = arguments()
    report, only = Report(), args.only.split(",")
    stand = Stand(Tools(args.tools, args.gateway), args.work, args.faster)
    task = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await stand.start()
        begin = time.time()
        prometheus = Prometheus(stand.url("prometheus"))
        stand.load.start(BASELINE_CLIENTS)
        stand.load.start(1, usage={"include_usage": True, "continuous_usage_stats": True})
        stand.load.start(1, stream=False)
        # Some rules compare with an hour before.
        await asyncio.sleep((1.2 * 3600 if "alerts" in only else 600) / args.faster)
        picture = partial(pictures.take, stand, report, args.screenshots)
        steps = {
            "alerts": lambda: alerts.check(stand, prometheus, report, args.fault),
            "traces": lambda: traces.check(stand, prometheus, report),
            "phoenix": lambda: phoenix.check(stand, report),
            "dashboards": lambda: dashboards.check(args.dashboards, prometheus, report, begin),
        }
        if args.engine:
            steps["engine"] = lambda: engine.check(stand, report, args.engine)
        report.note("machine", "load average before", os.getloadavg())
        for name in [name for name in steps if name in only]:
            try:
                await steps[name]()
            except Exception:
                traceback.print_exc()
                report.check(name, "the step ran to its end", False)
        report.note("machine", "load average after", os.getloadavg())
        if args.screenshots:
            minutes = round((time.time() - begin) / 60) + 1
            await picture("alerts", pictures.alerts_page(stand, minutes))
            slow = [each for each, why in traces.reasons(stand).items() if why == SLOW]
            if stand.tools.phoenix and slow:
                await picture("trace", pictures.trace_page(stand, slow[-1]))
        await stand.load.stop()
    finally:
        stand.end()
    report.print()
    return int(report.failed())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

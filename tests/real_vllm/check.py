#!/usr/bin/env python3
"""Checks a gateway in front of two real vLLM replicas, step by step, and prints a table.

Exit code 1: something did not hold. ../real_vllm.sh starts everything that this needs.
"""

import argparse
import asyncio
import os
import sys
import traceback
from pathlib import Path

import answers
import bench
import faults
import spans
from fleet import AccessLog, Fleet
from report import Report


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--gateway", required=True, help="where clients are served")
    add("--admin", required=True, help="the gateway's operators' port")
    add("--single", required=True, help="another gateway, before the first replica only")
    add("--replica", required=True, action="append", help="may be given several times")
    add("--access-log", required=True, type=Path, help="the gateway's standard output")
    add("--work", required=True, type=Path, help="a folder for results")
    add("--bench", type=Path, help="vLLM's load generator, vllm-rs")
    add("--tokenizer", type=Path, help="the model's folder, for the load generator")
    add("--spans", type=Path, help="where a collector writes spans, as JSON")
    add("--kill", type=Path, help="folder of serve.sh, to kill and start a replica")
    add("--run", type=Path, help="folder of the replicas' process ids")
    return parser.parse_args()


async def main() -> int:
    args = arguments()
    fleet = Fleet(args.gateway, args.admin, args.replica, AccessLog(args.access_log))
    report = Report()
    steps = [
        ("answers", answers.check(fleet, report)),
        ("cancel", faults.check_cancel(fleet, report)),
    ]
    if args.bench:
        tool = bench.Tool(args.bench, args.tokenizer, args.work, args.single)
        steps.append(("bench", bench.check(fleet, report, tool)))
    else:
        report.note("bench", "skipped", "no vllm-rs")
    if args.spans:
        steps.append(("traces", spans.check(fleet, report, args.spans)))
    if args.kill:
        steps.append(("kill", faults.check_kill(fleet, report, args.kill, args.run)))
    report.note("machine", "load average before", load_average())
    for name, step in steps:
        try:
            await step
        except Exception:
            traceback.print_exc()
            report.check(name, "the step ran to its end", False)
    report.note("machine", "load average after", load_average())
    report.print()
    return int(report.failed())


def load_average() -> str:
    """How busy the machine was: times can only be judged with it."""
    return "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""The results of whole runs of ../real_vllm.sh, in results.tsv. docs/check.sh renders the file as the table of
docs/reference/engines.md.
"""

import csv
import datetime
import json
import pathlib
import urllib.request

from report import Report

FILE = pathlib.Path(__file__).with_name("results.tsv")
FRONT_ENDS = {"python": "Python", "rust": "Rust"}
SCRIPT = "tests/real_vllm.sh"


def version(backend: str) -> str:
    """The version that a vLLM server reports."""
    with urllib.request.urlopen(f"{backend}/version", timeout=10) as response:
        return json.load(response)["version"]


def write(report: Report, backend: str, front_end: str) -> None:
    """Replaces the row of this server and front end, or adds it in front of the others."""
    counts = [result for *_, result in report.rows]
    row = {
        "server": f"vLLM {version(backend)}",
        "front end": FRONT_ENDS[front_end],
        "tried with": SCRIPT,
        "when": datetime.date.today().isoformat(),
        "result": f"{counts.count('ok')} ok, {counts.count('FAILED')} failed",
    }
    key = ("server", "front end", "tried with")
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    kept = [other for other in rows if any(other[column] != row[column] for column in key)]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, row.keys(), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows([row, *kept])

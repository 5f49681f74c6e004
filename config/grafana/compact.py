#!/usr/bin/env python3
"""Writes dashboards as they are committed, after an export from Grafana:

    config/grafana/compact.py config/grafana/dashboards/*.json

A value that fits into a line is on one line. What Grafana adds for its own database (`id`, `version`) is removed.
"""

import json
import sys

WIDTH = 120
OF_THE_DATABASE = ("id", "version", "__inputs", "__requires", "__elements")


def text(value, indent=0, used=0):
    """The JSON text of a value at this indent. `used` is the number of characters that its key takes on the first line."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or indent + used + len(line) <= WIDTH:
        return line
    outer, inner = " " * indent, " " * (indent + 2)
    if isinstance(value, list):
        items, ends = [text(item, indent + 2) for item in value], "[]"
    else:
        keys = {key: json.dumps(key) + ": " for key in value}
        items, ends = [keys[key] + text(item, indent + 2, len(keys[key])) for key, item in value.items()], "{}"
    return ends[0] + "\n" + ",\n".join(inner + item for item in items) + "\n" + outer + ends[1]


if __name__ == "__main__":
    for file in sys.argv[1:]:
        with open(file, encoding="utf-8") as opened:
            dashboard = json.load(opened)
        dashboard = {key: value for key, value in dashboard.items() if key not in OF_THE_DATABASE}
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text(dashboard) + "\n")

"""Metrics pages of gateways and backends."""

import re
import urllib.request
from collections import Counter

SERIES = re.compile(r'^([\w:]+)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Page:
    """The samples of one metrics page: name, labels and value of each."""

    def __init__(self, text: str):
        self.series = []
        for line in text.splitlines():
            if match := SERIES.match(line):
                name, labels, value = match.groups()
                self.series.append((name, dict(LABEL.findall(labels or "")), float(value)))

    def by(self, name: str, label: str) -> Counter:
        """The sum of the samples of a metric for each value of a label. Empty if the metric is missing."""
        sums = Counter()
        for series, labels, value in self.series:
            if series == name:
                sums[labels[label]] += value
        return sums

    def total(self, name: str) -> float:
        """The sum of a metric over all its labels. Raises KeyError if the metric is missing."""
        values = [value for series, _, value in self.series if series == name]
        if not values:
            raise KeyError(f"no series {name}")
        return sum(values)


def fetch(base: str) -> Page:
    """The metrics page of a server. `base` is its URL without a path."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=5) as response:
        return Page(response.read().decode())

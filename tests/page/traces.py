"""Slow requests link to their traces. A fake collector and trace viewer receives the spans and the clicks."""

import gzip
import json
import re
import urllib.request
from pathlib import Path

from browser import Browser, Driver
from program import Program, get
from server import SilentHandler, serve

KNOWN_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Viewer:
    """Accepts spans at /v1/traces, and serves a page at /trace/ID."""

    def __init__(self) -> None:
        self.spans = bytearray()
        self.requests: list[tuple[str, str | None]] = []
        viewer = self

        class Handler(SilentHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_compressed = self.headers.get("content-encoding") == "gzip"
                viewer.spans += gzip.decompress(body) if is_compressed else body
                self.respond("application/x-protobuf", b"")

            def do_GET(self) -> None:
                viewer.requests.append((self.path, self.headers.get("referer")))
                self.respond("text/html", b"<title>a trace</title>")

        self.url = serve(Handler)

    def has_shown(self, trace: str) -> bool:
        return any(path == f"/trace/{trace}" for path, _ in self.requests)


def send_request(clients: str, number: int) -> None:
    headers = {"content-type": "application/json", "x-request-id": f"slow-{number}"}
    if number == 0:
        headers["traceparent"] = f"00-{KNOWN_TRACE}-00f067aa0ba902b7-01"
    body = {"stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    request = urllib.request.Request(f"{clients}/chat/completions", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=30).read()


def check_slow_requests(driver: Driver, binary: Path, folder: Path) -> None:
    viewer = Viewer()
    config = folder / "traces.yaml"
    # The TTFT of every request exceeds slow.ttft. Only the first request is also sampled by its traceparent
    # header.
    config.write_text(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"
        f"tracing: {{ endpoint: '{viewer.url}', protocol: http/protobuf, ratio: 0, ui: '{viewer.url}/trace/{{trace_id}}' }}\n"
        "slow: { ttft: 1ms }\nlog: { format: human }\n"
    )
    with (
        Program(binary, "sim", "--listen", "127.0.0.1:0", "--backends", "1") as sim,
        Program(binary, "serve", "--config", str(config), "--backend", sim.find(r"backend on (\S+),")) as gateway,
    ):
        clients = gateway.find(r"clients +(\S+)")
        url = gateway.find(r"admin +(http://\S+)")
        for number in range(3):
            send_request(clients, number)
        with Browser(driver, url) as browser:
            links = """Object.fromEntries([...document.querySelectorAll('#ended tbody tr')].map(
                (row) => [row.cells[0].textContent, row.querySelector('a[target]')?.href]))"""
            browser.wait_for("three requests", f"Object.values({links}).filter(Boolean).length === 3")
            shown = browser.run(f"return {links}")
            ended = get(f"{url}/streams")["ended"]
            traces = {entry["request_id"]: entry["trace_id"] for entry in ended if entry["slow_cause"]}
            assert shown == {id: f"{viewer.url}/trace/{trace}" for id, trace in traces.items()}, shown
            assert traces["slow-0"] == KNOWN_TRACE and len(set(traces.values())) == 3, traces
            for trace in traces.values():
                assert re.fullmatch("[0-9a-f]{32}", trace)
                browser.wait(f"spans of {trace}", lambda: bytes.fromhex(trace) in viewer.spans)
            check_link_keys(browser, viewer, traces)
            browser.screenshot(folder / "page-traces.png")
        assert all(referer is None for path, referer in viewer.requests if path.startswith("/trace/")), viewer.requests
        print(f"{len(traces)} slow requests link to {len(set(traces.values()))} traces with spans")


def check_link_keys(browser: Browser, viewer: Viewer, traces: dict[str, str]) -> None:
    row = "document.activeElement.closest('#ended tr').cells[0].textContent"
    browser.press("3")
    browser.press("t")
    first = traces[browser.run(f"return {row}")]
    browser.wait("t opens the trace", lambda: viewer.has_shown(first))
    browser.press("ArrowDown", "Tab")
    assert browser.run("return document.activeElement.tagName") == "A"
    second = traces[browser.run(f"return {row}")]
    assert second != first
    browser.press("Enter")
    browser.wait("Enter on the link opens it", lambda: viewer.has_shown(second))

"""Requests that were slow lead to their traces: a collector and a viewer of traces that are only
asked, and what the page links to."""

import gzip
import json
import re
import urllib.request
from pathlib import Path

from browser import Browser, Driver
from program import Program, get
from server import Answering, serve

KNOWN_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Viewer:
    """Takes spans at /v1/traces, and shows a trace at /trace/ID."""

    def __init__(self) -> None:
        self.spans = bytearray()
        self.asked: list[tuple[str, str | None]] = []
        viewer = self

        class Handler(Answering):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_packed = self.headers.get("content-encoding") == "gzip"
                viewer.spans += gzip.decompress(body) if is_packed else body
                self.answer("application/x-protobuf", b"")

            def do_GET(self) -> None:
                viewer.asked.append((self.path, self.headers.get("referer")))
                self.answer("text/html", b"<title>a trace</title>")

        self.url = serve(Handler)

    def has_shown(self, trace: str) -> bool:
        return any(path == f"/trace/{trace}" for path, _ in self.asked)


def ask(clients: str, number: int) -> None:
    headers = {"content-type": "application/json", "x-request-id": f"slow-{number}"}
    if number == 0:
        headers["traceparent"] = f"00-{KNOWN_TRACE}-00f067aa0ba902b7-01"
    body = {"stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    request = urllib.request.Request(f"{clients}/chat/completions", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=30).read()


def slow_requests_link_to_their_traces(driver: Driver, binary: Path, folder: Path) -> None:
    viewer = Viewer()
    sim = Program(binary, "sim", "--listen", "127.0.0.1:0", "--replicas", "1")
    replica = sim.find(r"replica on (\S+),")
    config = folder / "traces.yaml"
    # Every request is slow by these limits, and none is kept for another reason but one.
    config.write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: [{{ url: '{replica}' }}]\n"
        f"tracing: {{ endpoint: '{viewer.url}', protocol: http/protobuf, ratio: 0, ui: '{viewer.url}/trace/{{trace_id}}' }}\n"
        "slow: { ttft: 1ms }\nlog: { format: human }\n"
    )
    gateway = Program(binary, "serve", "--config", str(config))
    clients = gateway.find(r"clients +(\S+)")
    url = gateway.find(r"admin +(http://\S+)")
    try:
        for number in range(3):
            ask(clients, number)
        with Browser(driver) as browser:
            browser.screen(1280, 980)
            browser.open(url)
            links = """Object.fromEntries([...document.querySelectorAll('#ended tbody tr')].map(
                (row) => [row.cells[0].textContent, row.querySelector('a')?.href]))"""
            browser.wait_for("three requests", f"Object.values({links}).filter(Boolean).length === 3")
            shown = browser.run(f"return {links}")
            ended = get(f"{url}/live")["ended"]
            told = {one["request_id"]: one["trace_id"] for one in ended if one["slow"]}
            assert shown == {id: f"{viewer.url}/trace/{trace}" for id, trace in told.items()}, shown
            assert told["slow-0"] == KNOWN_TRACE and len(set(told.values())) == 3, told
            for trace in told.values():
                assert re.fullmatch("[0-9a-f]{32}", trace)
                browser.wait(f"spans of {trace}", lambda: bytes.fromhex(trace) in viewer.spans)
            keys_reach_the_link(browser, viewer, told)
            browser.picture(folder / "page-traces.png")
        assert all(referer is None for path, referer in viewer.asked if path.startswith("/trace/")), viewer.asked
        print(f"{len(told)} slow requests link to {len(set(told.values()))} traces, whose spans were sent")
    finally:
        gateway.stop()
        sim.stop()


def keys_reach_the_link(browser: Browser, viewer: Viewer, told: dict[str, str]) -> None:
    row = "document.activeElement.closest('#ended tr').cells[0].textContent"
    browser.press("3")
    browser.press("t")
    first = told[browser.run(f"return {row}")]
    browser.wait("t opens the trace", lambda: viewer.has_shown(first))
    browser.press("ArrowDown", "Tab")
    assert browser.run("return document.activeElement.tagName") == "A"
    second = told[browser.run(f"return {row}")]
    assert second != first
    browser.press("Enter")
    browser.wait("Enter on the link opens it", lambda: viewer.has_shown(second))

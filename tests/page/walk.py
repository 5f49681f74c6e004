"""A walk through the page with mouse, finger and keyboard, in light and dark, from 390 to 1440 px: a backend, its requests,
one request as a waterfall, models, the timeline. The fleet has long names. axe checks each view, if it is installed."""

import json
import os
import urllib.request
from pathlib import Path

from browser import Browser, Driver
from program import Program, get

SIZES = [(390, 1300), (768, 1100), (1280, 980), (1440, 1000)]
BACKENDS = 40
MODELS = ["llama4-maverick", "qwen3-32b"]
ROWS = "[...document.querySelectorAll('#backends tbody tr')]"
REQUEST = "'a[href^=\"#request\"]'"
DIALOG = "document.querySelector('dialog[open]')"


def write_config(folder: Path, urls: list[str]) -> Path:
    """A configuration that gives the backends names which differ in their last characters only."""
    names = [f"vllm-llama4-maverick-17b-128e-instruct-{number:02}" for number in range(len(urls))]
    backends = [{"url": url, "name": name} for url, name in zip(urls, names, strict=True)]
    config = folder / "walk.yaml"
    config.write_text(json.dumps({
        "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "backends": backends, "log": {"format": "human"},
        "slow": {"ttft": "1ms"}, "timeline": {"file": str((folder / "timeline.jsonl").resolve())},
    }))
    return config


def check_axe(browser: Browser, view: str) -> None:
    """Finds no violation of the rules of axe-core in AXE, a file `axe.min.js`."""
    if not os.environ.get("AXE"):
        return
    browser.run(Path(os.environ["AXE"]).read_text() + "\nwindow.axe = axe;")
    browser.run("window.found = null; axe.run().then((result) => window.found = result.violations)")
    browser.wait_for("the result of axe", "window.found !== null")
    found = browser.run("return window.found.map((one) => [one.id, one.nodes.map((node) => node.html).slice(0, 3)])")
    assert found == [], f"{view}: {json.dumps(found, indent=1)}"


def check_width(browser: Browser, view: str) -> None:
    overflow = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"{view}: {overflow} px too wide"


def look(browser: Browser, folder: Path, view: str, anchor: str = "document.body") -> None:
    """Checks a view, which begins with an element, and takes its picture at each size, in light and dark."""
    for width, height in SIZES:
        for scheme in ["light", "dark"]:
            browser.screen(width, height, scheme)
            browser.run(f"{anchor}.scrollIntoView()")
            check_width(browser, f"{view} {width}")
            check_axe(browser, f"{view} {width} {scheme}")
            browser.screenshot(folder / f"walk-{view}-{width}-{scheme}.png")
    browser.screen(1280, 980)


def check_names(browser: Browser) -> None:
    """At each width, the visible ends of the names differ, and no table of backends needs a scroll bar from 1280 px on."""
    browser.run("document.querySelector('#backends .fold').click()")
    for width, height in SIZES:
        browser.screen(width, height)
        ends = browser.run(f"""return {ROWS}.map((row) => {{
            const [cell, end] = [row.cells[0].getBoundingClientRect(), row.cells[0].querySelector('.cut > :nth-child(2)')];
            return end.getBoundingClientRect().right <= cell.right ? end.textContent : '';
        }})""")
        assert len(set(ends)) == BACKENDS, (width, ends)
        frame = browser.run("const f = document.querySelector('#backends .frame'); return f.scrollWidth - f.clientWidth")
        assert width < 1280 or frame <= 0, f"{width}: the table is {frame} px too wide"
    browser.screen(1280, 980)
    browser.run("document.querySelector('#backends .fold').click()")


def place(browser: Browser, element: str) -> tuple[float, float]:
    """The middle of an element, which is scrolled into view."""
    box = browser.run(f"""const it = {element};
        it.scrollIntoView({{ block: 'center' }});
        const {{ left, top, width, height }} = it.getBoundingClientRect();
        return [left + width / 2, top + height / 2];""")
    return box[0], box[1]


def click(browser: Browser, element: str) -> None:
    x, y = place(browser, element)
    for kind in ["mousePressed", "mouseReleased"]:
        browser.devtools("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def touch(browser: Browser, element: str) -> None:
    x, y = place(browser, element)
    browser.devtools("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    browser.devtools("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


def close(browser: Browser) -> None:
    browser.press("Escape")
    browser.wait_for("no dialog", f"{DIALOG} === null && location.hash === ''")


def check_models(browser: Browser) -> None:
    """A click on a model shows only its rows."""
    click(browser, "document.querySelectorAll('#models tbody tr')[1].cells[2]")
    browser.wait_for("the model in the filter", f"{json.dumps(MODELS)}.includes(document.getElementById('filter').value)")
    browser.wait_for("no fragment", "location.hash === ''")
    browser.wait_for("the rows of the model", "document.querySelectorAll('#models tbody tr').length === 1")
    browser.run("document.getElementById('filter').focus()")
    browser.press("Escape")
    browser.wait_for("all models", "document.querySelectorAll('#models tbody tr').length === 2")


def check_backend(browser: Browser, folder: Path) -> None:
    """A click, a touch and Enter open a backend, and from there a request."""
    ready = f"{DIALOG}?.textContent.includes('Circuit breaker')"
    cell = f"{ROWS}[0].cells[3]"
    assert browser.run(f"return getComputedStyle({cell}).cursor") == "pointer"
    click(browser, cell)
    browser.wait_for("a click opens the backend", ready)
    close(browser)
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
    touch(browser, cell)
    browser.wait_for("a touch opens the backend", ready)
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=False)
    close(browser)
    rows = browser.run("return [...document.querySelectorAll('#ended td')].map((cell) => cell.firstChild?.title)")
    name = next(title for title in rows if title and title.startswith("vllm-"))
    browser.run(f"location.hash = new URLSearchParams({{ backend: {json.dumps(name)} }})")
    browser.wait_for("its requests", f"{DIALOG}?.querySelector({REQUEST}) != null")
    look(browser, folder, "backend")
    click(browser, f"{DIALOG}.querySelector({REQUEST})")
    browser.wait_for("a request", f"{DIALOG}?.querySelector('.waterfall rect') != null")
    close(browser)


def check_request(browser: Browser, folder: Path) -> None:
    """A click, a touch and Enter on an ended request show its waterfall. Its bars lie within the time of the request."""
    ready = f"{DIALOG}?.querySelector('.waterfall rect') != null"
    row = "document.querySelector('#ended tbody tr')"
    click(browser, f"{row}.cells[3]")
    browser.wait_for("a click opens the request", ready)
    bars = browser.run(f"""return [...{DIALOG}.querySelectorAll('.waterfall rect')].map(
        (bar) => [Number(bar.getAttribute('x')), Number(bar.getAttribute('width'))])""")
    assert all(0 <= x <= 1000 and width <= 1001 - x + 2 for x, width in bars), bars
    look(browser, folder, "request")
    close(browser)
    browser.press("3", "Enter")
    browser.wait_for("Enter opens the request", ready)
    close(browser)
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
    touch(browser, f"{row}.cells[3]")
    browser.wait_for("a touch opens the request", ready)
    browser.devtools("Emulation.setTouchEmulationEnabled", enabled=False)
    close(browser)


def check_link(browser: Browser, url: str) -> None:
    """A link to a request and a link to a moment open the page there."""
    id = get(f"{url}/streams")["ended"][0]["request_id"]
    browser.open("about:blank")
    browser.open(f"{url}/#request={id}")
    browser.wait_for("the request", f"{DIALOG}?.textContent.includes({json.dumps(id)})")
    close(browser)
    browser.open("about:blank")
    browser.open(f"{url}/#at=2001-02-03T04:05")
    browser.wait_for("the moment", "document.querySelector('#timeline .frame')?.textContent.includes('Nothing is known')")
    assert browser.run("return document.getElementById('at').value") == "2001-02-03T04:05"
    click(browser, "document.querySelector('#timeline button')")
    browser.wait_for("the last marks", "document.querySelector('#timeline table') !== null")


def check_timeline(browser: Browser, url: str, folder: Path) -> None:
    """A drain and its end are on the timeline, and in the file."""
    name = get(f"{url}/streams")["backends"][3]["name"]
    for verb, ends in [("drain", False), ("undrain", True)]:
        browser.run(f"return fetch('/-/{verb}?backend={name}', {{ method: 'POST', headers: {{ 'content-type': 'application/json' }} }})")
        drains = lambda: [mark for mark in get(f"{url}/history")["marks"] if mark["kind"] == "drain"]
        browser.wait(f"the {verb} is a mark", lambda: [mark["ended"] is not None for mark in drains()] == [ends])
    assert "drain" in (folder / "timeline.jsonl").read_text()
    browser.wait_for("the page shows it", f"document.querySelector('#timeline').textContent.includes({json.dumps(name)})")
    heat = "document.querySelectorAll('#heat rect').length"
    browser.wait_for("the heat map", f"{heat} > 0")
    look(browser, folder, "timeline", "document.getElementById('heat')")
    browser.run("window.scrollTo(0, 0)")


def check_walk(driver: Driver, binary: Path, folder: Path) -> None:
    (folder / "timeline.jsonl").unlink(missing_ok=True)
    sims = [("--model", model, "--listen", "127.0.0.1:0", "--backends", str(BACKENDS // 2)) for model in MODELS]
    with Program(binary, "sim", *sims[0]) as first, Program(binary, "sim", *sims[1]) as second:
        urls = [sim.find(r"backend on (\S+),") for sim in [first, second] for _ in range(BACKENDS // 2)]
        with (
            Program(binary, "serve", "--config", str(write_config(folder, urls))) as gateway,
            Browser(driver) as browser,
        ):
            clients = gateway.find(r"clients +(\S+)")
            walk(browser, gateway.find(r"admin +(http://[^/ ]+)"), clients, folder)


def walk(browser: Browser, url: str, clients: str, folder: Path) -> None:
    for number in range(8):
        send(clients, MODELS[number % 2])
    browser.open(url)
    browser.wait_for("requests", "document.querySelectorAll('#ended tbody tr').length >= 8")
    look(browser, folder, "fleet")
    check_names(browser)
    check_models(browser)
    check_backend(browser, folder)
    check_request(browser, folder)
    check_link(browser, url)
    check_timeline(browser, url, folder)
    print(f"walk: mouse, finger and keyboard, {len(SIZES)} widths, light and dark")


def send(clients: str, model: str) -> None:
    body = {"model": model, "stream": True, "max_tokens": 20, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{clients}/chat/completions", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=30).read()

"""Tests the live page of the real program in Chromium. See tests/page.sh."""

import argparse
import json
import sys
import time
import urllib.request
from pathlib import Path

import fleet
import trouble
import traces
import walk
from browser import Browser, Driver
from program import Program, get

FIRST_VALUES_SECONDS = 5.0
TOKEN = "operator-token"
EVIL_MODEL = "<img src=x onerror=window.evil=1>"
EVIL_ID = "<img/src=x/onerror=window.evil=1>"


def check_updates(browser: Browser, program: Program, url: str) -> None:
    """After the start of the program, a tile shows three different values within FIRST_VALUES_SECONDS."""
    browser.open(url)
    browser.run("""
        window.shown = [...Array(8)].map(() => []);
        setInterval(() => document.querySelectorAll('#tiles strong').forEach((tile, index) => {
            const [text, values] = [tile.textContent, window.shown[index]];
            if (/[0-9]/.test(text) && text !== values.at(-1)) values.push(text);
        }), 20);
    """)
    browser.wait_for("a value", "window.shown.some((values) => values.length > 0)")
    first = time.monotonic() - program.started
    browser.wait_for("a value that changed twice", "window.shown.some((values) => values.length > 2)")
    elapsed = time.monotonic() - program.started
    print(f"after the start: the first value in {first:.2f} s, the third in {elapsed:.2f} s")
    assert elapsed < FIRST_VALUES_SECONDS, f"{elapsed:.1f} s"


def check_keys(browser: Browser, url: str) -> None:
    rows = "document.querySelectorAll('#backends tbody tr').length"
    assert browser.run(f"return {rows}") == 3
    browser.press("/")
    browser.wait_for("the filter has the focus", "document.activeElement.id === 'filter'")
    name = browser.run("return document.querySelector('#backends tbody tr').dataset.key")
    browser.press(*name)
    browser.wait_for("one backend matches", f"{rows} === 1")
    browser.press("Escape")
    browser.wait_for("all backends are shown", f"{rows} === 3")
    browser.press("1", "ArrowDown")
    selected = browser.run("return document.activeElement.dataset.key")
    browser.press("d")
    browser.wait_for("a confirmation", "document.querySelector('dialog[open] .main')?.textContent === 'Drain'")
    browser.press("Enter")

    def drained() -> list[str]:
        return [backend["backend"] for backend in get(f"{url}/status")["backends"] if backend["drained"]]

    browser.wait("the backend is drained", lambda: drained() == [selected])
    browser.wait_for("the page shows the drain", "document.querySelector('#backends .chip.drained') !== null")
    browser.press("d")
    browser.wait_for("a confirmation", "document.querySelector('dialog[open] .main')?.textContent === 'Undrain'")
    browser.press("Enter")
    browser.wait("the backend is undrained", lambda: drained() == [])
    browser.press("?")
    browser.wait_for("help", "document.querySelector('dialog[open].keys') !== null")
    browser.press("Escape")
    browser.wait_for("no help", "document.querySelector('dialog') === null")
    browser.press("3", "Enter")
    browser.wait_for("a request", "document.querySelector('dialog[open] .waterfall rect') !== null")
    browser.press("Escape")
    sort = "document.querySelector('#backends th[aria-sort=descending], #backends th[aria-sort=ascending]').textContent"
    before = browser.run(f"return {sort}")
    browser.press("1", "s")
    browser.wait_for("another order", f"{sort} !== {json.dumps(before)}")
    browser.run("document.querySelector('#backends th button').click()")


def check_layout(browser: Browser, folder: Path, seconds: float) -> None:
    time.sleep(seconds)
    for name, width, height, scheme in [
        ("light", 1280, 980, "light"), ("dark", 1280, 980, "dark"), ("narrow", 400, 1500, "light"),
    ]:
        browser.screen(width, height, scheme)
        browser.run("window.scrollTo(0, 0); document.activeElement.blur()")
        overflow = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
        assert overflow <= 0, f"{name}: {overflow} px too wide"
        browser.screenshot(folder / f"page-{name}.png")
    background = "getComputedStyle(document.body).backgroundColor"
    browser.screen(1280, 980, "dark")
    dark = browser.run(f"return {background}")
    browser.screen(1280, 980, "light")
    assert dark != browser.run(f"return {background}")


def check_no_external_requests(browser: Browser, url: str) -> None:
    for entry in browser.log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            requested = message["params"]["request"]["url"]
            assert requested.startswith((url, "data:", "about:", "chrome:")), requested
    problems = [entry["message"] for entry in browser.log("browser")]
    assert problems == [], problems


def check_gateway_ended(browser: Browser, program: Program, folder: Path) -> None:
    program.stop()
    browser.wait_for("the error message", "!document.getElementById('problem').hidden")
    message = browser.text("#problem")
    assert "does not answer" in message and "shows the last data" in message, message
    assert browser.text("#pulse") == "", "the page must not show `live`"
    assert browser.run("return document.querySelectorAll('#backends tbody tr').length") == 3
    assert browser.run("return document.title").startswith("no data")
    browser.screenshot(folder / "page-gone.png")


def check_names_are_escaped(driver: Driver, binary: Path) -> None:
    addresses = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "human"]
    with (
        Program(binary, "sim", "--listen", "127.0.0.1:0", "--backends", "1", "--model", EVIL_MODEL) as sim,
        Program(binary, "serve", "--backend", sim.find(r"backend on (\S+),"), *addresses) as gateway,
    ):
        clients = gateway.find(r"clients +(\S+)")
        admin = gateway.find(r"admin +(http://\S+)")
        body = {"model": EVIL_MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"content-type": "application/json", "x-request-id": EVIL_ID}
        request = urllib.request.Request(f"{clients}/chat/completions", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=30).read()
        with Browser(driver, admin) as browser:
            shown = "[...document.querySelectorAll('#ended td')].map((cell) => cell.textContent)"
            browser.wait_for("the request", f"{shown}.includes({json.dumps(EVIL_ID[:8])})")
            assert EVIL_MODEL in browser.run(f"return {shown}")
            assert browser.run("return document.querySelector('#ended td').title") == EVIL_ID
            assert browser.run("return document.images.length === 0 && window.evil === undefined")


def check_without_scripts(driver: Driver, url: str, folder: Path) -> None:
    with Browser(driver, url, (800, 400), scripts=False) as browser:
        text = browser.text("body")
        assert "needs JavaScript" in text and "/status" in text and "/metrics" in text, text
        browser.screenshot(folder / "page-without-scripts.png")


def check_token(driver: Driver, binary: Path, folder: Path) -> None:
    config = folder / "token.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: [{ url: 'http://127.0.0.1:9' }]\n"
        "access: { admin_token: { env: PAGE_TOKEN } }\nlog: { format: human }\n"
    )
    with (
        Program(binary, "serve", "--config", str(config), PAGE_TOKEN=TOKEN) as gateway,
        Browser(driver, gateway.find(r"admin +(http://\S+)")) as browser,
    ):
        field = "document.querySelector('dialog[open] #token')"
        browser.wait_for("the token dialog", f"{field} !== null")
        browser.press(*"wrong", "Enter")
        browser.wait_for("the dialog after a wrong token", f"{field}?.closest('dialog').textContent.includes('not the token')")
        browser.screenshot(folder / "page-wrong-token.png")
        browser.press(*TOKEN, "Enter")
        browser.wait_for("the page", "document.querySelectorAll('#backends tbody tr').length === 1")
        assert browser.run("return localStorage.length === 0 && document.cookie === ''")
        assert browser.run("return Object.values(sessionStorage)") == [TOKEN]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--watch", type=float, default=5.0, help="seconds before the screenshots")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    driver = Driver()
    try:
        # The browser starts before the demo, because the time until the first values counts.
        with (
            Browser(driver) as browser,
            Program(arguments.binary, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0") as demo,
        ):
            url = demo.find(r"(http://[^/ ]+)/ +in a browser")
            check_updates(browser, demo, url)
            check_keys(browser, url)
            check_layout(browser, arguments.folder, arguments.watch)
            check_no_external_requests(browser, url)
            check_without_scripts(driver, url, arguments.folder)
            check_gateway_ended(browser, demo, arguments.folder)
        traces.check_slow_requests(driver, arguments.binary, arguments.folder)
        trouble.check_verdicts(driver, arguments.binary, arguments.folder)
        trouble.check_no_backends(driver, arguments.binary, arguments.folder)
        walk.check_walk(driver, arguments.binary, arguments.folder)
        fleet.check_fleets(driver, arguments.binary, arguments.folder)
        check_names_are_escaped(driver, arguments.binary)
        check_token(driver, arguments.binary, arguments.folder)
    finally:
        driver.stop()
    print(f"all checks of the page passed; screenshots are in {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

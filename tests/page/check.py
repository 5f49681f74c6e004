"""The live page in a real Chromium, in front of the program itself. See tests/page.sh."""

import argparse
import json
import sys
import time
import urllib.request
from pathlib import Path

import trouble
import traces
from browser import Browser, Driver
from program import Program, get

FIRST_NUMBERS_SECONDS = 5.0
TOKEN = "operator-token"
EVIL_MODEL = "<img src=x onerror=window.evil=1>"
EVIL_ID = "<img/src=x/onerror=window.evil=1>"


def numbers_move(browser: Browser, program: Program, url: str) -> None:
    """From the start of the program until a browser has shown three figures, one after the other."""
    browser.open(url)
    browser.run("""
        window.shown = [...Array(6)].map(() => []);
        setInterval(() => document.querySelectorAll('#tiles strong').forEach((tile, index) => {
            const [text, seen] = [tile.textContent, window.shown[index]];
            if (/[0-9]/.test(text) && text !== seen.at(-1)) seen.push(text);
        }), 20);
    """)
    browser.wait_for("a number", "window.shown.some((seen) => seen.length > 0)")
    first = time.monotonic() - program.started
    browser.wait_for("a number that changed twice", "window.shown.some((seen) => seen.length > 2)")
    took = time.monotonic() - program.started
    print(f"after the start: a number in {first:.2f} s, and it has changed twice in {took:.2f} s")
    assert took < FIRST_NUMBERS_SECONDS, f"{took:.1f} s"


def keys_work(browser: Browser, url: str) -> None:
    rows = "document.querySelectorAll('#replicas tbody tr').length"
    assert browser.run(f"return {rows}") == 3
    browser.press("/")
    browser.wait_for("the filter has the keys", "document.activeElement.id === 'filter'")
    name = browser.run("return document.querySelector('#replicas tbody tr td').textContent")
    browser.press(*name)
    browser.wait_for("one replica fits", f"{rows} === 1")
    browser.press("Escape")
    browser.wait_for("all are back", f"{rows} === 3")
    browser.press("1", "ArrowDown")
    chosen = browser.run("return document.activeElement.cells[0].textContent")
    browser.press("d")
    browser.wait_for("a question", "document.querySelector('dialog[open] .main')?.textContent === 'Drain'")
    browser.press("Enter")

    def drained() -> list[str]:
        return [one["backend"] for one in get(f"{url}/status")["backends"] if one["drained"]]

    browser.wait("it is drained", lambda: drained() == [chosen])
    browser.wait_for("the page says so", "document.querySelector('#replicas .chip.drained') !== null")
    browser.press("d")
    browser.wait_for("a question", "document.querySelector('dialog[open] .main')?.textContent === 'Undrain'")
    browser.press("Enter")
    browser.wait("it is back", lambda: drained() == [])
    browser.press("?")
    browser.wait_for("help", "document.querySelector('dialog[open].keys') !== null")
    browser.press("Escape")
    browser.wait_for("no help", "document.querySelector('dialog') === null")
    browser.press("3", "Enter")
    browser.wait_for("an explanation", "document.querySelector('dialog.wide .chosen') !== null")
    browser.press("Escape")
    sort = "document.querySelector('#replicas th[aria-sort=descending], #replicas th[aria-sort=ascending]').textContent"
    before = browser.run(f"return {sort}")
    browser.press("1", "s")
    browser.wait_for("another order", f"{sort} !== {json.dumps(before)}")
    browser.run("document.querySelector('#replicas th button').click()")


def looks_right(browser: Browser, folder: Path, seconds: float) -> None:
    time.sleep(seconds)
    for name, width, height, scheme in [
        ("light", 1280, 980, "light"), ("dark", 1280, 980, "dark"), ("narrow", 400, 1500, "light"),
    ]:
        browser.screen(width, height, scheme)
        browser.run("window.scrollTo(0, 0); document.activeElement.blur()")
        overflow = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
        assert overflow <= 0, f"{name}: {overflow} px too wide"
        browser.picture(folder / f"page-{name}.png")
    background = "getComputedStyle(document.body).backgroundColor"
    browser.screen(1280, 980, "dark")
    dark = browser.run(f"return {background}")
    browser.screen(1280, 980, "light")
    assert dark != browser.run(f"return {background}")


def nothing_leaves(browser: Browser, url: str) -> None:
    for entry in browser.log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked = message["params"]["request"]["url"]
            assert asked.startswith((url, "data:", "about:", "chrome:")), asked
    problems = [entry["message"] for entry in browser.log("browser")]
    assert problems == [], problems


def says_that_the_gateway_is_gone(browser: Browser, program: Program, folder: Path) -> None:
    program.stop()
    browser.wait_for("a statement", "!document.getElementById('problem').hidden")
    words = browser.text("#problem")
    assert "does not answer" in words and "how it was" in words, words
    assert browser.text("#pulse") == "", "nothing is live"
    assert browser.run("return document.querySelectorAll('#replicas tbody tr').length") == 3
    assert browser.run("return document.title").startswith("no news")
    browser.picture(folder / "page-gone.png")


def names_are_only_text(driver: Driver, binary: Path) -> None:
    sim = Program(binary, "sim", "--listen", "127.0.0.1:0", "--replicas", "1", "--model", EVIL_MODEL)
    replica = sim.find(r"replica on (\S+),")
    gateway = Program(
        binary, "serve", "--backend", replica, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
        "--log-format", "human",
    )
    clients = gateway.find(r"clients +(\S+)")
    admin = gateway.find(r"admin +(http://\S+)")
    try:
        body = {"model": EVIL_MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"content-type": "application/json", "x-request-id": EVIL_ID}
        request = urllib.request.Request(f"{clients}/chat/completions", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=30).read()
        with Browser(driver) as browser:
            browser.open(admin)
            shown = "[...document.querySelectorAll('#ended td')].map((cell) => cell.textContent)"
            browser.wait_for("the request", f"{shown}.includes({json.dumps(EVIL_ID)})")
            assert EVIL_MODEL in browser.run(f"return {shown}")
            assert browser.run("return document.images.length === 0 && window.evil === undefined")
    finally:
        gateway.stop()
        sim.stop()


def says_that_scripts_are_off(driver: Driver, url: str, folder: Path) -> None:
    with Browser(driver, scripts=False) as browser:
        browser.screen(800, 400)
        browser.open(url)
        words = browser.text("body")
        assert "needs JavaScript" in words and "/status" in words and "/metrics" in words, words
        browser.picture(folder / "page-without-scripts.png")


def asks_for_the_token(driver: Driver, binary: Path, folder: Path) -> None:
    config = folder / "token.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: [{ url: 'http://127.0.0.1:9' }]\n"
        "access: { admin_token: { env: PAGE_TOKEN } }\nlog: { format: human }\n"
    )
    gateway = Program(binary, "serve", "--config", str(config), PAGE_TOKEN=TOKEN)
    url = gateway.find(r"admin +(http://\S+)")
    try:
        with Browser(driver) as browser:
            browser.open(url)
            asked = "document.querySelector('dialog[open] #token')"
            browser.wait_for("the token is asked for", f"{asked} !== null")
            browser.press(*"wrong", "Enter")
            browser.wait_for("it is asked for again", f"{asked}?.closest('dialog').textContent.includes('not the token')")
            browser.picture(folder / "page-wrong-token.png")
            browser.press(*TOKEN, "Enter")
            browser.wait_for("the page", "document.querySelectorAll('#replicas tbody tr').length === 1")
            assert browser.run("return localStorage.length === 0 && document.cookie === ''")
            assert browser.run("return Object.values(sessionStorage)") == [TOKEN]
    finally:
        gateway.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--watch", type=float, default=5.0, help="seconds before the pictures")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    driver = Driver()
    demo = None
    try:
        with Browser(driver) as browser:
            browser.screen(1280, 980)
            demo = Program(given.binary, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
            url = demo.find(r"(http://[^/ ]+)/ +in a browser")
            numbers_move(browser, demo, url)
            keys_work(browser, url)
            looks_right(browser, given.folder, given.watch)
            nothing_leaves(browser, url)
            says_that_scripts_are_off(driver, url, given.folder)
            says_that_the_gateway_is_gone(browser, demo, given.folder)
        traces.slow_requests_link_to_their_traces(driver, given.binary, given.folder)
        trouble.verdicts_are_shown(driver, given.binary, given.folder)
        trouble.a_gateway_without_replicas_says_so(driver, given.binary, given.folder)
        names_are_only_text(driver, given.binary)
        asks_for_the_token(driver, given.binary, given.folder)
    finally:
        if demo is not None and demo.process.poll() is None:
            demo.stop()
        driver.stop()
    print(f"the page is as it should be; pictures are in {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

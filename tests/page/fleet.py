"""The live page with small and large fleets and staged faults: marked rows, summary, hidden rows, history, drains."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from browser import Browser, Driver
from program import Program, get

FAULT_SECONDS = 75.0
"""Timeout for a fault to be shown. `hang` and `drain` begin 15 s after the start; `slow` shows after slow requests end."""
ROWS = "[...document.querySelectorAll('#backends tbody tr')]"
FIRST = f"(({ROWS})[0]?.className ?? '') + ' ' + (({ROWS})[0]?.cells[1].textContent ?? '')"
NARROW = 390
SIZES = [("wide", 1440, 1000), ("narrow", NARROW, 1300)]


@contextmanager
def shown_demo(driver: Driver, binary: Path, *arguments: str) -> Iterator[tuple[Browser, str]]:
    """A browser that shows the page of a demo, and the URL of the page."""
    with Program(binary, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments) as demo:
        url = demo.find(r"(http://[^/ ]+)/ +in a browser")
        with Browser(driver, url, (1440, 1000)) as browser:
            yield browser, url


def take_pictures(browser: Browser, folder: Path, name: str) -> None:
    for scheme in ["light", "dark"]:
        for size, width, height in SIZES:
            browser.screen(width, height, scheme)
            browser.run("window.scrollTo(0, 0); document.activeElement.blur()")
            overflow = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"{name} {size}: {overflow} px too wide"
            browser.screenshot(folder / f"page-{name}-{size}-{scheme}.png")
    browser.screen(1440, 1000)


def check_ttft_is_visible_when_narrow(browser: Browser) -> None:
    browser.screen(NARROW, 1300)
    edge = browser.run(f"return Math.max(...{ROWS}.map((row) => row.cells[2].getBoundingClientRect().right))")
    title = browser.run("return document.querySelectorAll('#backends th')[2].textContent")
    assert title == "TTFT" and edge <= NARROW, (title, edge)
    browser.screen(1440, 1000)


def check_fault(driver: Driver, binary: Path, folder: Path, fault: str, backends: int, expected: str) -> None:
    """With this fault, the first row of the backends gets the expected class and state, and the summary counts it."""
    with shown_demo(driver, binary, "--fault", fault, "--backends", str(backends)) as (browser, url):
        browser.wait_for("the rows", f"{ROWS}.length > 0")
        shown = browser.wait_for(f"{fault}: {expected}", f"/{expected}/.test({FIRST}) && {FIRST}", FAULT_SECONDS)
        note = browser.text("#backends .title span")
        state = shown.split()[-1]
        assert state.removesuffix("ing").removesuffix("ed") in note, (shown, note)
        assert fault == "slow" or browser.text("#state") != "ready"
        check_ttft_is_visible_when_narrow(browser)
        take_pictures(browser, folder, f"{fault}-{backends}")
        print(f"{fault}, {backends} backends: first row {shown!r}, {note!r}, {browser.text('#state')!r}")
        if fault == "drain":
            check_drain_of_last_backend(browser, url, folder)


def check_drain_of_last_backend(browser: Browser, url: str, folder: Path) -> None:
    """Two of three backends are drained. To drain the third, the operator must type its name."""
    last = next(backend["name"] for backend in get(f"{url}/streams")["backends"] if backend["up"])
    browser.run(f"{ROWS}.find((row) => row.dataset.key === '{last}').querySelector('button').click()")
    button = "document.querySelector('dialog[open] .danger')"
    browser.wait_for("an alarm", f"{button}?.textContent === 'Drain the last backend'")
    assert browser.run(f"return {button}.disabled")
    assert "every new request is refused" in browser.text("dialog .alarm")
    browser.screenshot(folder / "page-drain-last.png")
    browser.press("Enter")
    assert browser.run(f"return {button} !== null"), "Enter must not confirm"
    browser.press(*last)
    browser.wait_for("a button that works", f"!{button}.disabled")
    browser.press("Escape")
    assert any(backend["up"] for backend in get(f"{url}/streams")["backends"])


def check_large_fleet(driver: Driver, binary: Path, folder: Path) -> None:
    with shown_demo(driver, binary, "--backends", "50", "--rate", "8") as (browser, url):
        browser.wait_for("a folded table", f"{ROWS}.length === 12")
        assert browser.text("#backends .title span") == "50 ok"
        browser.run("document.querySelector('#backends .fold').click()")
        browser.wait_for("all rows", f"{ROWS}.length === 50")
        browser.run("document.querySelector('#backends .fold').click()")
        browser.wait_for("a folded table", f"{ROWS}.length === 12")
        hidden = get(f"{url}/streams")["backends"][-1]["name"]
        browser.run("document.getElementById('filter').focus()")
        browser.press(*hidden)
        browser.wait_for("the filter finds folded rows", f"{ROWS}.some((row) => row.dataset.key === {json.dumps(hidden)})")
        browser.press("Escape")
        check_history(browser, url)
        check_details(browser)
        take_pictures(browser, folder, "ok-50")


def check_history(browser: Browser, url: str) -> None:
    """A page shows the history as soon as it is opened, and the value at the pointer."""
    browser.wait("two intervals", lambda: len(get(f"{url}/streams")["history"]["requests"]) > 2)
    browser.open(url)
    browser.wait_for("a plot", "document.querySelector('.spark .line')?.getAttribute('d')?.includes('L')")
    axis = "document.querySelector('.tile .axis')"
    assert "−5 min" in browser.run(f"return {axis}.textContent") and "max" in browser.run(f"return {axis}.textContent")
    browser.run("""
        const plot = document.querySelector('.tile .spark');
        const { right, top } = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent('pointermove', { clientX: right - 1, clientY: top + 1 }));
    """)
    browser.wait_for("the value at the pointer", f"{axis}.firstChild.textContent === 'now'")
    browser.run("document.querySelector('.tile .spark').dispatchEvent(new PointerEvent('pointerleave'))")


def check_details(browser: Browser) -> None:
    browser.press("1", "Enter")
    browser.wait_for("details", "document.querySelector('dialog[open] .facts')?.textContent.includes('Circuit breaker')")
    browser.press("Escape")
    browser.wait_for("no dialog", "document.querySelector('dialog') === null")


def check_fleets(driver: Driver, binary: Path, folder: Path) -> None:
    check_large_fleet(driver, binary, folder)
    check_fault(driver, binary, folder, "hang", 50, "bad .*down")
    check_fault(driver, binary, folder, "slow", 3, "(bad|warn) .*(slow|critical)")
    check_fault(driver, binary, folder, "hang", 3, "bad .*down")
    check_fault(driver, binary, folder, "drain", 3, "bad .*drain")

"""Take the pictures of docs/guides/dashboard.md again: `python -m tools.screenshots`. Needs Chromium."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from symphony.cli import demo
from symphony.engines.local import LocalEngine
from tests.service.dashboard.browser import browser
from tests.service.places import place

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOWN_S = 25.0  # of history


def main() -> None:
    """With the applications of `symphony demo`, on this machine."""
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, place(Path(folder), engine=lambda: LocalEngine(None)) as here:
        token = here.token("ann")
        arguments = here.server.url, token, demo.applications(), stop
        threading.Thread(target=demo.keep_busy, args=arguments, daemon=True).start()
        with browser() as page:
            page.size(1180, 640)
            page.log_in(here.server.url, token)
            page.until("document.querySelectorAll('.machine a').length > 1")
            page.run("document.querySelector('.machine .device').scrollIntoView()")
            bars = "[...document.querySelectorAll('.machine a')]"
            find = f"{bars}.find((one) => one.querySelector('title').textContent.includes('ours'))"
            page.until(f"!!{find}")
            page.run(f"{find}.dispatchEvent(new MouseEvent('click', {{bubbles: true, cancelable: true}}))")
            time.sleep(SHOWN_S)
            page.screenshot(IMAGES / "dashboard.png")
        stop.set()


if __name__ == "__main__":
    main()

"""A real Chromium for tests, driven over its DevTools pipe: no package, no port, nothing from outside."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import SECONDS

FLAGS = (
    "--headless",
    "--no-sandbox",  # containers and root have no user namespaces
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--force-prefers-reduced-motion",
    "--host-resolver-rules=MAP *.test 127.0.0.1",  # foreign names that lead here, as with DNS rebinding
    "--remote-debugging-pipe",
    "--window-size=1280,900",
)
# Chromium reads commands from descriptor 3, and writes answers to 4.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
LONG_TASKS = """
window.longTasks = [];
const note = (one) => window.longTasks.push([one.startTime, one.duration]);
new PerformanceObserver((list) => list.getEntries().forEach(note))
  .observe({type: "longtask", buffered: true});
"""


def program() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    return found


def above_ten(descriptor: int) -> int:
    """The same file under another number."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    """One page of a browser. What went wrong in it, and what it asked for, is kept."""

    def __init__(self, folder: str) -> None:
        to_it, from_it = (tuple(map(above_ten, os.pipe())) for _ in range(2))
        flags = [*FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", START, str(to_it[0]), str(from_it[1]), program(), *flags],
            pass_fds=(to_it[0], from_it[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_it[0])
        os.close(from_it[1])
        self._send_to, self._read_from = to_it[1], from_it[0]
        self._number, self._rest, self._session = 0, b"", ""
        self._answers: dict[int, dict[str, Any]] = {}
        self.problems: list[str] = []  # console errors, exceptions, what the policy blocked
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=LONG_TASKS)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._send_to)
        os.close(self._read_from)

    # --- the protocol

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer = self._ask(method, parameters)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send_to, json.dumps(message).encode() + b"\0")
        wanted = self._number
        deadline = time.monotonic() + SECONDS
        while wanted not in self._answers:
            self._receive(deadline)
        return self._answers.pop(wanted)

    def _receive(self, deadline: float) -> None:
        ready, _, _ = select.select([self._read_from], [], [], max(deadline - time.monotonic(), 0.0))
        assert ready, "the browser does not answer"
        data = os.read(self._read_from, 1 << 20)
        assert data, "the browser has ended"
        *whole, self._rest = (self._rest + data).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message["method"], message["params"])

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            url = about["entry"].get("url", "")
            if not url.endswith("/favicon.ico"):  # the browser's own idea, at any time
                self.problems.append(f"{about['entry']['text']} {url}")
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.problems.append(str(about["args"]))
        elif method == "Page.javascriptDialogOpening":
            self._number += 1
            accept = {"id": self._number, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            os.write(self._send_to, json.dumps({**accept, "sessionId": self._session}).encode() + b"\0")
            self.problems.append(f"dialog: {about['message']}")

    # --- what a user does and sees

    def open(self, url: str) -> None:
        """Open a page, and wait until it and its scripts are loaded."""
        self.run("window.left = true")  # else the page before, which is complete, may be taken for this one
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank' && !window.left")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true; its value, which is {} for an element."""
        deadline = time.monotonic() + SECONDS
        while True:
            asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
            answer = self._ask("Runtime.evaluate", asked).get("result", {})  # none if the page was left meanwhile
            value = answer.get("result", {}).get("value")
            if "exceptionDetails" not in answer and (value or value == {}):
                return value
            assert time.monotonic() < deadline, (script, value, self.text()[:2_000], self.problems)
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def press(self, selector: str) -> None:
        """Click with the mouse: where an element is when the button goes down, and there again when it goes up."""
        here = self.hold(selector)
        self.mouse("mouseReleased", *here)

    def hold(self, selector: str) -> tuple[float, float]:
        """Press the mouse button on an element; where that is. The page does not move from when it is looked for."""
        x, y = self.until(f"""(() => {{
          const one = document.querySelector({json.dumps(selector)});
          one.dispatchEvent(new PointerEvent("pointerdown", {{bubbles: true}}));
          one.scrollIntoView({{block: "nearest"}});
          const box = one.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        self.mouse("mousePressed", x, y)
        return x, y

    def mouse(self, kind: str, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=KEYS.get(name, 0))

    def log_in(self, url: str, token: str) -> None:
        self.open(f"{url}/ui/login#{token}")
        self.press("#login button")
        self.until("location.pathname === '/ui/' && document.readyState === 'complete'")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )


KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Escape": 27}


@contextmanager
def browser() -> Iterator[Browser]:
    program()
    with tempfile.TemporaryDirectory(prefix="symphony-browser-", ignore_cleanup_errors=True) as folder:
        found = Browser(folder)
        try:
            yield found
        finally:
            found.close()

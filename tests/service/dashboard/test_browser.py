"""The pages in a real browser: live updates, no errors, nothing from elsewhere, accessible, safe.

axe-4.14.0.min.js.gz is `axe.min.js` of the npm package axe-core 4.14.0 (MPL 2.0), unchanged.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import symphony as sy
from symphony.service.client import RemoteCluster
from tests.service.dashboard.browser import Browser, browser
from tests.service.kernels import add, one, rave, wait_for
from tests.service.places import SECONDS, Place, place

AXE = Path(__file__).with_name("axe-4.14.0.min.js.gz")

EVIL = "<script>window.hacked=1</script>\"'><img src=x onerror=hacked=1>"


@sy.kernel
def speak(path, text):
    """Prints, waits for a file, and prints again."""
    import pathlib
    import time

    print(text, "before")
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    print(text, "after")


@dataclass
class Visit:
    here: Place
    page: Browser
    cluster: RemoteCluster
    folder: Path

    def open(self, path: str) -> None:
        self.page.open(self.here.server.url + path)


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    folder = tmp_path_factory.mktemp("browser")
    with browser() as page, place(folder) as here, here.connect("ann") as ann:
        evil = sy.graph(EVIL)
        evil.task(rave, EVIL)
        assert ann.submit(evil).wait(SECONDS)
        page.log_in(here.server.url, here.token("ann"))
        yield Visit(here, page, ann, folder)


@pytest.fixture(autouse=True)
def nothing_goes_wrong(visit: Visit) -> Iterator[None]:
    """No error in the console, no dialog, no request to anywhere else, no script of a job."""
    visit.page.problems.clear()
    yield
    assert visit.page.problems == []
    assert all(url.startswith((visit.here.server.url, "data:")) for url in visit.page.requests), visit.page.requests
    assert visit.page.run("typeof window.hacked") == "undefined"


def test_every_page_loads_and_axe_finds_nothing_serious(visit: Visit) -> None:
    page, axe = visit.page, gzip.decompress(AXE.read_bytes()).decode()
    for number, path in enumerate(("/ui/", "/ui/jobs", "/ui/jobs/1", "/ui/timeline", "/ui/learning", "/ui/whatif")):
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if number % 2 else "light"}],
        )
        visit.open(path)
        page.until("document.querySelector('h1') && typeof htmx === 'object'")
        if path == "/ui/":
            page.press(".machine a")
            page.until("document.querySelector('#detail canvas')")
        if path == "/ui/jobs/1":
            assert "wrote" in page.until("document.querySelector('.log').innerText")
        page.call("Runtime.evaluate", expression=axe)
        script = "axe.run().then((found) => found.violations.map((one) => [one.impact, one.id, one.nodes[0].html]))"
        assert [one for one in page.run(script) if one[0] in ("serious", "critical")] == [], path
    page.press("#whatif button")  # without a question
    page.until("document.querySelector('#answer .problem')")
    page.problems.clear()  # the browser says that it was refused
    page.size(390, 800)
    for path in ("/ui/", "/ui/jobs", "/ui/jobs/1", "/ui/timeline", "/ui/learning"):
        visit.open(path)
        assert page.run("document.documentElement.scrollWidth - innerWidth") <= 0, path
    page.call("Emulation.clearDeviceMetricsOverride")


def test_jobs_appear_print_and_are_cancelled_without_a_reload(visit: Visit) -> None:
    page, go = visit.page, visit.folder / "go-on"
    visit.open("/ui/jobs")
    page.run("window.same = true")
    job = visit.cluster.submit(one(speak, str(go), EVIL))
    page.until(f"document.querySelector('#job-{job.id}')")
    visit.open(f"/ui/jobs/{job.id}")
    page.run("window.same = true")
    page.until("document.querySelector('.log').innerText.includes('before')")
    assert "after" not in page.run("document.querySelector('.log').innerText")
    page.until("document.querySelector('.graph .s-running')")
    go.touch()
    page.until("document.querySelector('.log').innerText.includes('> after')")
    page.until("document.querySelector('.graph .s-done') && document.querySelector('#live').dataset.over === ''")
    assert page.run("document.querySelector('.log').innerText.split('before').length") == 2  # no line came twice

    waits = visit.cluster.submit(one(wait_for, str(visit.folder / "never")))
    visit.open(f"/ui/jobs/{waits.id}")
    page.run("window.same = true")
    page.press(f"#cancel-{waits.id}")
    page.until("document.querySelector('#live .s-cancelled')")
    assert page.run("window.same")  # the page was never left
    assert page.problems == [f"dialog: Cancel job {waits.id}?"]
    page.problems.clear()


def test_the_picture_and_the_timeline_follow_what_runs(visit: Visit) -> None:
    page = visit.page
    visit.open("/ui/")
    page.until("document.querySelector('#connection').textContent === 'live'")
    page.until("document.querySelector('#d0 tspan').textContent === '0'")  # the job before has really ended
    job = visit.cluster.submit(one(wait_for, str(visit.folder / "soon")))
    page.until("document.querySelector('#d0 tspan').textContent === '1'")
    page.until("[...document.querySelectorAll('.machine title')].some((one) => one.textContent.includes('ours 50%'))")
    page.press(".machine a:last-of-type")
    page.until("[...document.querySelectorAll('#detail li')].some((one) => one.innerText.includes('wait_for-0'))")
    visit.open("/ui/timeline")
    page.until("document.querySelector('#timeline-text').textContent.includes('on 1 of 1 devices')")
    page.run("document.querySelector('#timeline').focus()")
    page.key("ArrowLeft")
    page.until("!document.querySelector('#timeline-text').textContent.includes('following')")
    (visit.folder / "soon").touch()
    assert job.wait(SECONDS)
    visit.open("/ui/")
    page.until("document.querySelector('#d0 tspan').textContent === '0'")


def test_a_page_can_be_used_by_keyboard(visit: Visit) -> None:
    page = visit.page
    visit.cluster.submit(one(add, 1)).result(SECONDS)
    visit.open("/ui/")
    page.key("Tab")
    assert page.run("document.activeElement.className") == "skip"
    page.run("document.querySelector('nav a[href=\"/ui/jobs\"]').focus()")
    page.key("Enter")
    page.until("location.pathname === '/ui/jobs'")
    page.until("document.querySelector('#live a')")
    page.run("window.link = document.querySelector('#live a'); link.focus()")
    job = visit.cluster.submit(one(add, 1))
    job.result(SECONDS)
    page.until(f"document.querySelector('#row-{job.id} .s-done')")
    assert page.run("document.activeElement === link")  # an update does not take the focus away


def test_a_click_during_an_update_is_not_lost(visit: Visit) -> None:
    page = visit.page
    waits = visit.cluster.submit(one(wait_for, str(visit.folder / "never")))
    visit.open("/ui/jobs")
    page.until("document.querySelector('#connection').textContent === 'live'")
    page.run("performance.clearResourceTimings()")
    here = page.hold(f"#cancel-{waits.id}")
    another = visit.cluster.submit(one(add, 1))  # its row comes above the button
    another.result(SECONDS)
    page.until("performance.getEntriesByType('resource').some((one) => one.name.includes('/ui/jobs'))")
    page.run("new Promise((then) => requestAnimationFrame(() => setTimeout(then)))")
    assert page.run(f"document.querySelector('#row-{another.id}')") is None
    page.mouse("mouseReleased", *here)
    assert waits.wait(SECONDS) and waits.status == "cancelled"
    page.until(f"document.querySelector('#row-{waits.id} .s-cancelled') && document.querySelector('#row-{another.id}')")
    assert page.problems == [f"dialog: Cancel job {waits.id}?"]
    page.problems.clear()


@pytest.mark.slow  # two processes start to play
def test_a_question_what_if_is_answered_and_wrong_names_are_refused_at_once(visit: Visit) -> None:
    page = visit.page
    waits = visit.cluster.submit(one(wait_for, str(visit.folder / "never")))
    with visit.here.connect("bob") as bob:  # with several users, nothing has to be compiled
        other = bob.submit(one(wait_for, str(visit.folder / "never")))
    visit.open("/ui/whatif")
    for field, wrong, names in (("without", "hree", "here"), ("fail", "nowhere", "here"), ("more", "3×gpu9", "small")):
        page.run(
            f"document.querySelector('#whatif').reset(); document.querySelector('[name={field}]').value = '{wrong}'"
        )
        page.requests.clear()
        page.press("#whatif button")
        said = page.until("document.querySelector('#answer .problem')?.parentElement.innerText")
        assert wrong.removeprefix("3×") in said and names in said.split("\n", 1)[1], said
        assert len(page.requests) == 1, page.requests  # the question itself was refused
        page.run("document.querySelector('#answer').replaceChildren()")
    page.run("document.querySelector('#whatif').reset(); document.querySelector('[name=more]').value = '2×small'")
    page.press("#whatif button")
    said = page.until("document.querySelector('#answer table') && document.querySelector('#answer').innerText")
    assert "2 more small" in said and "mean time to completion" in said and "wait_for" in said
    assert page.run("document.querySelectorAll('#answer table')[0].querySelectorAll('thead th').length") == 4
    visit.open("/ui/jobs")
    page.press("summary")
    page.until(f"document.querySelector('#forecasts a[href=\"/ui/jobs/{waits.id}\"]')")
    waits.cancel()
    with visit.here.connect("bob") as bob:
        bob.job(other.id).cancel()


def test_what_changed_before_the_stream_was_open_is_shown(visit: Visit) -> None:
    page = visit.page
    page.call("Network.setBlockedURLs", urls=["*/ui/events*"])
    visit.open("/ui/jobs")
    page.until("document.querySelector('#connection').textContent === 'not connected'")
    job = visit.cluster.submit(one(add, 1))
    job.result(SECONDS)
    page.call("Network.setBlockedURLs", urls=[])
    page.run("window.same = true")
    page.until(f"window.same && document.querySelector('#row-{job.id} .s-done')")
    page.problems.clear()  # the browser says what was blocked


def test_other_sites_see_nothing_and_change_nothing(visit: Visit) -> None:
    """The browser holds a session; pages of other sites, and of another port of this machine, try to use it."""
    page, port = visit.page, visit.here.server.port
    job = visit.cluster.submit(one(wait_for, str(visit.folder / "never")))
    cancel = f"http://127.0.0.1:{port}/ui/jobs/{job.id}/cancel"
    with other_site(f"<form method=post action='{cancel}'>") as other:
        for host in ("evil.test", "127.0.0.1"):
            page.open(f"http://{host}:{other}/")
            options = "{method: 'POST', mode: 'no-cors', credentials: 'include'}"
            page.run(f"fetch('{cancel}', {options}).then(() => true, () => true)")
            read = (
                f"fetch('http://127.0.0.1:{port}/ui/jobs', {{credentials: 'include'}}).then((x) => x.text(), () => '')"
            )
            assert page.run(read) == ""
            page.run("document.forms[0].submit()")
            page.until("location.pathname.endsWith('cancel') && document.body.innerText.includes('another site')")
            assert job.status in ("waiting", "running")
    page.open(f"http://evil.test:{port}/ui/jobs")  # a name that leads to this address
    assert "unknown host name" in page.text() and "wait_for" not in page.text()
    page.problems.clear()  # the browser says that these requests were refused
    page.requests.clear()
    visit.open("/ui/jobs")
    assert "wait_for" in page.text()
    page.press("header button")
    page.until("location.pathname === '/ui/login'")
    visit.open("/ui/jobs")
    assert "wait_for" not in page.text() and page.run("location.pathname") == "/ui/login"
    job.cancel()


@contextmanager
def other_site(page: str) -> Iterator[int]:
    """A web server with one page; its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f"<title>other</title>{page}".encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()

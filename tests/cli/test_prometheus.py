"""The page that Prometheus reads."""

from __future__ import annotations

import math
import urllib.error
import urllib.request

import pytest

from symphony.cli.prometheus import Page, serve
from symphony.problem.errors import InputError
from symphony.telemetry.reading import Model, Reader
from symphony.telemetry.spans import Span, StatRow
from tests.telemetry.demo import DEMO
from tests.waiting import SECONDS

SPAN = Span(Reader(Model(DEMO)), 'CPU"0\\', 1.0, 0.5)


def test_means_are_rates_and_metrics_as_they_are() -> None:
    page = Page()
    page.update(SPAN, [StatRow("event", "a", "", 10, 2, 6, 14), StatRow("metric", "m", "%", 3, 1, 1, 5)])
    text = page.text()
    assert 'symphony_event_mean{event="a",place="CPU\\"0\\\\",unit=""} 20\n' in text
    assert 'symphony_event_stddev{event="a",place="CPU\\"0\\\\",unit=""} 4\n' in text
    assert 'symphony_metric_mean{metric="m",place="CPU\\"0\\\\",unit="%"} 3\n' in text
    assert "symphony_windows_total 1\n" in text
    page.update(SPAN, [StatRow("event", "a", "", math.nan, math.inf, 0, math.inf)])
    assert 'unit=""} NaN\n' in page.text() and 'unit=""} +Inf\n' in page.text()


def test_every_line_is_a_comment_or_a_sample() -> None:
    page = Page()
    page.update(SPAN, [StatRow("event", "a b", "", 10, 2, 6, 14)])
    for line in page.text().splitlines():
        assert (
            line.startswith(("# HELP symphony_", "# TYPE symphony_"))
            or line.rpartition(" ")[2].replace(".", "").isdigit()
        )


def test_it_is_served_on_loopback_until_the_end() -> None:
    page = Page()
    with serve(page, 0) as port:
        address = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=SECONDS) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == page.text()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/other", timeout=SECONDS)
        with pytest.raises(InputError, match=f"port {port} cannot be used"), serve(page, port):
            pass
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{address}/metrics", timeout=SECONDS)

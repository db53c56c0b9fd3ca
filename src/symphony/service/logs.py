"""Logs: lines for people, or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import time

TEMPLATES = 1_000  # of lines that are told apart


class JsonLines(logging.Formatter):
    """One object on each line; what a message has beyond its text is in `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


class Repeats(logging.Filter):
    """Passes a bounded number of lines a minute that differ only in their values, and says how many it left out.

    Whoever knocks without a token must not fill the disk. Lines with the attribute `always` pass: those about requests
    of users, whose number is bounded elsewhere.
    """

    def __init__(self, most: int = 60, window_s: float = 60.0) -> None:
        super().__init__()
        self._most, self._window_s = most, window_s
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # by logger and template: since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write it."""
        if getattr(record, "always", False):
            return True
        key, now = (record.name, str(record.msg)), time.monotonic()
        since, count = self._seen.get(key, (now, 0))
        if now - since >= self._window_s:
            if count > self._most:
                record.msg = f"{record.msg} ({count - self._most} more like this were left out)"
            since, count = now, 0
        if len(self._seen) >= TEMPLATES:
            self._seen.clear()
        self._seen[key] = since, count + 1
        if count + 1 == self._most:
            record.msg = f"{record.msg} (more like this are left out for a minute)"
        return count < self._most


def configure(form: str, level: str) -> None:
    """Have the loggers of Symphony, of the server and of its event loop write to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.addFilter(Repeats())
    handler.setFormatter(JsonLines() if form == "json" else plain)
    for name in ("symphony", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    logging.getLogger("symphony.service.http").setLevel(level.upper() if form == "json" else logging.WARNING)

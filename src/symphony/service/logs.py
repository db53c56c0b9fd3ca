"""Logging of the service, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
import time

TEMPLATES = 1_000  # message templates that are counted separately


class JsonLines(logging.Formatter):
    """One JSON object on each line, with the extra `fields` of a record."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class Repeats(logging.Filter):
    """Passes at most `most` lines per window that differ only in their values, and logs how many it dropped.

    Otherwise unauthenticated requests could fill the disk. Records with the attribute `always` pass: those about
    requests of users, which are rate-limited elsewhere.
    """

    def __init__(self, most: int = 60, window_s: float = 60.0) -> None:
        super().__init__()
        self._most, self._window_s = most, window_s
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # by logger and template: start of the window, count

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "always", False):
            return True
        key, now = (record.name, str(record.msg)), time.monotonic()
        since, count = self._seen.get(key, (now, 0))
        if now - since >= self._window_s:
            if count > self._most:
                record.msg = f"{record.msg} ({count - self._most} more like this were dropped)"
            since, count = now, 0
        if len(self._seen) >= TEMPLATES:
            self._seen.clear()
        self._seen[key] = since, count + 1
        if count + 1 == self._most:
            record.msg = f"{record.msg} (more like this are dropped for a minute)"
        return count < self._most


def configure(form: str, level: str) -> None:
    """Log to standard error, for Symphony, uvicorn and asyncio."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.addFilter(Repeats())
    handler.setFormatter(JsonLines() if form == "json" else plain)
    for name in ("symphony", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    logging.getLogger("symphony.service.http").setLevel(level.upper() if form == "json" else logging.WARNING)

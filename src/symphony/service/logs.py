"""Logs: lines for people, or JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import time


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


def configure(form: str, level: str) -> None:
    """Have the loggers of Symphony and of the server write to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    for name in ("symphony", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
    logging.getLogger("symphony.service.http").setLevel(level.upper() if form == "json" else logging.WARNING)

"""Names of defaults, for commands that print them without loading what they name."""

from __future__ import annotations

SHIPPED = "symphony"  # the default policy
LIVE_POLICY = "symphony-budget"  # that of real runs

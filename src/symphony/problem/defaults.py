"""What is meant where nothing is said: names that a command tells of without loading what they name."""

from __future__ import annotations

SHIPPED = "symphony"  # the policy that is used where none is asked for

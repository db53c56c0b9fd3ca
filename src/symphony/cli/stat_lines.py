"""The lines of `symphony stat`: a table for people, JSON or fields for programs, on standard error or in a file."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from symphony.problem import units
from symphony.telemetry import MACHINE_PLACE, Problem, Span, StatRow, Verdict, largest

NOT_COUNTED, NOT_SUPPORTED = "<not counted>", "<not supported>"
CPU_CLOCKS = ("task-clock", "cpu-clock")
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
# By the beginning of a place's name: its name in the legend, and a remark that its counts are not the command's alone.
WHOLE_PLACES = {
    MACHINE_PLACE: (MACHINE_PLACE, "the whole machine, all programs included; cgroup.*: this control group"),
    "GPU-": ("GPU-…", "the whole GPU, all programs included"),
}
_MAX_PRINTED_PROBLEMS = 5  # further ones are only counted


class Lines:
    """Writes results in the requested form."""

    def __init__(self, out: IO[str], *, as_json: bool = False, separator: str | None = None) -> None:
        self._out, self._json, self._separator = out, as_json, separator
        self._console = Console(file=out, highlight=False, emoji=False, soft_wrap=True)
        self._apart = out is not sys.stderr  # notes then go to standard error, not between the lines
        self.unsupported: frozenset[str] = frozenset()
        self.levels: Mapping[str, int] = {}  # of metrics in the tree of the top-down method, from 1

    @property
    def for_people(self) -> bool:
        """Whether the output is a table."""
        return not self._json and self._separator is None

    def note(self, text: str, kind: str = "note") -> None:
        """A remark beside the counts. In JSON it is a line of its own kind."""
        if self._json:
            self._write({"kind": kind, "text": text})
        elif self._separator is not None and not self._apart:
            print(f"# {kind}: {text}", file=self._out, flush=True)
        else:
            console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
            console.print(Text.assemble((kind, "yellow"), f": {text}"))

    def problems(self, found: Sequence[Problem]) -> None:
        for problem in found[:_MAX_PRINTED_PROBLEMS]:
            self.note(str(problem), "warning")
        if len(found) > _MAX_PRINTED_PROBLEMS:
            self.note(f"{len(found) - _MAX_PRINTED_PROBLEMS} more problems like these", "warning")

    # --- Counts

    def interval(self, span: Span, rows: Iterable[StatRow], places: bool) -> None:
        """The lines of one span."""
        if not self.for_people:
            self._for_programs(span, rows, places, span.end_s, span.duration_s)
            return
        for row in rows:
            head = f"{span.end_s:>12.3f} " + (f"{span.where or 'all':>8} " if places else "")
            self._console.print(Text(head, style="dim") + self._line(row, span.duration_s))

    def header(self, places: bool) -> None:
        """The header of `interval`'s columns."""
        if self.for_people:
            place = f"{'place':>8} " if places else ""
            self._console.print(
                Text(f"#{'time, s':>11} {place}{'counts':>20}   {'95%':<12}  unit    events", style="dim")
            )

    def totals(
        self,
        title: str,
        found: Sequence[tuple[Span, Sequence[StatRow]]],
        elapsed_s: float,
        *,
        about: bool = False,
        over_runs_s: float = math.nan,
    ) -> None:
        """The lines of a whole run, or of the mean of several; `about`: its duration is not exact.

        `over_runs_s`: half of the 95% interval of the mean duration.
        """
        places = len(found) > 1
        whole = [note for start, note in WHOLE_PLACES.items() if any(span.where.startswith(start) for span, _ in found)]
        if not self.for_people:
            for span, rows in found:
                self._for_programs(span, rows, places, None, elapsed_s)
            return
        if not found:
            return
        self._console.print(f"\n {title}:\n", markup=False)
        for span, rows in found:
            for row in rows:
                place = Text(f"{span.where or 'all':>8} ") if places or whole else Text("")
                self._console.print(place + self._line(row, elapsed_s))
        self._largest([row for _, rows in found for row in rows])
        elapsed = f"about {elapsed_s:.2g}" if about else f"{elapsed_s:.6f}"
        spread = f"   {_over_runs(elapsed_s, over_runs_s)}" if math.isfinite(over_runs_s) else ""
        self._console.print(f"\n{elapsed:>20}   seconds elapsed{spread}", markup=False)
        every = [row for _, rows in found for row in rows]
        intervals = [text for row in every if (text := shown(row)[1])]
        legend = [f"{'±':>20}   half of the 95% interval, of counts in per cent"] if intervals else []
        legend += [f"{'…':>20}   its ends, if not symmetric"] if any("…" in i for i in intervals) else []
        legend += [f"{'over runs':>20}   95% interval of the mean, by how the runs differ"] * (spread != "")
        legend += [f"{'(%)':>20}   share of the time with a counter"] if any(map(_share, every)) else []
        legend += [f"{place:>20}   {note}" for place, note in whole]
        self._console.print(Text("".join(f"{line}\n" for line in legend), "dim"))

    def _largest(self, rows: Iterable[StatRow]) -> None:
        """Where the slots go, from level to level."""
        values = {row.name: row.value for row in rows if row.name in self.levels and math.isfinite(row.value)}
        if path := largest(self.levels, values):
            shares = " → ".join(f"{name} {values[name]:.1f}" for name in path)
            self._console.print(f"\n{'largest':>20}   {shares} %", markup=False)

    def _line(self, row: StatRow, seconds: float) -> Text:
        value, half = shown(row, row.name in self.unsupported)
        sign = "±" if half and "…" not in half else " "
        line = Text.assemble((f"{value:>20}", "bold"), f" {sign} {half:<12}  ", f"{row.unit:<6}  ")
        name = "  " * (self.levels.get(row.name, 1) - 1) + row.name
        more = [f"{_rate(row, seconds):<10}", f"{_share(row):<9}", _over_runs(row.value, row.over_runs)]
        line.append(f"{name:<44}" if any(map(str.strip, more)) else name)
        line.append(f"  {'  '.join(more)}".rstrip(), style="dim")
        return line

    def _for_programs(
        self, span: Span, rows: Iterable[StatRow], places: bool, time_s: float | None, seconds: float
    ) -> None:
        """`seconds`: of rates."""
        for row in rows:
            if self._json:
                self._write(as_json(span, row, time_s, seconds, row.name in self.unsupported))
                continue
            tally = span.tallies.get(span.reader.node(row.name))
            running = f"{tally.running_s * 1e9:.0f}" if tally and row.kind == "event" else ""
            missing = NOT_SUPPORTED if row.name in self.unsupported else NOT_COUNTED
            fields = [] if time_s is None else [f"{time_s:.9f}"]
            fields += [span.where] if places else []
            fields += [_plain(row.value) or missing, row.unit, row.name, running]
            fields += ["" if row.counted is None else f"{row.counted * 100:.2f}"]
            ends = [_plain(row.lower), _plain(row.upper)] if math.isfinite(row.value) else ["", ""]
            fields += [*ends, _plain(row.std), "derived" if row.derived else ""]
            fields += [_plain(row.per_second(seconds)), *([_plain(row.over_runs)] if row.runs > 1 else [])]
            print((self._separator or ",").join(fields), file=self._out)
        self._out.flush()

    def _write(self, content: dict[str, Any]) -> None:
        print(json.dumps(content, ensure_ascii=False), file=self._out, flush=True)

    # --- Explanations

    def explain(
        self,
        cpu: str,
        groups: Sequence[Sequence[str]],
        derived: Sequence[str],
        verdicts: Sequence[Verdict],
        used: Container[str],
    ) -> None:
        """Which events were counted together, which are derived from them, and by which identities."""
        if not self.for_people:
            for group in groups:
                self._write_commented({"kind": "group", "events": list(group)})
            self._write_commented({"kind": "derived", "events": list(derived)})
            for one in verdicts:
                self._write_commented({"kind": "identity", "used": _is_used(one, used), **verdict_json(one)})
            return
        out = self._console
        if not groups:
            out.print(" No counter of the CPU was used.\n")
            return
        out.print(
            f" Counted with the catalogue {cpu}, in turns:" if len(groups) > 1 else f" Counted with {cpu}:",
            markup=False,
        )
        for number, group in enumerate(groups, 1):
            out.print(f"   {number}. {', '.join(group)}", markup=False)
        out.print(f" Derived: {', '.join(derived) or 'nothing'}", markup=False)
        in_use = [one for one in verdicts if _is_used(one, used)]
        idle = [one for one in verdicts if one.accepted and one not in in_use]
        for title, some in (
            ("Used", in_use),
            ("Accepted, but implied by others", idle),
            ("Rejected or not tested", [one for one in verdicts if not one.accepted]),
        ):
            if some:
                out.print(f" {title}:", markup=False)
            for one in some:
                mark = ("✓", "green") if one.accepted else ("✗", "red") if one.tested else ("?", "yellow")
                out.print(Text.assemble("   ", mark, f" {one.identity.name}  [{one.identity.source}]"))
                out.print(Text(f"       {one.reason}", style="dim"))
        if not verdicts:
            out.print(" No identity relates these events: each is inferred separately.")
        out.print()

    def _write_commented(self, content: dict[str, Any]) -> None:
        if self._json:
            self._write(content)
        else:
            print("#", json.dumps(content, ensure_ascii=False), file=self._out, flush=True)


def shown(row: StatRow, unsupported: bool = False) -> tuple[str, str]:
    """A value, and half of its interval or its ends, as text; of plain counts in per cent."""
    if unsupported or not math.isfinite(row.value):
        return (NOT_SUPPORTED if unsupported else NOT_COUNTED), ""
    half, skewed = row.half_width, _is_skewed(row)
    if row.kind == "event" and not row.unit:
        decimals = 1 if row.runs > 1 and row.value < 100 and row.value % 1 else 0  # a mean
        return f"{row.value:,.{decimals}f}", _relative_ends(row) if skewed else _relative(half, row.value)
    most = 2 if row.unit in ("%", "msec") else 4 if abs(row.value) >= 0.01 else 7
    whole = row.value == round(row.value) or (row.kind == "event" and row.unit in ("us", "bytes"))
    if not half and whole and row.unit not in ("%", "msec"):
        return f"{row.value:,.0f}", ""
    digits = 1 - math.floor(math.log10(half)) if 0 < half < math.inf else most
    decimals = min(max(digits, 1), most)
    value, low, high = (f"{number:,.{decimals}f}" for number in (row.value, row.lower, row.upper))
    if skewed and low != high:
        return value, f"{low}…{high}"
    return value, f"{half:,.{decimals}f}" if half else ""


def _is_skewed(row: StatRow) -> bool:
    """Whether one end of the interval is much farther from the value than the other, so that ± would mislead."""
    below, above = row.value - row.lower, row.upper - row.value
    return max(below, above) > 1.5 * min(below, above) and math.isfinite(row.half_width)


def _relative_ends(row: StatRow) -> str:
    if row.value <= 0 or row.upper / row.value >= 10:
        return f"{row.lower:,.0f}…{row.upper:,.0f}"
    return f"−{1 - row.lower / row.value:.0%}…+{row.upper / row.value - 1:.0%}"


def _relative(half: float, value: float) -> str:
    if not half:
        return ""
    share = half / value if value else math.inf
    return f"{share:.2%}" if share < 0.1 else f"{share:.0%}" if share < 10 else f"{half:,.0f}"


def _share(row: StatRow) -> str:
    if row.derived:
        return "(derived)"
    if not math.isfinite(row.value):
        return ""
    return f"({row.counted:.1%})" if row.counted is not None and row.counted < 0.9995 else ""


def _over_runs(value: float, half: float) -> str:
    """How much the mean of several runs may be off, in per cent of it."""
    if not math.isfinite(half) or not half:
        return ""
    return f"± {_relative(half, value)} over runs"


def _rate(row: StatRow, seconds: float) -> str:
    """An event per second; of a clock, how many CPUs were busy."""
    rate = row.per_second(seconds)
    if not math.isfinite(rate) or not rate:
        return ""
    if row.unit == "msec" and row.name in CPU_CLOCKS:
        return f"{rate / 1e3:.2f} CPUs"
    if row.unit == "bytes":
        return units.show(rate, "bytes/s")
    if row.unit:
        return ""
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if rate >= size), (1.0, ""))
    return f"{float(f'{rate / size:.3g}'):,.10g} {prefix}/s".replace(" /", "/")


def _plain(value: float) -> str:
    return f"{value:.12g}" if math.isfinite(value) else ""


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def as_json(span: Span, row: StatRow, time_s: float | None, seconds: float, unsupported: bool) -> dict[str, Any]:
    """A row as JSON; `seconds`: that it covers. Unknown values are null, and `missing` states why."""
    known = math.isfinite(row.value) and not unsupported
    return {
        "time": time_s,
        "duration": seconds,
        "place": span.where,
        "kind": row.kind,
        "name": row.name,
        "value": row.value if known else None,
        "std": _finite(row.std),
        "lower": _finite(row.lower) if known else None,
        "upper": _finite(row.upper) if known else None,
        "unit": row.unit,
        "counted": _finite(row.counted),
        "derived": row.derived,
        "rate": _finite(row.per_second(seconds)) if known else None,
        "runs": row.runs,
        "over_runs": _finite(row.over_runs),
        "missing": None if known else (NOT_SUPPORTED if unsupported else NOT_COUNTED).strip("<>"),
    }


def verdict_json(one: Verdict) -> dict[str, Any]:
    return {
        "name": one.identity.name,
        "source": one.identity.source,
        "relation": one.identity.relation,
        "accepted": one.accepted,
        "tested": one.tested,
        "residual": _finite(one.residual),
        "deviation": _finite(one.deviation),
        "reason": one.reason,
    }


def _is_used(one: Verdict, used: Container[str]) -> bool:
    return one.accepted and one.identity.name in used

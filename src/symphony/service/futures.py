"""Why, when and what if, for the jobs of a service: snapshots of its state and journal, and the record of forecasts.

One thread plays the present (its play is answered for a moment), another one what-ifs, one after the other.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import sqlalchemy as sa

from symphony.counterfactuals import answers
from symphony.counterfactuals.change import Change, addition, devices_of, extended
from symphony.counterfactuals.futures import PlayedTimes, Stage
from symphony.counterfactuals.outlook import Outlook, outlook, outlook_of
from symphony.counterfactuals.record import SHARE, Forecast, Record
from symphony.counterfactuals.snapshot import Snapshot, SnapshotJob, SnapshotTask
from symphony.engines.containment import QUOTAS
from symphony.policies import named
from symphony.problem.errors import (
    BusyError,
    InputError,
    ServiceError,
    SymphonyError,
    UnavailableError,
    UnknownJobError,
)
from symphony.runtime.jobs import DONE, RUNNING
from symphony.runtime.player import Player
from symphony.runtime.snapshots import KernelTable, TaskSketch
from symphony.service import graphs, tables, views, wire
from symphony.service.blobs import named_in
from symphony.service.forecast_cache import ForecastCache
from symphony.service.journal import read_events
from symphony.service.ledger import Transaction
from symphony.service.played_admission import PlayedAdmission
from symphony.service.service import Service
from symphony.service.state import FINISHED, RUN_ENDINGS, ServiceJob
from symphony.service.tokens import ADMIN, Token
from symphony.training_jobs.job_forecast import Band, seconds, spelled

log = logging.getLogger("symphony.service")
RECENT_S, MAX_RECENT = 3_600.0, 64  # jobs that tell how others will arrive: how long ago, and how many
MAX_JOBS = 20_000  # of a play
PLAYED_TASKS = 12_000  # tasks times draws of a play of the present …
PLAYED_HISTORY = 160_000  # … and of a what-if
HELP_DRAWS = 8
MAX_WHAT_IFS, MAX_PENDING = 32, 8  # kept, and not begun
MAX_RECORD = 20_000  # scored forecasts that are loaded
KEPT_FOR = 4  # times as long as jobs, forecasts are kept
ROWS = ("low", "mid", "high")


@dataclass(frozen=True)
class Played:
    at_s: float  # seconds since 1970
    stage: Stage
    outcome: PlayedTimes
    index: dict[int, int]  # of each job

    @property
    def snapshot(self) -> Snapshot:
        return self.stage.snapshot


@dataclass
class _WhatIf:
    id: int
    user: str
    progress: float = 0.0
    answer: wire.WhatIfAnswer | None = None
    error: wire.ErrorView | None = None

    def view(self) -> wire.WhatIfView:
        state: Literal["running", "done", "failed"] = "done" if self.answer is not None else "running"
        state = "failed" if self.error is not None else state
        return wire.WhatIfView(id=self.id, state=state, progress=self.progress, error=self.error, answer=self.answer)


class Futures:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._plays: ForecastCache[Played] = ForecastCache(lambda _: self._play_now())
        self._thread = ThreadPoolExecutor(1, "symphony-what-if")
        self._player, self._what_if_player = Player(), Player()
        self._what_ifs: dict[int, _WhatIf] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sketches: dict[int, list[TaskSketch]] = {}  # of stored jobs
        self._noted: dict[int, float] = {}  # by job: time of the last play whose forecasts are recorded
        self.record, self.pending = self._load()
        self.made = len(self.record.scored) + sum(map(len, self.pending.values()))  # forecasts that are recorded
        self.scored = len(self.record.scored)

    def close(self) -> None:
        self._plays.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._player.close()
        self._what_if_player.close()

    # --- when and why

    def when(self, job: ServiceJob, share: float) -> wire.When:
        status = self._service.running.status(job)
        if job.over:
            text = f"job {job.id} is {job.status}: it ended {seconds(time.time() - (job.ended_s or 0.0))} ago"
            return self._when(job, status, share, text, _UNKNOWN, _UNKNOWN, 0, time.time())
        played = self._played(job)
        found, made = self._outlook(played, job, share)
        self._remember(played, made)
        return self._when(
            job, status, share, found.text, found.start_s, found.finish_s, played.stage.draws, played.at_s
        )

    def _outlook(self, played: Played, job: ServiceJob, share: float) -> tuple[Outlook, list[Forecast]]:
        n, now = played.index[job.id], time.time()
        one = played.snapshot.jobs[n]
        one = one._replace(started=one.started or self._service.running.status(job) == RUNNING)
        found, made = outlook_of(self.record, played.outcome, n, one, now, share, now - played.at_s)
        if job.steps and (trained := self._trained(job, share)) is not None:
            return outlook(job.id, *trained, runs=trained[0].high <= 0), []
        return found, made

    def _trained(self, job: ServiceJob, share: float) -> tuple[Band, Band] | None:
        """Start and end of a job whose unfinished tasks are training jobs, by their own forecasts."""
        try:
            training = frozenset(number for number, one in list(self._service.state.open.items()) if one.steps)
            found = [one for one in self._service.forecasts.get(share, training).forecasts if one.job == job.id]
        except (SymphonyError, TimeoutError):
            return None
        if not found:
            return None
        start, finish = min(one.start_s for one in found), max((one.finish_s for one in found), key=lambda x: x.mid)
        return start, finish

    def _when(
        self, job: ServiceJob, status: str, share: float, text: str, start: Band, finish: Band, draws: int, at_s: float
    ) -> wire.When:
        return wire.When(
            job=job.id,
            status=status,
            share=share,
            text=text,
            start_s=views.band_view(start),
            finish_s=views.band_view(finish),
            draws=draws,
            made_s=at_s,
            calibrated=len(self.record.scores("finish", finish.mid)),
        )

    def why(self, token: Token, job: ServiceJob) -> wire.Why:
        service, status = self._service, self._service.running.status(job)
        if job.over:
            unknown = views.band_view(_UNKNOWN)
            text = views.explanation(service, job)
            return wire.Why(job=job.id, status=status, text=text, reasons=[], ahead=[], helps=[], start_s=unknown,
                            finish_s=unknown)  # fmt: skip
        played = self._played(job)
        n, one = played.index[job.id], played.snapshot.jobs[played.index[job.id]]
        found, made = self._outlook(played, job, SHARE)
        self._remember(played, made)
        waits = service.running.view(job).waits
        counts = answers.reasons(one, admitted=not waits)
        reasons = [
            wire.ReasonView(
                reason=reason, count=count, text=f"{_tasks(count)} {_verb(answers.REASON_TEXTS[reason], count)}"
            )
            for reason, count in counts.most_common()
        ]
        before = self._ahead(token, played, n)
        stage = Stage(played.snapshot, played.stage.spare, draws=HELP_DRAWS)
        helps = self._player.call(answers.helps, stage, n, service.cluster.policy)
        runs = bool(counts[answers.RUNS])
        helping = [
            wire.HelpView(
                change=str(one.change),
                text=f"{one.change}, it would {'end' if runs else 'start'} "
                f"{spelled(one.finish_s if runs else one.start_s)}, {seconds(one.gain_s)} earlier",
                start_s=views.band_view(one.start_s),
                finish_s=views.band_view(one.finish_s),
                gain_s=one.gain_s,
            )
            for one in helps
        ]
        lines = [f"job {job.id} {status}: " + (waits or ", ".join(one.text for one in reasons))]
        if job.after and (after := service.running.waits_for(job)):
            lines[0] = f"job {job.id} waits for {views.job_numbers(after)}"
        if before and not runs:
            shown = ", ".join(
                f"{f'job {x.job}' if x.job else 'other users'} ({seconds(x.seconds)} of work)" for x in before[:3]
            )
            lines.append(f"ahead of it on the same devices: {shown}")
        lines += [found.text]
        lines += [f"what would help: {helping[0].text}" if helping else "no single change that was tried would help"]
        return wire.Why(
            job=job.id,
            status=status,
            text="\n".join(lines),
            reasons=reasons,
            ahead=before,
            helps=helping,
            start_s=views.band_view(found.start_s),
            finish_s=views.band_view(found.finish_s),
        )

    def _ahead(self, token: Token, played: Played, n: int) -> list[wire.AheadView]:
        """Jobs ahead; those that the user may not see are one entry."""
        known, others = [], 0.0
        for number, work_s in answers.ahead(played.snapshot, played.outcome, n):
            if self._visible(token, played.snapshot.jobs[played.index[number]]):
                known.append(wire.AheadView(job=number, seconds=work_s))
            else:
                others += work_s
        return known[: answers.MAX_ROWS] + ([wire.AheadView(job=0, seconds=others)] if others else [])

    def _visible(self, token: Token, job: SnapshotJob) -> bool:
        return ADMIN in token.scopes or job.user == token.user

    # --- the present

    def _played(self, job: ServiceJob) -> Played:
        """A recent play with a job in it."""
        found = self._plays.get(SHARE, frozenset()).forecasts
        if job.id not in found.index:
            found = self._plays.get(SHARE, frozenset({job.id})).forecasts
        if job.id not in found.index:
            raise UnavailableError(
                f"job {job.id} cannot be forecast: it was accepted by an earlier version, or has just ended",
                hint=f"see symphony job {job.id}",
            )
        return found

    def _play_now(self) -> Played:
        at_s, snapshot = time.time(), self.snapshot(self._service.cluster.kernel_table())
        tasks = sum(len(job.tasks) for job in snapshot.jobs) or 1
        draws = next((n for n in (32, 16) if n * tasks <= PLAYED_TASKS), HELP_DRAWS)
        stage = Stage(snapshot, answers.spares(snapshot), draws=draws, seed=int(at_s) % 100_000)
        outcome = self._player.call(Stage.play, stage, None, self._service.cluster.policy)
        return Played(at_s, stage, outcome, {job.job: n for n, job in enumerate(snapshot.jobs)})

    def snapshot(self, table: KernelTable) -> Snapshot:
        """The state at present."""
        service = self._service
        cluster = {state.number: (state, tasks) for state, tasks in service.cluster.jobs_now()}
        admitted = service.running.queue.under_way.copy()
        jobs = list(service.state.open.values())
        under_way = [service.state.open[number] for number in cluster if number in service.state.open]
        others = sorted((job for job in jobs if job.id not in cluster), key=lambda job: (-job.priority, job.id))
        jobs = [*under_way, *others][:MAX_JOBS]
        stored = self._stored([job.id for job in jobs if job.id not in cluster])
        present = []
        for job in jobs:
            left = cluster[job.id][1] if job.id in cluster else _unfinished(stored.get(job.id, []), job.done or ())
            if left:
                started = service.running.status(job) == RUNNING
                made = _snapshot_job(job, table.tasks(left))
                present.append(
                    made._replace(
                        after=tuple(service.running.waits_for(job)), started=started, admitted=job.id in admitted
                    )
                )
        now = time.time()
        latest = itertools.islice((service.state.jobs.get(n) for n in reversed(list(service.state.jobs))), MAX_RECENT)
        recent = [job for job in latest if job is not None and now - job.accepted_s < RECENT_S]
        known = self._stored([job.id for job in recent])
        recent = [job for job in recent if job.id in known]
        like = [
            _snapshot_job(job, table.tasks(known[job.id]))._replace(arrives_s=job.accepted_s - now) for job in recent
        ]
        found = service.cluster.snapshot(table, present, service.limits.at_once, like)
        if not self._is_shared([*jobs, *recent]):
            return found
        rule = PlayedAdmission(service.running.queue, service.state.users, service.limits.at_once, now)
        return replace(found, admission=rule)

    def _is_shared(self, jobs: Sequence[ServiceJob]) -> bool:
        """Whether more than priority and age decides who of these is next."""
        limits = [self._service.limits.containment.of_user(user) for user in {job.user for job in jobs}]
        quota = any(math.isfinite(getattr(limit, name)) for limit in limits for name in QUOTAS)
        return quota or len({(job.user, job.queue) for job in jobs}) > 1

    def _stored(self, numbers: Sequence[int]) -> dict[int, list[TaskSketch]]:
        """Tasks of jobs as they were submitted, by job; without those of which the database does not have enough."""
        missing = [number for number in numbers if number not in self._sketches]
        rows = tables.payloads.c
        with self._service.database.connect() as connection:
            for some in _parts(missing):
                wanted = sa.select(rows.job, rows.shape, rows.kernels).where(rows.job.in_(some))
                for job, shape, facts in connection.execute(wanted):
                    try:
                        self._sketches[job] = [] if facts is None else graphs.sketches(shape, facts)
                    except (KeyError, TypeError, ValueError) as error:
                        log.error("the tasks of job %d are damaged: %s", job, error)
        found = {number: tasks for number in numbers if (tasks := self._sketches.get(number))}
        while len(self._sketches) > MAX_JOBS:
            self._sketches.pop(next(iter(self._sketches)))
        return found

    # --- what if

    def ask(self, token: Token, asked: wire.AskWhatIf) -> wire.WhatIfView:
        """Begin to play a change. One that makes no sense here has failed at once, and says why."""
        for number in asked.priority:
            if self._service.job(token, number).over and not asked.since_s:
                raise InputError(f"job {number} has ended", hint="name an open job, or play the last ones: --since 6h")
        with self._lock:
            if sum(one.answer is None and one.error is None for one in self._what_ifs.values()) >= MAX_PENDING:
                hint = "try again in a minute"
                raise BusyError(f"{MAX_PENDING} what-ifs are waiting already", hint=hint, retry_s=10.0)
            made = _WhatIf(next(self._numbers), token.user)
            self._what_ifs[made.id] = made
            while len(self._what_ifs) > MAX_WHAT_IFS:
                self._what_ifs.pop(next(iter(self._what_ifs)))
        try:
            tasks = self._checked(token, asked)
        except SymphonyError as error:
            made.error = wire.ErrorView.of(error)
        else:
            self._thread.submit(self._answer, made, token, asked, tasks)
        return made.view()

    def _checked(self, token: Token, asked: wire.AskWhatIf) -> list[TaskSketch] | None:
        """The tasks of a job that is submitted, if one is. Raises if the change makes no sense here."""
        if asked == wire.AskWhatIf(since_s=asked.since_s, fail_s=asked.fail_s):
            hint = "name a change: policy, without, more, fail, priority or submit"
            raise InputError("nothing is changed", where="whatif", hint=hint)
        topology = self._service.cluster.topology
        devices_of(topology, asked.without, "--without")
        devices_of(topology, asked.fail, "--fail")
        extended(topology, [addition(text) for text in asked.more])
        if asked.policy:
            named(asked.policy)
        return None if asked.submit is None else self._submitted(token, asked.submit)

    def what_if(self, token: Token, number: int) -> wire.WhatIfView:
        made = self._what_ifs.get(number)
        if made is None or (made.user != token.user and ADMIN not in token.scopes):
            raise UnknownJobError(f"there is no what-if {number}", hint="ask again: POST /v1/whatif")
        return made.view()

    def _submitted(self, token: Token, sent: wire.Submit) -> list[TaskSketch]:
        service = self._service
        graphs.check(sent)
        service.check_blobs(token, named_in(graphs.values(sent.graph)))
        whole = graphs.submission(sent.graph, token.user, service.blobs)
        service.cluster.check(whole)
        return graphs.sketches(json.dumps(graphs.shape(sent.graph)), json.dumps(graphs.kernel_facts(whole)))

    def _answer(self, made: _WhatIf, token: Token, asked: wire.AskWhatIf, tasks: list[TaskSketch] | None) -> None:
        try:
            made.answer = self._play_change(made, token, asked, tasks)
            made.progress = 1.0
        except SymphonyError as error:
            made.error = wire.ErrorView.of(error)
        except Exception as error:  # a bug: the thread must go on, and the client be told
            log.exception("a what-if failed")
            made.error = wire.ErrorView.of(
                ServiceError(f"the what-if failed: {type(error).__name__}", hint="see the log of the service")
            )

    def _play_change(
        self, made: _WhatIf, token: Token, asked: wire.AskWhatIf, tasks: list[TaskSketch] | None
    ) -> wire.WhatIfAnswer:
        service, left_out = self._service, 0
        table = service.cluster.kernel_table()
        if asked.since_s:
            snapshot, left_out = self._history(table, asked.since_s)
            if not snapshot.jobs:
                raise InputError(
                    f"no job that was accepted in the last {seconds(asked.since_s)} is done",
                    where="--since",
                    hint="write a longer time, such as 24h; or leave it out for the jobs that are open",
                )
        else:
            snapshot = self.snapshot(table)
        extra = None
        if tasks is not None and (sent := asked.submit) is not None:
            extra = SnapshotJob(
                0, table.tasks(tasks), token.user, sent.graph.name, sent.priority, after=tuple(sent.after),
                queue=sent.queue,
            )  # fmt: skip
        change = Change(
            asked.policy,
            tuple(asked.without),
            tuple(addition(text) for text in asked.more),
            tuple(asked.fail),
            asked.fail_s,
            dict(asked.priority),
            extra,
        )
        count = sum(len(job.tasks) for job in snapshot.jobs) or 1
        draws = next((n for n in (32, 16, 8, 4) if n * count <= PLAYED_HISTORY), 2)
        stage = Stage(snapshot, change.more or answers.spares(snapshot), extra, draws)

        def progress(share: float) -> None:
            made.progress = share

        known = frozenset(job.job for job in snapshot.jobs if self._visible(token, job))
        policy = service.cluster.policy
        found = self._what_if_player.call(answers.what_if, stage, change, policy, known, progress=progress)
        return wire.WhatIfAnswer(
            text=found.text,
            change=found.change,
            draws=found.draws,
            jobs=found.jobs,
            left_out=left_out,
            measures=[
                wire.MeasureView(name=m.name, text=m.text, now=views.band_view(m.now), then=views.band_view(m.then),
                                 change=views.band_view(m.change)) for m in found.measures
            ],
            rows=[
                wire.JobChangeView(job=r.job, name=r.name, user=r.user, now=views.band_view(r.now),
                                   then=views.band_view(r.then)) for r in found.rows
            ],
            stranded=list(found.stranded),
            start_s=None if found.start_s is None else views.band_view(found.start_s),
            finish_s=None if found.finish_s is None else views.band_view(found.finish_s),
        )  # fmt: skip

    def _history(self, table: KernelTable, since_s: float) -> tuple[Snapshot, int]:
        """The jobs that were accepted in the last seconds and are done, with the times that their tasks took."""
        service, begin = self._service, time.time() - since_s
        jobs = [job for job in list(service.state.jobs.values()) if job.accepted_s >= begin and job.status == DONE]
        jobs = sorted(jobs, key=lambda job: job.accepted_s)[-MAX_JOBS:]
        stored, took = self._stored([job.id for job in jobs]), self._took([job.id for job in jobs])
        kinds = {device.name: device.kind for device in service.cluster.topology.devices}
        handling_s = service.cluster.statistics.mean_handling_s
        found = []
        for job in jobs:
            tasks = list(table.tasks(stored.get(job.id, [])))
            for n, task in enumerate(tasks):
                ran = took.get((job.id, n))
                if ran is not None and ran[1] in kinds:
                    tasks[n] = task._replace(took_s=ran[0] + handling_s, kind=kinds[ran[1]])
            if tasks:
                after = tuple(n for n in job.after if n in stored)
                made = _snapshot_job(job, tuple(tasks))
                found.append(made._replace(arrives_s=job.accepted_s - begin, after=after))
        return service.cluster.snapshot(table, found, service.limits.at_once), len(jobs) - len(found)

    def _took(self, numbers: Sequence[int]) -> dict[tuple[int, int], tuple[float, str]]:
        """Seconds and first device of finished tasks, by job and task."""
        rows, found = tables.events.c, {}
        with self._service.database.connect() as connection:
            for some in _parts(numbers):
                wanted = sa.select(rows.job, rows.task, rows.data).where(rows.job.in_(some), rows.kind == FINISHED)
                for job, task, text in connection.execute(wanted):
                    data = json.loads(text)
                    found[job, task] = data["seconds"], data["device"].split(", ")[0]
        return found

    # --- the record

    def view(self, token: Token, *, everybody: bool) -> wire.RecordView:
        rows = self.record.rows(None if everybody else token.user)
        whole = [row for row in rows if row.by == "all"]
        scored = sum(row.scored for row in whole)
        waiting = sum(one.user == token.user or everybody for some in list(self.pending.values()) for one in some)
        parts = [f"{row.coverage:.0%} of {row.scored} {row.what} times" for row in whole]
        text = f"{SHARE:.0%} bands held {' and '.join(parts)}" if parts else "no forecast has an outcome yet"
        return wire.RecordView(
            forecasts=scored + waiting,
            scored=scored,
            share=SHARE,
            text=f"{text}; {waiting} more wait for their outcome" if waiting else text,
            rows=[
                wire.RecordRowView(
                    what=row.what,
                    by=row.by,
                    value=row.value,
                    count=row.scored,
                    coverage=row.coverage,
                    raw_coverage=row.model_coverage,
                    width=row.width,
                    error=row.error,
                )
                for row in rows
            ],
        )

    def _remember(self, played: Played, made: Sequence[Forecast]) -> None:
        """Record forecasts, one of each job for each play."""
        new = [one for one in made if self._noted.get(one.job) != played.at_s and math.isfinite(one.model.mid)]
        if not new:
            return
        self._noted[new[0].job] = played.at_s
        self.pending.setdefault(new[0].job, []).extend(new)
        self.made += len(new)
        self._service.ledger.post_required(lambda entry: entry.insert(tables.forecasts, *map(_row, new)))

    def ended(self, jobs: Iterable[int]) -> None:
        """Score the forecasts of jobs that have ended. Called by the ledger's thread."""
        for number in jobs:
            job = self._service.state.jobs.get(number)
            if number in self.pending and (job is None or job.over):
                self._noted.pop(number, None)
                some = self.pending.pop(number)
                self._service.ledger.post_required(partial(self._score, job=job, some=some))

    def _score(self, entry: Transaction, job: ServiceJob | None, some: Sequence[Forecast]) -> None:
        rows = tables.forecasts.c
        if job is None or job.status != DONE or job.ended_s is None:  # what would have happened is not known
            entry.do(sa.delete(tables.forecasts).where(rows.job == some[0].job, rows.actual.is_(None)))
            self.made -= len(some)
            return
        events = read_events(self._service.database, job.id)
        began = [event.data.get("began_s") for event in events if event.kind in RUN_ENDINGS]
        start_s = min((at for at in began if at is not None), default=job.ended_s)
        for one in some:
            [known] = self.record.settle([one], start_s - one.at_s, job.ended_s - one.at_s)
            self.scored += 1
            same = rows.job == one.job, rows.what == one.what, rows.at == one.at_s
            entry.do(sa.update(tables.forecasts).where(*same).values(actual=known.actual_s))

    def sweep(self, entry: Transaction) -> None:
        """Forget old forecasts."""
        since = time.time() - KEPT_FOR * self._service.limits.keep_s
        entry.do(sa.delete(tables.forecasts).where(tables.forecasts.c.at < since))

    def _load(self) -> tuple[Record, dict[int, list[Forecast]]]:
        rows, pending = tables.forecasts.c, dict[int, list[Forecast]]()
        with self._service.database.connect() as connection:
            latest = (
                sa.select(tables.forecasts).where(rows.actual.is_not(None)).order_by(rows.id.desc()).limit(MAX_RECORD)
            )
            scored = [_forecast(row) for row in connection.execute(latest)][::-1]
            for row in connection.execute(sa.select(tables.forecasts).where(rows.actual.is_(None))):
                pending.setdefault(row.job, []).append(_forecast(row))
        return Record(scored, MAX_RECORD), pending


_UNKNOWN = Band(math.inf, math.inf, math.inf)


def _row(one: Forecast) -> dict[str, object]:
    bands = {name: wire.optional(x) for name, x in zip(ROWS, one.model, strict=True)}
    bands |= {f"shown_{name}": wire.optional(x) for name, x in zip(ROWS, one.shown, strict=True)}
    return {"job": one.job, "user": one.user, "what": one.what, "at": one.at_s, **bands, "actual": None}


def _forecast(row: sa.Row) -> Forecast:
    model, shown = (
        Band(*(math.inf if (x := getattr(row, f"{mark}{name}")) is None else x for name in ROWS))
        for mark in ("", "shown_")
    )
    return Forecast(row.job, row.user, row.what, row.at, model, shown, math.nan if row.actual is None else row.actual)


def _snapshot_job(job: ServiceJob, tasks: tuple[SnapshotTask, ...]) -> SnapshotJob:
    return SnapshotJob(job.id, tasks, job.user, job.name, job.priority, queue=job.queue, trains=bool(job.steps))


def _unfinished(tasks: Sequence[TaskSketch], done: Iterable[int]) -> list[TaskSketch]:
    """Without finished tasks."""
    over = set(done)
    new = {old: n for n, old in enumerate(k for k in range(len(tasks)) if k not in over)}
    return [
        one._replace(now=one.now._replace(reads=tuple(new[source] for source in one.now.reads if source in new)))
        for k, one in enumerate(tasks)
        if k not in over
    ]


def _parts(numbers: Sequence[int], size: int = 500) -> Iterator[Sequence[int]]:
    """Numbers in parts that fit into a query."""
    return (numbers[n : n + size] for n in range(0, len(numbers), size))


def _tasks(count: int) -> str:
    return f"{count} task{'s' if count != 1 else ''}"


def _verb(text: str, count: int) -> str:
    """ "wait for a device" with the number of its subject."""
    return text.replace("wait", "waits", 1).replace("run", "runs", 1) if count == 1 else text

"""A service that a test drives by hand, without threads and without anything that runs."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import symphony as sy
from symphony.service.service import Service
from symphony.service.state import ServiceJob
from symphony.service.tokens import READ, SUBMIT, Token
from symphony.service.wire import Submit
from tests.engines.by_hand import ByHand
from tests.runtime.machines import machine
from tests.service.kernels import add
from tests.whole_system.clients import Sender

ANN = Token("0" * 8, "ann", (SUBMIT, READ), 0, 0.0, None)


class Handmade:
    """One life of it."""

    def __init__(self, folder: Path, database: str = "") -> None:
        self.folder, self.engine = folder, ByHand(machine())
        self._finished = 0
        self.service = Service(lambda: self.engine, folder, database=database, threads=False)
        self.drive()

    def drive(self) -> None:
        """Until nothing happens by itself."""
        for _ in range(6):
            while not self.service.ledger.idle:
                self.service.ledger.step()
            self.service.cluster.step()

    def submit(self, name: str, *after: int) -> int:
        """Two tasks, one after the other; the number of the job. `after`: of jobs to wait for."""
        graph = sy.graph(name)
        graph.task(add, graph.task(add, 1))
        body = Sender().bytes_of(graph, 0, "", after=after)
        answer = self.service.submit(ANN, Submit.model_validate_json(body), body, name)
        self.drive()
        return answer.result(0.0)[0].id

    def finish(self, value: int) -> None:
        """What was sent first of all that is not done is done."""
        work = self.engine.sent[self._finished]
        self._finished += 1
        self.engine.news = [self.engine.finished(work.number, value)]
        self.drive()

    def job(self, number: int) -> ServiceJob:
        return self.service.state.jobs[number]

    def message(self, number: int) -> str:
        """Why a job has failed."""
        error = self.job(number).error
        assert error is not None and error["kind"] == "JobError" and self.job(number).status == "failed"
        return str(error["message"])

    def die(self, to: Path) -> Path:
        """What `kill -9` leaves, in another folder: this process goes on, and has the locks of the first."""
        to.mkdir()
        with sqlite3.connect(self.folder / "journal.sqlite") as source, sqlite3.connect(to / "journal.sqlite") as copy:
            source.backup(copy)
        shutil.copytree(self.folder / "blobs", to / "blobs", ignore=shutil.ignore_patterns("part-*"))
        self.service.close()
        return to


def change(folder: Path, statement: str, *values: object) -> None:
    """Something happens to the file while no service runs."""
    with sqlite3.connect(folder / "journal.sqlite") as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()

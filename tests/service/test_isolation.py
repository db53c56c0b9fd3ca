"""What one user's job can do to the service, and to others: kernels that break what runs them, real processes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import symphony as sy
from symphony.cli.jobs import result as print_result
from symphony.service.database import open_database
from symphony.service.tokens import ADMIN, create
from tests.service.kernels import add, one
from tests.service.places import BOTH, SECONDS, Place, place
from tests.service.serve_process import Serve


@sy.kernel
def breaks(how):
    """Write into what its answer goes through, in one of several wrong ways."""
    import os
    import stat
    import struct

    def pipes():
        for name in map(int, os.listdir("/proc/self/fd")):
            try:
                with open(f"/proc/self/fdinfo/{name}") as file:
                    flags = int(file.read().split("flags:")[1].split()[0], 8)
                if name > 2 and stat.S_ISFIFO(os.fstat(name).st_mode) and flags & 3 == 1:
                    yield name
            except OSError:
                continue

    if how == "forks":
        os.fork()
        os.fork()
        return "forked"
    data = {
        "garbage": b"\xff\x00" * 5_000,
        "length": struct.pack("<2sBBIQ", b"sy", 2, 0, 2**32 - 1, 0),
        "another": struct.pack("<2sBBIQ", b"sy", 2, 0, 36, 12345) + bytes(36),
        "twice": struct.pack("<2sBBIQ", b"sy", 4, 0, 0, 0) * 3,
    }[how]
    for pipe in list(pipes()):
        os.write(pipe, data)
    return "written"


@sy.kernel
def patches(value):
    """Replace what makes results, in its process and in every way it knows."""
    import builtins
    import json
    import os
    import pickle
    import sys

    import cloudpickle

    def evil(*args, **options):
        return b"cos\nsystem\n(S'touch evil'\ntR."

    pickle.dumps = cloudpickle.dumps = json.dumps = evil
    for name in ("symphony_worker", "symphony_messages"):
        for attribute in ("pickled", "_pickled", "unpickled"):
            if hasattr(sys.modules.get(name), attribute):
                setattr(sys.modules[name], attribute, evil)
    builtins.sum = lambda values: "patched"
    os.environ["PATCHED"] = "yes"
    os.chdir("/")
    return value


@sy.kernel
def looks():
    import builtins
    import os
    import pickle

    return {
        "sum": builtins.sum([1, 2]),
        "environment": os.environ.get("PATCHED"),
        "folder": os.getcwd() == "/",
        "pickle": pickle.dumps([1]) == pickle.dumps([1], protocol=None),
    }


CLEAN = {"sum": 3, "environment": None, "folder": False, "pickle": True}


def test_a_kernel_that_breaks_its_process_fails_alone_and_the_service_can_be_started_again(tmp_path: Path) -> None:
    """The whole service, as a process: it goes on for another user, and after it was killed while such jobs ran."""
    state = tmp_path / "state"
    serving = Serve(state)
    database = open_database("", state)
    bob_token = create(database, "bob", BOTH, days=None, priority=0)
    database.dispose()
    ways = ["garbage", "length", "another", "twice"]
    with serving.connect() as ann, sy.connect(serving.told["url"], token=bob_token) as bob:
        broken = {how: ann.submit(one(breaks, how)) for how in ways}
        forks = ann.submit(one(breaks, "forks"))
        assert [bob.submit(one(add, k, 1)).result(SECONDS) for k in range(5)] == [1, 2, 3, 4, 5]
        for how, job in broken.items():
            with pytest.raises(sy.WorkerDiedError, match=r"kernel 'breaks': its process sent a malformed message"):
                job.result(SECONDS)
            assert job.status == "failed", how
        assert forks.result(SECONDS) == "forked"
        for how in ways:
            ann.submit(one(breaks, how))
    serving.kill()
    again = Serve(state)
    with again.connect() as ann, sy.connect(again.told["url"], token=bob_token) as bob:
        assert bob.submit(one(add, 20, 22)).result(SECONDS) == 42
        for view in ann.jobs(limit=4):
            assert ann.job(view.id).wait(SECONDS)
            assert ann.job(view.id).status == "failed"
    assert again.stop() == 0


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory):
    with place(tmp_path_factory.mktemp("isolation")) as found:
        yield found


def test_what_a_job_changes_in_its_process_reaches_no_other_job(here: Place) -> None:
    with here.connect("ann") as ann, here.connect("bob") as bob:
        for _ in range(3):  # on all processes that there are
            jobs = [ann.submit(one(patches, 1)) for _ in range(4)]
            found = [cluster.submit(one(looks)) for cluster in (bob, ann, bob)]
            assert [job.result(SECONDS) for job in found] == [CLEAN] * 3
            for job in jobs:
                job.wait(SECONDS)
        graph = sy.graph("one job")
        graph.output("looked", graph.task(looks))
        assert ann.submit(graph).result(SECONDS) == {"looked": CLEAN}


class Marks:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        import os

        return os.makedirs, (self.path, 0o777, True)


@sy.kernel
def gives(head):
    """What somebody who means no good would return."""
    import pickle

    class Given:
        def __reduce__(self):
            return pickle.loads, (head,)

    return Given()


@sy.kernel
def raises(head):
    import pickle

    class Wrong(Exception):
        def __reduce__(self):
            return pickle.loads, (head,)

    raise Wrong("on purpose")


@sy.kernel
def arrays():
    import numpy as np

    return {"a": np.arange(20_000.0), "b": [1, "two", b"three"]}


def test_results_of_others_are_read_as_data_unless_they_are_trusted(here: Place, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    head = pickle.dumps(Marks(str(mark)))
    with here.connect("ann") as ann:
        numbers = [ann.submit(one(kernel, *args)).id for kernel, *args in ((arrays,), (gives, head), (raises, head))]
        for number in numbers:
            assert ann.job(number).wait(SECONDS)
    assert not mark.exists()
    token = here.token("root", *BOTH, ADMIN)
    with sy.connect(here.server.url, token=token) as root:
        assert root.user == "root"
        read = root.job(numbers[0]).result()
        assert read["a"].sum() == 19_999 * 10_000 and read["b"] == [1, "two", b"three"]
        with pytest.raises(sy.TrustError, match=r"would run code of 'ann' here[\s\S]*trust='ann'"):
            root.job(numbers[1]).result()
        with pytest.raises(sy.KernelError, match="on purpose") as raised:
            root.job(numbers[2]).result()
        assert raised.value.__cause__ is None
    assert not mark.exists()
    with pytest.raises(sy.TrustError):
        print_result(numbers[1], url=here.server.url, token=token)
    assert not mark.exists()
    with sy.connect(here.server.url, token=token, trust="ann") as root:
        root.job(numbers[1]).result()
    assert mark.exists()
    mark.rmdir()
    print_result(numbers[1], trust=["bob", "ann"], url=here.server.url, token=token)
    assert mark.exists()

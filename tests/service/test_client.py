"""Graphs over HTTP, on real processes: what users get, and what they are told when something is wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import symphony as sy
from symphony.service.client import RemoteCluster
from tests.runtime.machines import machine
from tests.service.kernels import add, fail, note, one, sleep, wait_for
from tests.service.places import SECONDS, Place, place, wait_until


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture(scope="module")
def ann(here: Place) -> Iterator[RemoteCluster]:
    with here.connect("ann") as found:
        yield found


# -------------------------------------------------------------------- results


def test_a_job_results_in_what_its_last_task_returned(ann: RemoteCluster) -> None:
    graph = sy.graph("sum")
    graph.task(add, graph.task(add, 1, 2), graph.task(add, 3, 4), 5)
    job = ann.submit(graph)
    assert job.result(SECONDS) == 15
    assert job.status == "done" and job.wait(0) and job.name == "sum"
    assert ann.job(job.id).result(SECONDS) == 15


def test_several_last_tasks_make_a_tuple_and_named_outputs_a_dict(ann: RemoteCluster) -> None:
    graph = sy.graph("two")
    first, second = graph.task(add, 1), graph.task(add, 2)
    assert ann.submit(graph).result(SECONDS) == (1, 2)
    graph.output("both", graph.task(add, first, second))
    graph.output("first", first)
    assert ann.submit(graph).result(SECONDS) == {"both": 3, "first": 1}


def test_large_arrays_travel_by_themselves_and_come_back_as_they_were(here: Place, ann: RemoteCluster) -> None:
    given = np.random.default_rng(0).random((200, 257))
    graph = sy.graph("large")
    same = graph.task(add, given)
    graph.task(add, same, same)
    job = ann.submit(graph)
    answer = job.result(SECONDS)
    np.testing.assert_array_equal(answer, given * 2)
    answer[0, 0] = 7.0  # it is the caller's own
    assert list(here.service.blobs.folder.glob("*/*"))
    with here.connect("root", "admin") as root:
        np.testing.assert_array_equal(root.job(job.id).result(SECONDS), given * 2)


def test_a_kernel_that_raises_raises_for_the_one_who_asked(ann: RemoteCluster) -> None:
    job = ann.submit(one(fail, "no such gene"))
    with pytest.raises(sy.KernelError, match="no such gene") as caught:
        job.result(SECONDS)
    assert isinstance(caught.value.__cause__, LookupError)
    assert "in fail" in caught.value.traceback
    assert job.status == "failed"
    assert ann.submit(one(add, 1)).result(SECONDS) == 1


def test_a_job_can_be_waited_for_explained_and_traced(ann: RemoteCluster, tmp_path: Path) -> None:
    graph = sy.graph("chain")
    graph.task(add, graph.task(add, 1), 1)
    job = ann.submit(graph)
    assert job.result(SECONDS) == 2
    told = job.explain()
    assert told.startswith(f"job {job.id} ('chain'): done after") and "add-1" in told and "on here/cpu" in told
    job.trace(tmp_path / "x.json")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "add"] == ["add-0", "add-1"]
    assert [event["ph"] for event in events if event.get("cat") == "dependency"] == ["s", "f"]
    assert [task.status for task in job.detail().tasks] == ["done", "done"]
    texts = [line.text for line in job.logs().lines]
    assert texts[0].startswith("accepted: 2 tasks") and texts[-1] == "done"


def test_what_kernels_print_is_in_the_logs(ann: RemoteCluster) -> None:
    @sy.kernel
    def talk(count):
        import sys

        print("one\ntwo")
        print("three", file=sys.stderr)
        print("x" * count)
        return count

    job = ann.submit(one(talk, 3))
    assert job.result(SECONDS) == 3
    texts = [line.text for line in job.logs().lines if line.task == "talk-0"]
    assert texts == ["one", "two", "three", "xxx"]
    long = ann.submit(one(talk, 1_000_000))
    assert long.result(SECONDS) == 1_000_000
    assert len(max((line.text for line in long.logs().lines), key=len)) < 20_000


def test_what_is_under_way_is_told_of(ann: RemoteCluster, tmp_path: Path) -> None:
    graph = sy.graph("slow")
    graph.task(add, graph.task(wait_for, str(tmp_path / "go")), "!")
    job = ann.submit(graph)
    wait_until(lambda: job.detail().tasks[0].status == "running")
    assert "waits for wait_for-0" in job.explain()
    assert any(f"job {job.id}: wait_for-0" in device.running for device in ann.state().devices)
    assert not job.wait(0.01)
    with pytest.raises(TimeoutError):
        job.result(0.01)
    job.cancel()
    with pytest.raises(sy.JobCancelledError):
        job.result(SECONDS)


def test_a_cancelled_job_is_over_whether_it_runs_or_waits(here: Place, ann: RemoteCluster, tmp_path: Path) -> None:
    busy = [ann.submit(one(wait_for, str(tmp_path / "go"))) for _ in range(here.service.limits.at_once)]
    waiting = ann.submit(one(note, str(tmp_path / "ran"), "x"))
    assert waiting.status == "waiting"
    before = ann.state().counts["cancelled"]
    waiting.cancel()
    with pytest.raises(sy.JobCancelledError):
        waiting.result(SECONDS)
    (tmp_path / "go").touch()
    assert {job.result(SECONDS) for job in busy} == {"came"}
    assert not (tmp_path / "ran").exists()
    busy[0].cancel()
    assert busy[0].status == "done"
    assert ann.state().counts["cancelled"] == before + 1


def test_a_job_that_is_not_admitted_says_why(here: Place, ann: RemoteCluster, tmp_path: Path) -> None:
    most = here.service.limits.at_once
    jobs = [ann.submit(one(wait_for, str(tmp_path / "go"))) for _ in range(most)]
    assert not jobs[0].view().waits and "jobs of ann are under way, and more of one user" in jobs[-1].view().waits
    (tmp_path / "go").touch()
    assert {job.result(SECONDS) for job in jobs} == {"came"} and not jobs[-1].view().waits


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_runs_that_were_killed_are_kept_and_explained(tmp_path: Path, how: str) -> None:
    with place(tmp_path / "service") as new, new.connect("ann") as ann:  # kernels that were short are sent ahead
        check_killed_runs(ann, tmp_path, how)


def check_killed_runs(ann: RemoteCluster, tmp_path: Path, how: str) -> None:
    graph = sy.graph("both")
    graph.task(wait_for, str(tmp_path / "never"))
    if how == "fail":
        graph.task(fail, graph.task(wait_for, str(tmp_path / "fail")))
    job = ann.submit(graph)
    wait_until(lambda: "running" in {task.status for task in job.detail().tasks[:1]})
    if how == "cancel":
        job.cancel()
    (tmp_path / "fail").touch()
    with pytest.raises(sy.JobError):
        job.result(SECONDS)
    killed = job.detail().tasks[0]
    assert killed.status == "cancelled" and len(killed.runs) == 1 and (killed.runs[0].seconds or 0) > 0
    assert "wait_for-0  on " in job.explain() and "killed, because the job had ended after" in job.explain()
    assert job.view().seconds >= (killed.runs[0].seconds or 0)  # it is counted as use
    assert any("wait_for-0: killed on" in line.text for line in job.logs().lines)


def test_a_job_waits_until_one_of_its_tasks_has_started_though_it_was_let_in(
    here: Place, ann: RemoteCluster, tmp_path: Path
) -> None:
    @sy.kernel
    def hold(path):
        import pathlib
        import time

        while not pathlib.Path(path).exists():
            time.sleep(0.005)

    before = ann.state()
    busy = [ann.submit(one(hold, str(tmp_path / "go"))) for _ in range(2)]
    wait_until(lambda: all(job.status == "running" for job in busy))
    waits = ann.submit(one(hold, str(tmp_path / "go")))
    handed = here.service.running.admitted
    wait_until(lambda: waits.id in handed and handed[waits.id].state.slot >= 0)  # the core has it
    assert waits.status == "waiting" and "hold-0  waits for a device" in waits.explain()
    assert waits.explain().startswith(f"job {waits.id} ('hold'): waiting for")
    assert [task.status for task in waits.detail().tasks] == ["waiting"] and waits.detail().job.status == "waiting"
    assert waits.id in [view.id for view in ann.jobs(status="waiting")]
    assert waits.id not in [view.id for view in ann.jobs(status="running")]
    now, (mine,) = ann.state(), ann.state().users
    assert (now.waiting - before.waiting, now.running - before.running) == (1, 2)
    assert (mine.waiting, mine.running) == (1, 2)
    page = ann._ask("GET", "/metrics").decode()
    assert all(line in page for line in ("symphony_jobs_waiting 1\n", "symphony_jobs_running 2\n", "_let_in 3\n"))
    (tmp_path / "go").touch()
    waits.result(SECONDS)
    assert waits.status == "done"


def test_one_key_makes_one_job(ann: RemoteCluster, tmp_path: Path) -> None:
    path = str(tmp_path / "ran")
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(ann.submit(one(note, path, "x"), key="once").id)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    ann.job(found[0]).result(SECONDS)
    assert (tmp_path / "ran").read_text() == "x\n"
    with pytest.raises(sy.InputError, match="same key"):
        ann.submit(one(add, 2), key="once")


def test_what_was_learned_can_be_read(ann: RemoteCluster) -> None:
    ann.submit(one(add, 1)).result(SECONDS)
    assert ann.profiles[f"ann:{add.key}", "small"].runs > 0 and "add on small" in str(ann.profiles)
    assert ann.topology == machine()


def test_what_was_learned_of_others_kernels_is_not_shown(here: Place, ann: RemoteCluster) -> None:
    ann.submit(one(sleep, 0.3)).result(SECONDS)
    ann.submit(one(sleep, 0.3)).result(SECONDS)  # the first may have had to import things
    with here.connect("bob") as bob, here.connect("root", "read", "admin") as root:
        assert not any(bob.profiles.content()[part] for part in ("timings", "demands", "seen"))
        assert any(one["kernel"].startswith("ann:") for one in root.profiles.content()["demands"])


# -------------------------------------------------------------------- refusals


def test_another_users_job_is_not_there(here: Place, ann: RemoteCluster) -> None:
    job = ann.submit(one(add, 1))
    job.result(SECONDS)
    with here.connect("eve", "submit", "read") as eve:
        for ask in (
            lambda: eve.job(job.id),
            lambda: eve._ask("GET", f"/v1/jobs/{job.id}/result"),
            lambda: eve._ask("GET", f"/v1/jobs/{job.id}/logs"),
            lambda: eve._ask("POST", f"/v1/jobs/{job.id}/cancel"),
        ):
            with pytest.raises(sy.UnknownJobError, match=f"there is no job {job.id}"):
                ask()
        assert eve.jobs() == []
        assert [user.user for user in eve.state().users] == []
        with pytest.raises(sy.ScopeError):
            eve.jobs(everybody=True)
    with here.connect("root", "admin") as root:
        assert root.job(job.id).result(SECONDS) == 1
        assert job.id in {view.id for view in root.jobs(everybody=True)}


def test_tokens_say_what_they_are_for(here: Place, ann: RemoteCluster) -> None:
    with here.connect("ann", "read") as reader:
        assert reader.state().devices
        with pytest.raises(sy.ScopeError, match="does not allow you to submit"):
            reader.submit(one(add, 1))
    with here.connect("ann", "submit") as writer:
        assert writer.submit(one(add, 1)).id
        with pytest.raises(sy.ScopeError, match="does not allow you to see"):
            writer.jobs()


@pytest.mark.parametrize("token", ["", "sy_00000000_" + "x" * 43, "nonsense", "sy_%s"])
def test_a_wrong_token_is_refused(here: Place, token: str) -> None:
    with pytest.raises(sy.TokenError):
        RemoteCluster(here.server.url, token or "none").jobs()


def test_an_expired_token_is_refused(here: Place) -> None:
    token = here.token("ann", days=1e-9)
    with pytest.raises(sy.TokenError, match="expired"):
        RemoteCluster(here.server.url, token).jobs()


def test_a_priority_above_that_of_the_token_is_refused(here: Place, ann: RemoteCluster) -> None:
    with pytest.raises(sy.ScopeError, match="priority 5 is above 0"):
        ann.submit(one(add, 1), priority=5)
    urgent = sy.connect(here.server.url, token=here.token("ann", "submit", "read", priority=5))
    assert urgent.submit(one(add, 1), priority=5).result(SECONDS) == 1


def test_graphs_that_no_device_can_run_are_refused_at_once(ann: RemoteCluster) -> None:
    @sy.kernel(device="gpu")
    def on_gpu():
        pass

    with pytest.raises(sy.InfeasibleError):
        ann.submit(one(on_gpu))


def test_arguments_that_cannot_be_sent_are_refused_here(ann: RemoteCluster) -> None:
    with pytest.raises(sy.WorkloadError, match="argument 1 cannot be sent"):
        ann.submit(one(add, threading.Lock()))


def test_a_kernel_that_hangs_is_killed(ann: RemoteCluster) -> None:
    @sy.kernel(timeout_s=0.2)
    def hang():
        import time

        time.sleep(3600)

    with pytest.raises(sy.KernelTimeoutError):
        ann.submit(one(hang)).result(SECONDS)


def test_a_service_that_is_not_there_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symphony.service.client.FIRST_RETRY_S", 0.001)
    with pytest.raises(sy.ServiceError, match="cannot be reached") as caught:
        sy.connect("http://127.0.0.1:9", token="x")
    assert "symphony serve" in caught.value.hint
    with pytest.raises(sy.InputError, match="not the URL"):
        sy.connect("127.0.0.1:9", token="x")


@pytest.mark.parametrize(("what", "other"), [("PROTOCOL", 2), ("PYTHON", "3.99")])
def test_a_service_of_another_version_is_told_of(
    here: Place, monkeypatch: pytest.MonkeyPatch, what: str, other: object
) -> None:
    monkeypatch.setattr(f"symphony.service.wire.{what}", other)
    with pytest.raises(sy.VersionError) as caught:
        sy.connect(here.server.url, token="x")
    assert str(other) in caught.value.message and caught.value.hint


def test_whoever_serves_needs_no_token_but_shows_his_own_to_nobody_else(
    here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("SYMPHONY_URL", raising=False)
    monkeypatch.delenv("SYMPHONY_TOKEN", raising=False)
    folder = tmp_path / "symphony" / "service"
    folder.mkdir(parents=True)
    (folder / "token").write_text(here.token("ann") + "\n")
    (folder / "address").write_text(here.server.url + "\n")
    assert sy.connect().state().name == "test machine"
    (folder / "address").write_text("http://127.0.0.1:1\n")
    with pytest.raises(sy.TokenError):
        sy.connect(here.server.url).jobs()


def test_one_who_drains_accepts_nothing_and_finishes_what_runs(tmp_path: Path) -> None:
    with place(tmp_path / "state") as other, other.connect("ann", "submit", "read", "admin") as ann:
        job = ann.submit(one(wait_for, str(tmp_path / "go")))
        wait_until(lambda: job.status == "running")
        ann._ask("POST", "/v1/drain")
        with pytest.raises(sy.UnavailableError, match="is stopping"):
            ann.submit(one(add, 1))
        assert not other.service.drain(0.01)
        (tmp_path / "go").touch()
        assert other.service.drain(SECONDS)
        assert job.result(SECONDS) == "came"
        stuck = ann.job(job.id)
        assert stuck.status == "done"


def test_a_job_that_is_stopped_by_the_end_of_its_service_goes_on_with_the_next(tmp_path: Path) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    graph = sy.graph("two halves")
    first = graph.task(note, str(ran), "first")
    graph.task(note, str(ran), "second", graph.task(wait_for, str(go), first), first)
    with place(tmp_path / "state") as before, before.connect("ann") as ann:
        job = ann.submit(graph)
        broken = ann.submit(one(fail, "x"))
        wait_until(lambda: job.detail().tasks[1].status == "running")
        wait_until(lambda: broken.status == "failed")
        ann.submit(one(sleep)).cancel()
    with place(tmp_path / "state") as after, after.connect("ann") as ann:
        again = ann.job(job.id)
        assert again.status == "running"  # one of its tasks is done
        go.touch()
        assert again.result(SECONDS) == "second"
        assert [run.ended for run in again.detail().tasks[0].runs] == ["done"]
        assert ann.job(broken.id).status == "failed"
        assert ann.submit(one(add, 1)).id == job.id + 3
    assert ran.read_text() == "first\nsecond\n"

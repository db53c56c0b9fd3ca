"""Limits of jobs in a real service."""

from __future__ import annotations

import json
import os
import pwd
import urllib.request
from pathlib import Path

import pytest

import symphony as sy
from symphony.engines.containment import Allowance, Containment
from symphony.problem.errors import InfeasibleError
from symphony.runtime.graph import submission
from symphony.service.service import check_contained
from tests.cli.command import symphony_here
from tests.engines.daemon import daemon
from tests.service.kernels import one
from tests.service.serve_process import Serve
from tests.waiting import has_ended, wait_until


@sy.kernel(retries=0)
def hold(megabytes):
    import time

    held = [b"x" * 1_000_000 for _ in range(megabytes)]
    time.sleep(3600)
    return len(held)


@sy.kernel
def who():
    import os

    print("this is", os.getuid())
    return os.getuid()


def test_a_service_holds_jobs_to_its_limits_and_ends_their_processes_with_itself(tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text('[job]\nmemory = "150 MB"\n')
    serve = Serve(tmp_path / "state", "--limits", str(limits))
    with urllib.request.urlopen(serve.told["url"] + "/healthz") as answer:
        told = json.load(answer)["containment"]
    assert any(line.startswith("memory") for line in told) and any("end with it" in line for line in told)
    assert "limits: memory" in serve.log.read_text()
    with serve.connect() as cluster:
        job = cluster.submit(one(hold, 300))
        with pytest.raises(sy.KernelLimitError, match="150 MB a job may use") as caught:
            job.result()
        assert "--limits" in caught.value.hint
        greedy = sy.kernel(memory="1 GB")(lambda: None)
        with pytest.raises(sy.InfeasibleError, match="asks for 1 GB of memory, and your jobs may use 150 MB"):
            cluster.submit(one(greedy))
        path = tmp_path / "pid"
        cluster.submit(one(sy.kernel(daemon), str(path), 3600.0))
        wait_until(path.exists)
        pid = int(path.read_text())
        assert not has_ended(pid)
    serve.kill()
    wait_until(lambda: has_ended(pid))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_jobs_of_a_service_run_as_the_user_of_their_token(tmp_path: Path) -> None:
    serve = Serve(tmp_path / "state", "--run-as", "user")
    tokens = {}
    for user in ("nobody", "there-is-no-such-user"):
        made = symphony_here("token", "create", user, "--state", str(tmp_path / "state"), "--json", folder=tmp_path)
        tokens[user] = json.loads(made.stdout)["token"]
    with sy.connect(serve.told["url"], token=tokens["nobody"]) as cluster:
        job = cluster.submit(one(who))
        assert job.result() == pwd.getpwnam("nobody").pw_uid
        assert any("this is" in line.text for line in job.follow())
    with (
        sy.connect(serve.told["url"], token=tokens["there-is-no-such-user"]) as cluster,
        pytest.raises(sy.InfeasibleError, match="does not have"),
    ):
        cluster.submit(one(who))
    serve.stop()


def test_what_no_limit_can_allow_is_refused() -> None:
    def refused(policy: Containment, message: str, **options) -> None:
        kernel = sy.kernel(**options)(lambda: None)
        with pytest.raises(InfeasibleError, match=message) as caught:
            check_contained(policy, "nobody", submission(one(kernel)))
        assert caught.value.hint

    refused(Containment(Allowance(memory=1e9)), "may use 1 GB", memory="2 GB")
    refused(Containment(user=Allowance(memory=1e9)), "may use 1 GB", memory="2 GB")
    refused(Containment(Allowance(cores=2)), "4 cores, and your jobs may use 2", cores=4)
    with pytest.raises(InfeasibleError, match="its time limit is 3 h, and jobs may run for 2 h"):
        check_contained(Containment(Allowance(time=7200.0)), "ann", submission(one(who)), 10800.0)
    check_contained(Containment(Allowance(memory=2e9, cores=4)), "ann", submission(one(who)))
    trains = sy.training(steps=3)(lambda job: None)
    with pytest.raises(InfeasibleError, match="no training jobs"):
        check_contained(Containment(own_accounts=True), "nobody", submission(one(trains)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limits", "missing.toml"], "cannot be read"),
        (["--run-as", "ann"], "--run-as"),
        (["--ray", "local", "--run-as", "user"], "not for those on a Ray cluster"),
        (["--ray", "local", "--limits", "memory.toml"], "the limits memory are for jobs on this machine"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "memory.toml").write_text('[user]\nmemory = "1 GB"\nslots = 3\n')
    answer = symphony_here("serve", "--state", str(tmp_path / "state"), *options, folder=tmp_path)
    assert answer.returncode != 0 and message in answer.stderr.replace("\n", " ")
    assert not (tmp_path / "state").exists()

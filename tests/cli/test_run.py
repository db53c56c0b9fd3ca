"""`symphony run`: programs on a service and on this machine, as users run them."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from symphony.cli.remote import number_list, number_ranges
from symphony.problem.errors import InputError
from symphony.service import command
from symphony.service.command import packed
from tests.cli.command import symphony, symphony_here
from tests.service.places import SECONDS, Place, place, wait_until
from tests.waiting import has_ended


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture
def on_service(served: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SYMPHONY_URL", served.server.url)
    monkeypatch.setenv("SYMPHONY_TOKEN", served.token("ann"))
    return served


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYMPHONY_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "no-service"))


def sh(script: str, *options: str) -> list[str]:
    return ["run", *options, "--", "sh", "-c", script]


# -------------------------------------------------------------------- on this machine


def test_a_program_runs_here_if_there_is_no_service(alone: None, tmp_path: Path) -> None:
    ran = symphony(*sh("pwd; echo $WORD; echo trouble >&2; exit 3", "--env", "WORD=x"), folder=tmp_path)
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"{tmp_path}\nx\n", "trouble\n", 3)


def test_an_array_runs_once_for_each_index(alone: None, tmp_path: Path) -> None:
    ran = symphony(*sh("echo $SYMPHONY_ARRAY_INDEX; exit $SYMPHONY_ARRAY_INDEX", "--array", "0-4:2,5"), folder=tmp_path)
    assert sorted(ran.stdout.split()) == ["0", "2", "4", "5"] and ran.returncode == 5


FLAKY = "echo x >> tried; test $(wc -l < tried) -ge 3 || exit 75"


def test_a_program_is_tried_again_after_exit_statuses_that_ask_for_it(alone: None, tmp_path: Path) -> None:
    ran = symphony(*sh(FLAKY, "--retry-on-exit", "70-79", "--retry-delay", "10 ms"), folder=tmp_path)
    assert (ran.returncode, ran.stderr.splitlines()) == (0, [f"sh: exit status 75; retry {k} of 2" for k in (1, 2)])
    other = symphony(*sh("echo x >> once; exit 74", "--retry-on-exit", "75"), folder=tmp_path)
    assert other.returncode == 74 and (tmp_path / "once").read_text() == "x\n"


def test_a_service_tries_again_too(on_service: Place, tmp_path: Path) -> None:
    ran = symphony_here(*sh(FLAKY, "--retry-on-exit", "75", "--retries", "1"), folder=tmp_path)
    assert ran.returncode == 75 and (tmp_path / "tried").read_text() == "x\n" * 2
    number = ran.stderr.split()[1].rstrip(";")
    logs = symphony_here("logs", number, folder=tmp_path).stdout
    assert "ended with exit status 75" in logs and "it is retried" in logs
    failed = symphony_here("result", number, folder=tmp_path).stderr
    assert "program 'sh' ended with exit status 75 (2 times)\n" in failed
    assert f"symphony logs {number} has what it printed" in failed and "Traceback" not in failed


def test_a_folder_that_is_not_there_is_refused(alone: None, tmp_path: Path) -> None:
    ran = symphony("run", "-C", "missing", "--", "true", folder=tmp_path)
    assert ran.returncode == 2 and f"error: {tmp_path}/missing: there is no such folder\n" in ran.stderr


def test_exit_statuses_are_those_of_a_shell(alone: None, tmp_path: Path) -> None:
    late = symphony("run", "--time", "200 ms", "--", "sleep", "60", folder=tmp_path)
    assert late.returncode == 124 and "sleep: it ran for more than 0.2 s" in late.stderr
    killed = symphony(*sh("kill -9 $$"), folder=tmp_path)
    assert killed.returncode == 128 + signal.SIGKILL
    missing = symphony("run", "no-such-program", folder=tmp_path)
    assert missing.returncode == 127 and missing.stderr == "no-such-program: No such file or directory\n"
    refused = symphony("run", str(tmp_path), folder=tmp_path)
    assert refused.returncode == 126


def test_programs_get_their_cores_and_no_more_than_their_memory(alone: None, tmp_path: Path) -> None:
    many = symphony("run", "--cores", "512", "true", folder=tmp_path)
    assert many.returncode == 2 and "this machine has no 512 cores" in many.stderr
    grows = "import time; x = b'1' * 400_000_000; time.sleep(60)"
    large = symphony("run", "--memory", "200 MB", "--", sys.executable, "-c", grows, folder=tmp_path)
    assert large.returncode and "200 MB" in large.stderr


def test_what_needs_a_service_says_so(alone: None, tmp_path: Path) -> None:
    for option in (["--detach"], ["--after", "3"]):
        ran = symphony_here("run", *option, "true", folder=tmp_path)
        assert ran.returncode == 2 and f"{option[0]} needs a service\nhint: start one" in ran.stderr
    ran = symphony("run", "--device", "tpu", "true", folder=tmp_path)
    assert ran.returncode == 2 and "this machine has no device 'tpu'\nhint: it has " in ran.stderr


def test_the_address_of_a_killed_service_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYMPHONY_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    left = tmp_path / "symphony" / "service"
    left.mkdir(parents=True)
    (left / "address").write_text("http://127.0.0.1:1\n")
    (left / "token").write_text("sy_x\n")
    ran = symphony("run", "echo", "hi", folder=tmp_path)
    assert (ran.stdout, ran.returncode) == ("hi\n", 0)
    assert ran.stderr == "no service answers at http://127.0.0.1:1; running on this machine\n"
    monkeypatch.setenv("SYMPHONY_URL", "http://127.0.0.1:1")  # named, so it must be there
    assert symphony_here("run", "echo", "hi", folder=tmp_path).returncode == 2


# -------------------------------------------------------------------- on a service


def test_a_program_runs_on_a_service(on_service: Place, tmp_path: Path) -> None:
    ran = symphony_here(*sh("pwd; echo $WORD; echo trouble >&2; exit 3", "--env", "WORD=x"), folder=tmp_path)
    assert (ran.stdout, ran.returncode) == (f"{tmp_path}\nx\ntrouble\n", 3)
    assert ran.stderr.startswith("job ") and "; follow with: symphony logs " in ran.stderr
    quiet = symphony_here("run", "--quiet", "echo", "hi", folder=tmp_path)
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == ("hi\n", "", 0)
    missing = symphony_here("run", "-q", "no-such-program", folder=tmp_path)
    assert (missing.stdout, missing.returncode) == ("no-such-program: No such file or directory\n", 127)
    late = symphony_here("run", "--time", "200 ms", "--", "sleep", "60", folder=tmp_path)
    assert late.returncode == 124 and "it ran for more than 0.2 s" in late.stderr
    (tmp_path / "in").write_text("some text")
    assert symphony_here("run", "-q", "--stdin", "in", "cat", folder=tmp_path).stdout == "some text\n"


def test_jobs_of_programs_wait_for_one_another(on_service: Place, tmp_path: Path) -> None:
    first = symphony_here(*sh("while ! [ -e go ]; do sleep 0.01; done; echo 1 >> notes", "-d"), folder=tmp_path)
    array = symphony_here(
        *sh("echo 2 >> notes", "-d", "--array", "1-2", "--after", first.stdout.strip()), folder=tmp_path
    )
    low, high = map(int, array.stdout.split("-"))
    assert high == low + 1 == int(first.stdout) + 2
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    last = symphony_here("run", "-q", "--after", array.stdout.strip(), "cat", "notes", folder=tmp_path)
    assert (last.stdout, last.returncode) == ("1\n2\n2\n", 0)


def test_a_folder_travels_with_a_program_and_results_come_back(on_service: Place, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "data").write_text("17")
    script = "pwd; read x < inner/data; mkdir out; echo $((x + 1)) > out/result; echo no > out/other"
    ran = symphony_here(*sh(script, "--send", "--fetch", "out/res*"), folder=tmp_path)
    assert ran.returncode == 0 and ran.stdout.strip() != str(tmp_path)
    assert (tmp_path / "out" / "result").read_text() == "18\n" and not (tmp_path / "out" / "other").exists()
    assert not Path(ran.stdout.strip()).exists()  # the copy is removed


def test_a_folder_that_the_machine_lacks_is_named(on_service: Place, tmp_path: Path) -> None:
    ran = symphony_here("run", "-C", str(tmp_path / "nowhere"), "true", folder=tmp_path)
    assert ran.returncode == 1 and "there is no folder" in ran.stderr and "--send" in ran.stderr


# A shell that runs tests in the background has them ignore interrupts, and so would the process.
INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from symphony.cli import main; main()"
)


def test_an_interrupt_cancels_the_job(on_service: Place, tmp_path: Path) -> None:
    line = [sys.executable, "-c", INTERRUPTIBLE, *sh("echo $$ > pid; exec sleep 3600")]
    running = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    number = int(running.stderr.readline().split()[1].rstrip(";"))
    wait_until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    running.send_signal(signal.SIGINT)
    assert running.wait(SECONDS) == 130
    wait_until(lambda: on_service.service.state.jobs[number].status == "cancelled")
    program = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended(program))


# -------------------------------------------------------------------- parts


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return files.getnames()


def test_files_that_git_ignores_do_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b.log", "inner/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name * 100)
    assert names(packed(tmp_path)) == ["a", "b.log", "inner/c"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert names(packed(tmp_path)) == [".gitignore", "a", "inner/c"]
    monkeypatch.setattr(command, "MAX_FOLDER_BYTES", 500)
    with pytest.raises(InputError, match="its files have 806 B, more than 500 B"):
        packed(tmp_path)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "1:2", "0-9:0", "0-10000", "0-9999,20000", "1,,2"])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a range of numbers"):
        number_list(text, "--array")


@pytest.mark.parametrize(("text", "numbers"), [("3", [3]), ("3,5-7,9", [3, 5, 6, 7, 9]), ("1-2", [1, 2])])
def test_lists_of_numbers_are_short(text: str, numbers: list[int]) -> None:
    assert number_list(text, "--array") == numbers and number_ranges(numbers) == text
    assert number_list("3,1-2,2,0-4:4", "--array") == [3, 1, 2, 0, 4]

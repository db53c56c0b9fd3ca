"""The examples run, on tiny sizes."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from scipy.stats import spearmanr

import symphony as sy
from examples import (
    compare_policies,
    eeg,
    genomics,
    gpu_training,
    mix,
    own_policy,
    ppo,
    running,
    security,
    training_job,
)
from symphony.runtime.kernels import KernelFunction
from symphony.training_jobs.training_run import TrainingRun
from tests.runtime.machines import machine


def test_compare_policies_answers_and_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--policies", "fifo,heft", "--seeds", "2", "--jobs", "6"]
    report = compare_policies.main([*sizes, "--report", str(tmp_path)])
    assert report.policies == ("fifo", "heft")
    assert all(len(run.jobs) == 6 and not run.refused for run in report.runs)
    assert (tmp_path / "report.html").exists()
    question = capsys.readouterr().out.split("Where did 'segment' run?")[1]
    assert "heft: v100" in question  # which is three times as fast as the next


def test_compare_policies_draws_equal_work_for_equal_seeds() -> None:
    cluster = sy.topology(compare_policies.CLUSTER)
    assert cluster.kind_counts == {"epyc": 3, "v100": 4, "t4": 2}
    one, again, other = (compare_policies.workload(cluster, seed, jobs=6, gap_s=1.0) for seed in (1, 1, 2))
    assert one == again != other


def test_own_policy_keeps_its_contract_and_is_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = sy.testing._scenarios()[:1]
    monkeypatch.setattr(sy.testing, "_scenarios", lambda: first)
    report = own_policy.main(["--topology", "machine", "--workload", "layered:6?jobs=8", "--seeds", "2"])
    assert report.policies == ("eft-belief", "remembering", "eft-exact")
    assert report.cheats == {"eft-exact"}
    assert all(len(run.jobs) == 8 for run in report.runs)
    assert "Remembering keeps its contract." in capsys.readouterr().out


@pytest.mark.slow
def test_ppo_learns_and_is_compared_on_seeds_that_it_has_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rounds", "2", "--scenarios", "2", "--group", "2", "--bank", "2", "--steps", "12", "--batches", "2"]
    report = ppo.main(["--scenario", "machine/layered:4?jobs=2&graphs=2", *sizes, "--every", "1", "--seeds", "2"])
    assert set(report.policies) == {"eft-belief", "ppo"}
    assert {run.seed for run in report.runs} == {0, 1}
    assert all(len(run.jobs) == 2 and not run.refused for run in report.runs)
    assert "round    1" in capsys.readouterr().out


def test_ppo_weighs_a_decision_against_other_runs_of_the_same_scenario() -> None:
    """Two runs of each of two scenarios: the second scenario is far longer, which is nobody's merit."""
    reward = -jnp.array([[1.0, 1.0], [1.0, 3.0], [50.0, 50.0], [50.0, 70.0]])
    now = jnp.array([[0.0, 1.0], [0.0, 1.0], [0.0, 50.0], [0.0, 50.0]])
    found = ppo.advantages(reward, now, jnp.ones((4, 2), bool), group=2)
    np.testing.assert_allclose(found[0], -found[1])
    np.testing.assert_allclose(found[2], 10 * found[0], rtol=1e-5)
    assert (found[0] > 0).all() and (found[1] < 0).all()
    later = ppo.advantages(reward, now, jnp.array([[True, True]] * 3 + [[True, False]]), group=2)
    assert later[3, 1] == 0


SEED = 3


@pytest.mark.parametrize("application", [genomics, eeg, security])
def test_applications_run_and_give_what_a_plain_run_gives(
    application: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--profiles", str(tmp_path / "p.json"), "--trace", str(tmp_path / "trace.json")]
    found = running.main("", application.build, ["--size", "2", "--seed", str(SEED), *files], machine(slots=1))
    running.same(found, application.build(2, SEED).run())
    assert (tmp_path / "trace.json").stat().st_size > 1000
    assert "the same as in one process" in capsys.readouterr().out


@pytest.mark.parametrize("application", [genomics, eeg, security])
def test_implementations_for_gpus_give_what_those_for_cpus_give(
    application: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = application.build(1, SEED)
    plain = graph.run()
    monkeypatch.setattr(
        KernelFunction, "__call__", lambda self, *args: self.implementations.get("gpu", self._first)(*args)
    )
    running.same(graph.run(), plain)


def test_results_that_differ_are_noticed() -> None:
    with pytest.raises(AssertionError):
        running.same({"found": np.ones(2)}, {"found": np.array([1.0, 2.0])})


def test_genomics_finds_the_variants_of_the_sample_and_no_others() -> None:
    found = genomics.build(3, SEED).run()
    assert found["aligned"] == found["reads"] == 3 * genomics.READS
    assert found["variants"].tolist() == genomics.SITES[::2].tolist()


def test_eeg_finds_when_seizures_begin_and_end() -> None:
    _, begins = eeg.sample(3, SEED)
    found = eeg.build(3, SEED).run()["seizures"]
    assert np.abs(found[:, 0] - begins).max() < 2
    assert np.abs(found[:, 1] - begins - eeg.SEIZURE).max() < 3


def test_security_finds_accounts_that_were_taken_over_and_hardly_any_other() -> None:
    _, taken = security.sample(5, SEED)
    found = security.build(5, SEED).run()["taken"]
    assert len(np.intersect1d(found, taken)) > 0.6 * len(taken)
    assert len(np.setdiff1d(found, taken)) < 0.1 * len(taken)


def test_loopy_beliefs_order_accounts_as_exact_ones_do() -> None:
    parts, _ = security.sample(1, SEED)
    counted = security.tally(parts[0])
    given = security.evidence(counted, security.usual([counted]))
    found = security.believe(given)
    exact = np.array([_taken_over(one) for one in given])
    assert spearmanr(found, exact).statistic > 0.95
    assert ((found > 0.5) == (exact > 0.5)).mean() > 0.98


def _taken_over(evidence: np.ndarray) -> float:
    """Exactly: for an account of either kind, the hours are a chain."""
    logs = []
    for prior, of_account in zip((1 - security.TAKEN, security.TAKEN), security.OF_ACCOUNT, strict=True):
        log, message = np.log(prior), np.ones(len(of_account))
        for hour in evidence:
            ahead = message * hour * of_account
            log, message = log + np.log(ahead.sum()), ahead @ security.NEXT / ahead.sum()
        logs.append(log)
    return float(1 / (1 + np.exp(logs[0] - logs[1])))


def test_policies_take_turns_at_the_mix_and_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--size", "1", "--rounds", "2", "--seconds", "0"]
    measured = mix.main(["--policies", "eft-belief,fifo", *sizes], machine(slots=1))
    assert [set(one) for one in measured] == [{"eft-belief", "fifo"}] * 2
    for one in measured:
        assert all(len(run.completion_s) == 6 and max(run.completion_s) <= run.makespan_s for run in one.values())
        assert all(0 < run.kernel_s <= run.makespan_s for run in one.values())  # there is one slot
    assert "2 rounds" in capsys.readouterr().out


def test_the_table_of_the_mix_fits_into_80_columns() -> None:
    measured = [
        {
            name: mix.Round(12.3 * factor * luck, (8.7 * factor * luck,), 20.0)
            for name, factor in zip(mix.POLICIES, f, strict=True)
        }
        for luck, f in ((1.0, (1.0, 0.9, 0.7)), (1.1, (1.0, 0.8, 0.75)), (1.3, (1.0, 0.85, 0.72)))
    ]
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(mix.table(measured, mix.POLICIES, "fifo"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert not any("…" in line for line in lines)
    late = next(line for line in lines if line.startswith("symphony-late"))
    assert late.count("(") == late.count(")") == 2  # both ratios, with their intervals


def test_training_job_learns_what_one_worker_would_and_goes_on_from_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--rows", "1000", "--passes", "5", "--kill-at", "4"]
    found = training_job.main([*options, "--profiles", str(tmp_path / "p.json")])
    assert found["began_at"] == 3 and found["right"] > 0.8
    weights, _ = training_job.trainer(5, workers=1)(training_job.draw(1000, 1), 2.0, "", 0)
    np.testing.assert_allclose(found["weights"], weights)
    told = capsys.readouterr().out
    assert "on here/cpu-0, here/cpu-1" in told.replace("cpu-1, here/cpu-0", "cpu-0, here/cpu-1")
    assert "5 of 5 steps; saved " in told and "lost once; resumed from step 3" in told


def test_four_kinds_of_training_job_share_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_training, "gpu_name", lambda: "")
    found = gpu_training.main(["--size", "tiny", "--steps", "40", "--profiles", str(tmp_path / "p.json")])
    assert found.keys() == set(gpu_training.KINDS)
    for kind, one in found.items():
        assert one["began"] == 0 and np.isfinite(one["losses"]).all(), kind
    assert capsys.readouterr().out.count("40 steps in") == 4


@pytest.mark.parametrize("kind", gpu_training.KINDS)
def test_gpu_training_resumes_from_its_checkpoint_and_knows_its_size(kind: str, tmp_path: Path) -> None:
    """A run of 4 steps, and one that resumes after 2, end with the same loss."""

    def run(name: str, steps: int) -> dict[str, Any]:
        (tmp_path / name).mkdir(exist_ok=True)
        return gpu_training.train(TrainingRun(tmp_path / name, name, steps, every_s=0.0), kind, "tiny", 0)

    whole = run("whole", 4)
    run("parts", 2)
    rest = run("parts", 4)
    assert (whole["began"], rest["began"]) == (0, 2)
    np.testing.assert_allclose(rest["losses"][-1], whole["losses"][-1], rtol=1e-4)
    weights = gpu_training.initial(kind, "tiny", 0)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights)) == gpu_training.parameters(kind, "tiny")

"""The examples run, on tiny sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from examples import compare_policies, own_policy, read_mapping, training_job

import symphony as sy
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


def test_read_mapping_finds_where_reads_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--reads", "60", "--parts", "2", "--profiles", str(tmp_path / "p.json")]
    calls = read_mapping.main([*options, "--trace", str(tmp_path / "trace.json")], machine(slots=1))
    assert calls["reads"] == calls["aligned"] == 60
    assert (tmp_path / "trace.json").stat().st_size > 1000
    out = capsys.readouterr().out
    assert out.count("call-0") == 2 and "read_mapping.likelihood on small" in out


def test_read_mapping_tells_a_variant_from_the_genome() -> None:
    genome, variant, reads = read_mapping.sample(400, 4_000, seed=1)
    index = read_mapping.count_kmers(genome)
    starts = read_mapping.seed(index, reads)
    plain = read_mapping.likelihood(genome, reads, starts)
    other = read_mapping.likelihood(variant, reads, starts)
    scores = read_mapping.align(genome, reads, starts)
    calls = read_mapping.call([scores], [plain], [other])
    assert calls["aligned"] == 400 and 0 < calls["for_variant"] < calls["covering"] < 30


def test_training_job_learns_what_one_worker_would_and_goes_on_from_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, both, alone = training_job.draw(1000, 1), tmp_path / "both", tmp_path / "alone"
    both.mkdir()
    alone.mkdir()
    training_job.train(data, 3, 2.0, str(both), "127.0.0.1")
    options = ["--rows", "1000", "--passes", "5", "--folder", str(both)]
    found = training_job.main([*options, "--profiles", str(tmp_path / "p.json")])
    assert found["began_at"] == 3 and found["right"] > 0.8
    weights, _ = training_job.train(data, 5, 2.0, str(alone), "127.0.0.1")
    np.testing.assert_allclose(found["weights"], weights)
    assert "on here/cpu-0, here/cpu-1" in capsys.readouterr().out.replace("cpu-1, here/cpu-0", "cpu-0, here/cpu-1")

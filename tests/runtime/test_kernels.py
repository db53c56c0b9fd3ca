"""Kernels: functions with a device."""

from __future__ import annotations

import math

import pytest

import symphony as sy
from symphony.runtime.kernels import KernelFunction
from symphony.runtime.profiles import kernel_name


def test_a_bare_decorator_means_a_cpu() -> None:
    @sy.kernel
    def double(x: float) -> float:
        """Twice as much."""
        return 2 * x

    assert double(3) == 6 and double.__doc__ == "Twice as much." and double.name == "double"
    assert list(double.implementations) == ["cpu"] and double.options.timeout_s == math.inf


def test_implementations_are_by_kind_or_type_and_stay_functions() -> None:
    @sy.kernel(device="cpu", name="twice", timeout_s=5.0, retries=0)
    def double(x: float) -> float:
        return 2 * x

    @double.implementation(device="gpu")
    def on_gpu(x: float) -> float:
        return x + x

    assert on_gpu(4) == 8 and double(4) == 8
    assert double.implementations["gpu"] is on_gpu and double.name == "twice"
    assert repr(double) == "<kernel 'twice' for cpu, gpu>"
    assert kernel_name(double.key).endswith("double")  # under which its times are kept, whatever it is called


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": ""}, "device is ''"),
        ({"device": 3}, "device is 3"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": -1.0}, "timeout_s is -1"),
        ({"retries": -1}, "retries is -1"),
        ({"retries": 1.5}, "retries is 1.5"),
        ({"preemptible": "yes"}, "preemptible is 'yes'"),
    ],
)
def test_wrong_options_are_refused(options, said: str) -> None:
    with pytest.raises(sy.WorkloadError, match=said):
        sy.kernel(**options)(lambda: None)


def test_what_is_no_function_is_no_kernel() -> None:
    with pytest.raises(sy.WorkloadError, match="not a function"):
        sy.kernel(3)  # type: ignore[call-overload]
    with pytest.raises(sy.WorkloadError, match="two implementations"):
        sy.kernel(device="cpu")(lambda: None).implementation("cpu")(lambda: None)


def test_a_training_job_must_take_the_handle_of_its_run() -> None:
    def train(*, rate=1.0):
        return rate

    with pytest.raises(sy.WorkloadError, match="'train': it takes no argument for the handle") as refused:
        sy.training(steps=3)(train)
    assert "def train(job, …)" in refused.value.hint
    assert sy.training(steps=3)(lambda *all_of_them: len(all_of_them))() == 1


def test_cores_and_memory_are_checked() -> None:
    made = sy.kernel(cores=2, memory="1.5 GB")(lambda: None)
    assert (made.options.cores, made.options.memory) == (2, 1.5e9)
    trains = sy.training(steps=3, cores=2, memory=1e6)(lambda job: None)
    assert (trains.options.cores, trains.options.memory) == (2, 1e6)
    for options, message in (
        ({"cores": 0}, "cores is 0"),
        ({"memory": "8 XB"}, "memory: '8 XB'"),
        ({"memory": -1}, "-1"),
    ):
        with pytest.raises(sy.WorkloadError, match=message) as caught:
            sy.kernel(**options)(lambda: None)
        assert caught.value.hint


def script(text: str) -> KernelFunction:
    """The kernel `work` of a script."""
    names: dict[str, object] = {"__name__": "__main__", "sy": sy}
    exec(text, names)  # two scripts cannot be the main one of a process
    found = names["work"]
    assert isinstance(found, KernelFunction)
    return found


def test_kernels_of_different_scripts_have_different_keys() -> None:
    """By their code, what it calls and the numbers it reads; not by comments and what else the script has."""
    one = script("N = 3\ndef helper(x): return x + N\n@sy.kernel\ndef work(x): return helper(x)")
    same = script(
        "# another one\nN = 3\nM = 9\n\ndef helper(x): return x + N\n@sy.kernel\ndef work(x): return helper(x)"
    )
    assert one.key == same.key and kernel_name(one.key) == "__main__.work"
    for other in (
        "@sy.kernel\ndef work(x): return x",
        "N = 4\ndef helper(x): return x + N\n@sy.kernel\ndef work(x): return helper(x)",
        "N = 3\ndef helper(x): return x - N\n@sy.kernel\ndef work(x): return helper(x)",
        "N = 3\ndef helper(x): return x + N\n@sy.kernel\ndef work(x): return (lambda: helper(x))()",
    ):
        assert script(other).key != one.key and kernel_name(script(other).key) == "__main__.work"

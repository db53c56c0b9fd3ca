"""A small part of `python -m benchmarks.real_contention`: an accelerator that is a processor, with two processes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

import symphony as sy
from benchmarks import real_contention
from benchmarks.real_contention import GPU_KERNELS, ON_CORES, Bench, lasting, pairs, slower
from tests.runtime.machines import machine

CALLS = {"upload": (2, 1 << 16), "move": (2, 1 << 16), "multiply": (2, 16)}


def shared() -> sy.Topology:
    found = machine(others=1)
    small, big = found.kinds
    return replace(found, kinds=(small, replace(big, slots=2)), devices=found.devices[1:])


@pytest.mark.parametrize("name", CALLS)
def test_kernels_for_gpus_run_wherever_jax_does(name: str) -> None:
    assert GPU_KERNELS[name](*CALLS[name]) == pytest.approx(1.0 if name != "multiply" else 1 / 16, rel=1e-2)


def test_kernels_run_side_by_side_on_one_accelerator() -> None:
    with ExitStack() as stack:
        bench = Bench(shared(), GPU_KERNELS, stack)
        found = pairs(bench, CALLS, [("upload", ""), ("upload", "upload"), ("move", "multiply")], 2, 2)
    assert {case: len(times) for case, times in found.items()} == {
        "upload alone": 2,
        "upload beside upload": 2,
        "move beside multiply": 2,
    }
    assert slower(found, "upload", "upload") > 0


def test_a_kernel_that_fails_is_said_to() -> None:
    with ExitStack() as stack, pytest.raises(RuntimeError, match="multiply"):
        Bench(shared(), GPU_KERNELS, stack).together([("multiply", (1,))])


def test_what_contends_comes_first_unless_an_order_is_given() -> None:
    names = [task.kernel.name for task in ON_CORES.job(2).tasks]
    assert names == ["stream", "stream", "compute", "compute"]
    names = [task.kernel.name for task in ON_CORES.job(1, lambda count: np.arange(count)[::-1].tolist()).tasks]
    assert names == ["compute", "stream"]


def test_repeats_last_as_long_as_is_wanted() -> None:
    assert (lasting(0.5, 0.1), lasting(0.1, 7.0)) == (5, 1)


def test_a_gpu_gets_two_slots_and_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sy.discover()
    spec = found.cluster.device[found.topology.devices[0].kind]
    gpu = spec.model_copy(update={"type": "gpu", "slots": 1, "link": 1e10})
    one = found.cluster.machine[0]
    socket = one.socket[0].model_copy(update={"devices": (*one.socket[0].devices, "made-up")})
    cluster = found.cluster.model_copy(
        update={
            "device": {**found.cluster.device, "made-up": gpu},
            "machine": (one.model_copy(update={"socket": (socket, *one.socket[1:])}),),
        }
    )
    monkeypatch.setattr(real_contention.sy, "discover", lambda: replace(found, cluster=cluster))
    shared = real_contention.shared_gpu()
    assert shared is not None and [shared.kind_of[device.kind].type for device in shared.devices] == ["gpu"]
    assert shared.kind_of[shared.devices[0].kind].slots == 2

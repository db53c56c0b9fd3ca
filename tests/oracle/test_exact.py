"""The constraint program says what the simulator does: against trying everything, and against the simulator."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from symphony.oracle import exact
from symphony.oracle.exact import ExactModel, SolverSettings, devices_from_pools, tick
from symphony.oracle.instance import instance, subset
from symphony.problem.errors import InputError
from symphony.problem.extras import install_command
from tests.oracle.small import by_trying_everything, replayed, scenario, small_instance, unlike, work

pytest.importorskip("ortools")
QUICK = SolverSettings(workers=1, deterministic_s=20.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("tasks", "devices", "bus"), [(5, 2, False), (4, 3, False), (4, 2, True), (4, 3, True)])
def test_it_finds_the_optimum_that_trying_everything_finds(seed: int, tasks: int, devices: int, bus: bool) -> None:
    i = small_instance(seed, tasks=tasks, devices=devices, bus=bus)
    model = ExactModel(i, "makespan", exclusive=bus)
    answer = model.solve(QUICK)
    assert answer.status == "optimal"
    assert answer.value_s == pytest.approx(by_trying_everything(i)[0], abs=model.error_s + 1e-9)


@pytest.mark.parametrize("bus", [False, True])
def test_mean_completion_of_two_jobs(bus: bool) -> None:
    i = small_instance(1, tasks=2, devices=2, bus=bus, arrivals=(0.0, 1.5))
    model = ExactModel(i, "mean_completion", exclusive=bus)
    answer = model.solve(QUICK)
    assert answer.status == "optimal"
    assert answer.value_s == pytest.approx(by_trying_everything(i)[1], abs=2 * model.error_s + 1e-9)


@pytest.mark.parametrize("bus", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_simulator_takes_as_long_as_the_model_says(seed: int, bus: bool) -> None:
    i = instance(scenario(seed, bus=bus))
    assert subset(i).exact and subset(i).moves is bus
    model = ExactModel(i, "makespan", exclusive=bus)
    answer = model.solve(QUICK)
    assert answer.status == "optimal" and answer.plan is not None
    run = replayed(i, answer.plan)
    assert run.makespan_s == pytest.approx(answer.value_s, rel=1e-6)
    assert model.error_s < 1e-6 * answer.value_s
    assert run.refused == 0


def test_a_bound_without_the_bus_is_below_the_optimum_with_it() -> None:
    i = instance(scenario(1, bus=True))
    alone, shared = (ExactModel(i, "makespan", exclusive=exclusive).solve(QUICK) for exclusive in (False, True))
    assert alone.bound_s <= shared.value_s
    no_data = instance(scenario(1, bus=False))
    assert ExactModel(no_data, "makespan", exclusive=False).solve(QUICK).value_s < alone.value_s  # transfers do count


def test_fewer_devices_are_not_better() -> None:
    i = instance(scenario(2))
    values = [ExactModel(i, "makespan", exclusive=False, without=d).solve(QUICK).value_s for d in (None, 0, 1, 2)]
    assert min(values[1:]) >= values[0] and max(values[1:]) > values[0]


def test_a_gang_that_is_left_without_a_device_is_refused() -> None:
    i = small_instance(0, tasks=2, devices=1, bus=False)
    with pytest.raises(InputError, match="no device left"):
        ExactModel(i, "makespan", exclusive=False, without=0)


def test_devices_that_are_alike_are_one_pool() -> None:
    from dataclasses import replace

    from symphony.problem.topology import DeviceKind
    from symphony.simulator.scenarios import CALM, draw

    topology = unlike(3)
    alike = replace(
        topology,
        kinds=(DeviceKind("kind0", "any"),),
        devices=tuple(replace(device, kind="kind0") for device in topology.devices),
    )
    i = instance(draw(alike, work(3), 3, CALM, job_slots=1))
    model = ExactModel(i, "makespan", exclusive=False)
    assert model.pools == [[0, 1, 2]]
    assert model.solve(QUICK).value_s == pytest.approx(
        ExactModel(i, "makespan", exclusive=True).solve(QUICK).value_s, abs=2 * model.error_s
    )


def test_dealing_out_a_pool_never_gives_a_slot_twice() -> None:
    start = np.asarray([0, 0, 0, 4, 5, 9, 9])
    end = np.asarray([4, 5, 9, 9, 9, 12, 10])
    devices = devices_from_pools([[0, 2]], np.asarray([2, 1, 1]), start, end, np.zeros(7, int))
    assert set(devices) <= {0, 2}
    for moment in range(12):
        running = devices[(start <= moment) & (moment < end)]
        assert (running == 0).sum() <= 2 and (running == 2).sum() <= 1
    with pytest.raises(AssertionError, match="more gangs than it has slots"):
        devices_from_pools([[0]], np.asarray([1]), np.asarray([0, 1]), np.asarray([5, 6]), np.zeros(2, int))


def test_the_tick_is_round_where_times_are() -> None:
    assert tick(instance(scenario(0, whole=True)), 50.0) == 1.0
    odd = tick(instance(scenario(0)), 50.0)
    assert odd == 50.0 / exact.TICKS_PER_HORIZON


def test_without_the_solver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(InputError, match="the oracle needs ortools, which is not installed") as error:
        exact.cp_sat()
    assert install_command("oracle") in error.value.hint

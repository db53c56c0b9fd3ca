"""The Gymnasium environment: Gymnasium's own checks, seeds, masks, and what is said where it is missing."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import symphony as sy  # noqa: E402
from symphony.problem.extras import install_command  # noqa: E402
from tests.envs.small import LISTED, SEEDS, decisions, described, small  # noqa: E402


@pytest.fixture(scope="module")
def env() -> sy.envs.GymnasiumEnv:
    """Of the same description as the functional one of other tests, so that it shares its compiled programs."""
    made = sy.envs.GymnasiumEnv(**described(), **LISTED)
    assert made.functional.micro_steps is None
    made.functional, made._reset, made._step = decisions()
    return made


def test_it_passes_gymnasiums_checks(env: sy.envs.GymnasiumEnv) -> None:
    made = gymnasium.make("symphony/Scheduling-v0", **described(), **LISTED, disable_env_checker=True)
    made.unwrapped.__dict__.update(env.__dict__)  # whose programs are compiled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped, skip_render_check=True)


def test_named_scenarios_are_registered() -> None:
    spec = gymnasium.spec("symphony/genomics-v0")
    assert spec.kwargs == {"scenario": "genomics"}
    assert {f"symphony/{name}-v0" for name in sy.envs.SCENARIOS} <= set(gymnasium.registry)


def test_a_seed_determines_the_episode_and_is_that_of_the_functional_one(env: sy.envs.GymnasiumEnv) -> None:
    totals = []
    for seed in (4, 4, 5):
        obs, info = env.reset(seed=seed)
        assert info["seed"] == seed
        total, done, steps = 0.0, False, 0
        while not done:
            np.testing.assert_array_equal(env.action_masks(), obs["action_mask"])
            np.testing.assert_array_equal(env.action_masks(), info["action_mask"])
            assert env.observation_space.contains(obs)
            obs, reward, done, truncated, info = env.step(int(np.argmax(env.action_masks())))
            total, steps = total + reward, steps + 1
            assert not truncated
        totals.append((total, steps))
        assert total == pytest.approx(-info["mean_completion_s"], rel=1e-5)
    assert totals[0] == totals[1] != totals[2]


def test_episodes_without_a_seed_differ_and_are_none_of_the_evaluation(env: sy.envs.GymnasiumEnv) -> None:
    env.reset(seed=4)
    drawn = [env.reset()[1]["seed"] for _ in range(2)]
    env.reset(seed=4)
    assert drawn == [env.reset()[1]["seed"] for _ in range(2)]
    assert drawn[0] != drawn[1] and min(drawn) >= 1_000_000


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(sy.InputError, match="takes no 'micro_steps'"):
        sy.envs.GymnasiumEnv("tiny", micro_steps=1)


def test_actions_out_of_range_are_refused(env: sy.envs.GymnasiumEnv) -> None:
    env.reset(seed=SEEDS[0])
    assert env.action_space.n == small()[0].num_actions
    with pytest.raises(sy.InputError, match=f"from 0 to {env.action_space.n - 1}"):
        env.step(env.action_space.n)


def test_without_gymnasium_the_functional_one_works_and_the_class_says_what_to_install() -> None:
    code = """
import sys
sys.modules["gymnasium"] = None
import symphony as sy
assert callable(sy.envs.make)
try:
    sy.envs.GymnasiumEnv
except sy.InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "this environment needs gymnasium, which is not installed" in done.stdout, done.stderr
    assert install_command("envs") in done.stdout

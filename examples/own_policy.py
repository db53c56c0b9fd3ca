"""A policy of your own: check that it keeps its contract, then compare it with the built-in ones.

    python examples/own_policy.py --seeds 20

Counter readings are noisy, and hidden tenants change slowly. So this policy remembers: it places where a gang would
finish first, as the built-in eft-belief does, but believes in a running mean of the readings instead of the last one.
Whether that helps depends on the scenario: where knowing the truth (eft-exact) brings little, memory brings no more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

import symphony as sy
from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.estimate import cost_s

State = tuple[jax.Array, jax.Array]  # the last window seen, and the running mean of the background of each row


class Remembering(sy.Policy):
    """Earliest finish under a running mean of the background load."""

    # An array, not a float: another value then needs no new compilation.
    keep: jax.Array = eqx.field(default=0.7, converter=jnp.asarray)  # weight of the past when a window ends

    def init(self, topology: TopologyArrays) -> State:
        """No window has been seen, no background is known."""
        return jnp.asarray(0), jnp.zeros(topology.capacity.shape)

    def decide(self, key: jax.Array, state: State, observation: sy.Observation) -> tuple[State, sy.Action]:
        """The oldest gang goes where it would finish first, by what is remembered."""
        seen, mean = state
        window = observation.core.windows
        keep = jnp.where(seen == 0, 0.0, self.keep)  # the first window replaces the guess
        mean = jnp.where(window == seen, mean, keep * mean + (1 - keep) * observation.background)
        gang = sy.pick_gang(observation)
        device = sy.best_device(observation, gang, -cost_s(observation, gang, mean))
        return (window, mean), sy.place(gang, device)


def main(arguments: Sequence[str] | None = None) -> sy.Report:
    """Check the policy, compare it, print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="paper")
    parser.add_argument("--workload", default="variant-calling?jobs=60")
    parser.add_argument("--seeds", type=int, default=20)
    chosen = parser.parse_args(arguments)

    sy.testing.check_policy(Remembering())
    print("Remembering keeps its contract.")
    report = sy.compare(
        {
            "eft-belief": sy.baselines.EftBelief(),
            "remembering": Remembering(),
            "eft-exact": sy.baselines.EftExact(),
        },
        topology=chosen.topology,
        workload=chosen.workload,
        seeds=range(chosen.seeds),
    )
    print(report.table("mean_completion_s"))
    print(report.headline())
    return report


if __name__ == "__main__":
    main()

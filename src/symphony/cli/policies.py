"""`symphony policies`: every policy that can be named, with a line each."""

from __future__ import annotations

from symphony.cli import terminal
from symphony.cli.options import AsJson
from symphony.cli.remote import plain_table
from symphony.cli.terminal import print_json

# Written here as well as in the docstrings of the policies, which cannot be loaded without JAX.
POLICY_LINES = {
    "symphony": "The shipped learned policy; symphony:8 places up to eight gangs at a time.",
    "symphony-budget": "symphony-late for kernels that are worth its time, eft-belief for others: for real runs.",
    "symphony-late": "The shipped policy, which places gangs only on devices that are about to be free.",
    "look-ahead": "The shipped policy, with rollouts of its best few actions in sampled worlds.",
    "planner": "Plans training jobs in rounds, by the believed speeds.",
    "random": "A random gang on a random device.",
    "fifo": "The oldest gang on the first idle device; if none is idle, all wait.",
    "shortest-queue": "The oldest gang on the device with the least work ahead.",
    "sjf": "The gang with the least isolated time first.",
    "heft": "Highest upward rank first, earliest finish time by profiles alone.",
    "cpop": "The critical path on one device, other gangs by earliest finish time.",
    "peft": "Highest mean optimistic cost first, least finish time plus optimistic cost.",
    "dm": "StarPU: the oldest gang, least queue plus run time.",
    "dmda": "StarPU: as dm, with the time of transfers.",
    "dmdas": "StarPU: as dmda, with queues ordered by priority or upward rank.",
    "heteroprio": "StarPU: a device takes the gang that it accelerates most.",
    "sparrow": "Late binding: an idle device that was probed for a job gets its next gang.",
    "sparrow-batch": "The least loaded of two devices that are probed for each gang.",
    "paragon": "The fastest kind among devices with tolerable interference.",
    "paragon-profiled": "The same, with the profiles of all kernels.",
    "graphene": "Troublesome gangs and their ancestors first, packed by their demands.",
    "tetris": "Highest alignment of demands with free resources, less the remaining work.",
    "drf": "The job with the least dominant share first.",
    "least-interference": "The oldest gang where interference is least.",
    "load-balancing": "The oldest gang on the device with the lowest load.",
    "fifo-passing": "First come, first served, with backfilling.",
    "srtf": "Shortest remaining time first, with preemption.",
    "las": "Least attained service first, with preemption.",
    "tiresias": "Least attained service in discrete queues, first come first served in each.",
    "optimus": "Fewest remaining device-seconds first, with preemption.",
    "allox": "Minimum-cost matching of the oldest gangs to free devices.",
    "max-min-fairness": "Gavel: the least normalised throughput, maximised.",
    "max-min-fairness-plain": "Gavel: the same with equal speeds on all devices.",
    "max-min-fairness-packed": "Gavel: the same with pairs of gangs on one device.",
    "max-sum-throughput": "Gavel: the sum of relative throughputs, maximised.",
    "max-sum-throughput-packed": "Gavel: the same with pairs of gangs on one device.",
    "min-total-duration": "Gavel: the makespan, minimised.",
    "min-total-duration-packed": "Gavel: the same with pairs of gangs on one device.",
    "finish-time-fairness": "Gavel: the worst ratio of finish time to that in an equal share, minimised.",
    "finish-time-fairness-packed": "Gavel: the same with pairs of gangs on one device.",
    "eft-static": "The oldest gang, earliest finish time by profiles alone.",
    "eft-belief": "The oldest gang, earliest finish time under the believed load.",
    "eft-rebinding": "As eft-belief, but gangs are sent late, and assigned again at every event.",
    "eft-exact": "As eft-belief under the true load: it cheats, and works only in simulation.",
}


def policies(*, as_json: AsJson = False) -> None:
    """List the policies, with a line each."""
    if as_json:
        print_json(POLICY_LINES)
        return
    table = plain_table("policy", "what it does")
    for name, line in POLICY_LINES.items():
        table.add_row(name, line)
    terminal.console().print(table)
    terminal.console().print("\nor a file that symphony train wrote: best.policy", soft_wrap=True)

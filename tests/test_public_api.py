"""The public names: pinned, so that none comes or goes by accident; documented; and the promises made in docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
import types
import warnings
from operator import attrgetter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import symphony as sy
from symphony.scheduling import policy
from tests.baselines.cheap import cheap_scenario

PUBLIC = [
    "CALM",
    "METRICS",
    "Action",
    "Bottleneck",
    "BusyError",
    "Cluster",
    "ContentionModel",
    "CycleError",
    "DataError",
    "Device",
    "DeviceKind",
    "Disturbances",
    "Edge",
    "Engine",
    "EngineError",
    "Gang",
    "GangRecord",
    "Graph",
    "Hop",
    "InfeasibleError",
    "InputError",
    "Job",
    "JobCancelledError",
    "JobError",
    "JobLostError",
    "JobRecord",
    "Kernel",
    "KernelError",
    "KernelLimitError",
    "KernelTimeoutError",
    "LimitError",
    "LocalEngine",
    "Observation",
    "Oracle",
    "Planned",
    "Policy",
    "PolicyError",
    "Profile",
    "RemoteCluster",
    "RemoteJob",
    "Report",
    "Resource",
    "RunRecord",
    "Scenario",
    "ScopeError",
    "Serial",
    "ServiceError",
    "SymphonyError",
    "SymphonyWarning",
    "Task",
    "TaskGraph",
    "TokenError",
    "Topology",
    "TopologyError",
    "TrustError",
    "UnavailableError",
    "UnknownJobError",
    "VersionError",
    "WorkerDiedError",
    "Workload",
    "WorkloadError",
    "as_completed",
    "baselines",
    "best_device",
    "best_feasible",
    "compare",
    "connect",
    "discover",
    "draw",
    "envs",
    "graph",
    "kernel",
    "local",
    "pick_gang",
    "place",
    "plan",
    "policies",
    "preempt",
    "ray",
    "reconfigure",
    "simulate",
    "telemetry",
    "testing",
    "topology",
    "train",
    "training",
    "wait",
    "workload",
]
PUBLIC_IN = {
    "baselines": [
        "BASELINES",
        "FOR_TRAINING",
        "AlloX",
        "Cpop",
        "Dm",
        "Dmda",
        "Dmdas",
        "Drf",
        "EftBelief",
        "EftExact",
        "EftRebinding",
        "EftStatic",
        "Fifo",
        "FifoPassing",
        "FinishTimeFairness",
        "FinishTimeFairnessPacked",
        "Graphene",
        "Heft",
        "Heteroprio",
        "Las",
        "LeastInterference",
        "LoadBalancing",
        "MaxMinFairness",
        "MaxMinFairnessPacked",
        "MaxMinFairnessPlain",
        "MaxSumThroughput",
        "MaxSumThroughputPacked",
        "MinTotalDuration",
        "MinTotalDurationPacked",
        "Optimus",
        "Paragon",
        "ParagonProfiled",
        "Peft",
        "Random",
        "ShortestQueue",
        "Sjf",
        "Sparrow",
        "SparrowBatch",
        "Srtf",
        "Tetris",
        "Tiresias",
    ],
    "envs": ["SCENARIOS", "EnvFeatures", "EnvState", "FunctionalEnv", "GymnasiumEnv", "Params", "make"],
    "telemetry": [
        "Catalogue",
        "Column",
        "CounterSource",
        "Estimate",
        "Event",
        "Identity",
        "Metric",
        "Model",
        "Parameters",
        "Platform",
        "Pmu",
        "Posterior",
        "Problem",
        "Recording",
        "Sample",
        "Tracker",
        "Verdict",
        "add",
        "at_hand",
        "entries",
        "infer",
        "load",
        "model",
        "read_perf",
        "record",
    ],
    "testing": ["check_contention_model", "check_counter_source", "check_engine", "check_policy"],
}


def test_public_names_are_pinned() -> None:
    """Adding one is a decision, and removing one breaks somebody: change the list here, the docs and the changelog."""
    assert sorted(sy.__all__) == sorted(PUBLIC)
    assert sorted(sy.baselines.__all__) == sorted([*PUBLIC_IN["baselines"], "named"])
    assert sorted(sy.envs.__all__) == sorted(PUBLIC_IN["envs"])
    assert sorted(sy.testing.__all__) == PUBLIC_IN["testing"]
    assert sorted(sy.telemetry.__all__) == PUBLIC_IN["telemetry"]


def test_every_public_name_is_there() -> None:
    for name in PUBLIC:
        assert hasattr(sy, name), name
    for part, names in PUBLIC_IN.items():
        assert all(hasattr(getattr(sy, part), name) for name in names)


def test_every_name_is_where_type_checkers_are_told() -> None:
    """Names are looked up in a table when they are asked for; checkers read imports that never run."""
    tree = ast.parse(Path(sy.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    told = {
        alias.name: f"{node.module}.{alias.name}"
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = {name: f"symphony.{module}.{name}" for name, module in sy._NAMES.items()}
    packages = {name: f"symphony.{name}" for name in ("baselines", "envs", "policies", "telemetry", "testing")}
    assert told == found | packages


def test_nothing_heavy_is_loaded_before_it_is_asked_for() -> None:
    """Neither by `dir` nor by what clients write. A name that is nobody's is an error; all names are there at last."""
    code = """
import sys
import symphony as sy

assert set(sy.__all__) < set(dir(sy)) and "problem" in dir(sy)
(sy.kernel, sy.graph, sy.training, sy.connect, sy.Topology, sy.KernelError)
assert not {"jax", "numpy", "equinox", "optax", "ortools", "sqlalchemy"} & set(sys.modules)
assert not hasattr(sy, "nonsense") and "has no attribute 'nonsense'" in str(failed(lambda: sy.nonsense))
from symphony import *
assert "jax" in sys.modules and compare is sy.compare and sy.simulator.run.simulate is sy.simulate
"""
    failed = "def failed(f):\n    try:\n        f()\n    except AttributeError as error:\n        return error\n"
    done = subprocess.run([sys.executable, "-c", failed + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_cluster_here_starts_without_compiling_a_program_or_loading_scipy() -> None:
    """One process: a program costs a hundredth of a second at every start, SciPy a tenth."""
    code = """
import gc, sys
import symphony as sy
local = sy.local
import jax

compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))

@sy.kernel
def double(x):
    return 2 * x

with local() as cluster:
    print(cluster.submit(double, 21).result(), [name for name in compiled if "backend_compile" in name])
from symphony.problem.native_code import library
print(library() is not None and "scipy" in sys.modules, gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("42 []\nFalse True\n", "")


def test_threads_may_ask_for_names_at_once_and_it_may_be_loaded_again() -> None:
    code = """
import importlib, threading
import symphony as sy

sy = importlib.reload(sy)
names = ["compare", "local", "simulate", "Policy", "train", "baselines", "policies", "Topology"]
ready, found = threading.Barrier(len(names)), {}

def ask(name):
    ready.wait()
    found[name] = getattr(sy, name)

threads = [threading.Thread(target=ask, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert found.keys() == set(names) and found["train"] is importlib.reload(sy).train and callable(sy.training)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_module_of_ours_asks_the_package_for_a_name() -> None:
    """Whoever asks may wait for one that loads another, which waits for the module that asks."""
    source = Path(sy.__file__).parent
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and path != source / "__init__.py":
                assert node.module != "symphony", path


def test_training_is_the_decorator_whatever_was_loaded_before() -> None:
    """A package has its name, too. One process: each would load JAX."""
    code = """
import sys

for first in ("import symphony.learning.returns", "import symphony", "sy.train", "sy.training"):
    for name in [name for name in sys.modules if name.split(".")[0] == "symphony"]:
        del sys.modules[name]
    names = {}
    exec(f"import symphony as sy; {first}; import symphony.learning.train", names)
    print(first, "|", names["sy"].training.__module__, names["sy"].train.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.stdout.count("| symphony.runtime.kernels train\n") == 4, done.stdout


@pytest.mark.parametrize("anew", ["importlib.reload(sy)", "sys.modules.pop('symphony')"])
def test_it_can_be_loaded_anew(anew: str) -> None:
    """As notebooks do with what has changed."""
    code = f"import importlib, sys, symphony as sy; {anew}; import symphony as sy; print(sy.training.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("symphony.runtime.kernels\n", "")


def public_objects() -> list[tuple[str, object]]:
    named = [(name, getattr(sy, name)) for name in PUBLIC]
    named += [(f"{part}.{name}", getattr(getattr(sy, part), name)) for part in PUBLIC_IN for name in PUBLIC_IN[part]]
    return [(name, value) for name, value in named if callable(value) or isinstance(value, types.ModuleType)]


@pytest.mark.parametrize(("name", "value"), public_objects(), ids=lambda x: x if isinstance(x, str) else "")
def test_every_public_name_is_documented_in_its_own_words(name: str, value: object) -> None:
    text = inspect.getdoc(value)
    assert text and len(text.split()) >= 3, f"sy.{name} has no docstring"
    # A dataclass without a docstring is given its signature for one.
    assert not text.startswith(f"{name}("), f"sy.{name} has no docstring"


@pytest.mark.parametrize("name", [name for name, value in public_objects() if inspect.isfunction(value)])
def test_every_public_function_is_typed(name: str) -> None:
    signature = inspect.signature(attrgetter(name)(sy))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


def test_every_public_method_is_documented() -> None:
    """By itself, or by the protocol's method that it implements."""
    for name, value in public_objects():
        if inspect.isclass(value) and value.__module__.startswith("symphony"):
            for member, function in vars(value).items():
                if inspect.isfunction(function) and not member.startswith("_"):
                    assert inspect.getdoc(function), f"sy.{name}.{member} has no docstring"


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert sy.__version__ == version("symphony-scheduler")


def test_the_policy_in_the_docstring_keeps_its_contract() -> None:
    """What a reader copies from `symphony.scheduling.policy` runs as it is."""
    snippet = re.search(
        r"^    class \w+\(sy\.Policy\):.*?(?=^\S)", policy.__doc__ or "", flags=re.DOTALL | re.MULTILINE
    )
    assert snippet
    names: dict[str, object] = {"sy": sy}
    exec(textwrap.dedent(snippet[0]), names)
    sy.testing.check_policy(names["ShortestQueue"](), [cheap_scenario()])  # type: ignore[operator]


def test_a_plug_in_contention_model_changes_the_outcome() -> None:
    """`ContentionModel` is an extension point: `simulate` takes one of ones own. One program serves both."""

    class Partial(sy.ContentionModel):
        """So much of the contention that `Bottleneck` has."""

        part: jax.Array

        def share(self, load):
            """Between all of it and an equal part."""
            return 1 - self.part * (1 - sy.Bottleneck().share(load))

        def compose(self, shares, used):
            """The smallest."""
            return sy.Bottleneck().compose(shares, used)

    scenario = cheap_scenario()
    free, shared = (
        sy.simulate([scenario], sy.baselines.Fifo(), contention=Partial(jnp.asarray(part)))[0] for part in (0.0, 1.0)
    )
    assert max(stay.slowdown for stay in free.gangs if stay.outcome == "finished") == pytest.approx(1.0, rel=1e-4)
    assert max(stay.slowdown for stay in shared.gangs if stay.outcome == "finished") > 1.05


def test_importing_it_warns_of_nothing() -> None:
    code = "import warnings; warnings.simplefilter('error'); import symphony"
    with warnings.catch_warnings():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

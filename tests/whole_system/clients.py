"""Who asks: users with graphs of their own, who submit them until they are accepted, and give some of them up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import symphony as sy
from symphony.runtime.graph import submission
from symphony.service.client import RemoteCluster
from symphony.service.tokens import READ, SUBMIT, Token

USERS = ("ann", "bob", "eve")


def work(name, size, *inputs, rank=0):
    """Something that depends on all that it was called with."""
    import hashlib

    text = hashlib.sha256(repr((name, size, inputs)).encode()).hexdigest()
    return text if size == 0 else text * size


@sy.kernel
def plain(name, size, *inputs):
    return work(name, size, *inputs)


@sy.kernel
def short(name, size, *inputs):
    return work(name, size, *inputs)


@sy.kernel(preemptible=True)
def either(name, size, *inputs):
    return work(name, size, *inputs)


@either.implementation(device="big")
def either_on_big(name, size, *inputs):
    return work(name, size, *inputs)


@sy.kernel(device="big", retries=1)
def large(name, size, *inputs):
    return work(name, size, *inputs)


@sy.kernel(timeout_s=5.0)
def patient(name, size, *inputs):
    return work(name, size, *inputs)


@sy.kernel(device="big", workers=2)
def together(name, bytes_, *inputs, rank=0, size=1):
    return work(name, bytes_, *inputs)


@sy.kernel(retries=2, retry_on=ConnectionError, retry_delay_s=3.0)
def flaky(name, size, *inputs):
    return work(name, size, *inputs)


@sy.kernel
def bad(name, size, *inputs):
    raise LookupError(f"{name} is bad")


KERNELS = (plain, plain, short, short, either, either, large, patient, together, flaky)


@dataclass(eq=False)
class Wanted:
    """A job that somebody wants, and what has become of it so far."""

    name: str
    token: Token
    graph: sy.graph
    options: dict[str, Any]
    after: list[Wanted]  # of the same user
    sender: Sender
    result: Any  # None: one of its kernels is bad
    number: int = 0  # once it is accepted
    cancelled: bool = False  # somebody has asked for that
    refused: bool = False  # one of those before it will never be done

    def body(self) -> bytes:
        """What is sent once all before it are accepted."""
        return self.sender.bytes_of(self.graph, **self.options, after=[before.number for before in self.after])


@dataclass
class Sender(RemoteCluster):
    """A client that does everything but send."""

    _code: dict = field(default_factory=dict)

    def bytes_of(self, graph: sy.graph, priority: int, queue: str, **more: Any) -> bytes:
        """What a client sends."""
        return self._body(submission(graph), {"priority": priority, "queue": queue, **more})


def wanted(rng: random.Random, name: str, sender: Sender, others: list[Wanted]) -> Wanted:
    """A random graph of a random user; it may wait for some of the others."""
    graph, handles, is_bad = sy.graph(name), [], False
    for number in range(rng.randrange(1, 6)):
        kernel = bad if rng.random() < 0.03 else rng.choice(KERNELS)
        is_bad |= kernel is bad
        size = 2_000 if rng.random() < 0.1 else 0  # which is too much for the journal
        inputs = rng.sample(handles, min(len(handles), rng.randrange(3)))
        handles.append(graph.task(kernel, f"{name}/{number}", size, *inputs))
    user = rng.choice(USERS)
    options = {"priority": rng.randrange(-1, 2), "queue": rng.choice(("", "nightly"))}
    if rng.random() < 0.15:
        options["time_limit_s"] = rng.choice((0.5, 3.0, 20.0))
    own = [one for one in others if one.token.user == user]
    after = rng.sample(own, min(len(own), rng.randrange(1, 3))) if rng.random() < 0.4 else []
    token = Token("0" * 8, user, (SUBMIT, READ), 1, 0.0, None)
    return Wanted(name, token, graph, options, after, sender, None if is_bad else graph.run())

"""Threads for requests that compute or read for long: a part of all of them for each user, so that others go on."""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from starlette import concurrency

THREADS_OF_A_USER = 10  # of the 40 that there are
_free: ContextVar[Semaphore | None] = ContextVar("free", default=None)  # those of the user of a request
P = ParamSpec("P")
T = TypeVar("T")


class UserThreads:
    """The threads of users. Only the thread of the event loop uses it."""

    def __init__(self) -> None:
        self._free: dict[str, Semaphore] = {}

    @contextmanager
    def of(self, user: str) -> Iterator[None]:
        """Within the context, `run_in_threadpool` takes the threads of this user."""
        if user not in self._free:
            self._free[user] = Semaphore(THREADS_OF_A_USER)
        before = _free.set(self._free[user])
        try:
            yield
        finally:
            _free.reset(before)


async def run_in_threadpool(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As Starlette's, when a thread of the user is free."""
    async with _free.get() or nullcontext():
        return await concurrency.run_in_threadpool(function, *args, **kwargs)

"""Conditional independence in a Bayesian network, from its graph alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from symphony.problem.errors import InputError

ParentLists = tuple[tuple[int, ...], ...]  # parents of each variable, all of them before it


class BayesBall(NamedTuple):
    """Result of the Bayes-ball algorithm (Shachter, 1998)."""

    tables: frozenset[int]  # variables whose tables the answer depends on
    linked: frozenset[int]  # variables that depend on the query, given the known ones


def bayes_ball(graph: ParentLists, query: Iterable[int], known: Iterable[int]) -> BayesBall:
    """The variables that matter to a query, given the known ones."""
    known = frozenset(known)
    children: list[list[int]] = [[] for _ in graph]
    for variable, parents in enumerate(graph):
        for parent in parents:
            children[parent].append(variable)
    top: set[int] = set()
    bottom: set[int] = set()
    visits = [(variable, True) for variable in query]  # as if from a child
    while visits:
        variable, from_child = visits.pop()
        # A known variable stops a visit from a child and bounces one from a parent back to its parents.
        if variable not in top and from_child != (variable in known):
            top.add(variable)
            visits += [(parent, True) for parent in graph[variable]]
        if variable not in bottom and variable not in known:
            bottom.add(variable)
            visits += [(child, False) for child in children[variable]]
    return BayesBall(frozenset(top), frozenset(bottom))


def ancestors(graph: ParentLists, of: Iterable[int]) -> frozenset[int]:
    """Some variables and all their ancestors."""
    found: set[int] = set()
    pending = list(of)
    while pending:
        variable = pending.pop()
        if variable not in found:
            found.add(variable)
            pending += graph[variable]
    return frozenset(found)


def separating(graph: ParentLists, variables: Sequence[int], known: Iterable[int]) -> frozenset[int]:
    """The smallest (then the first) set of further variables that, once known, makes some variables independent."""
    known = frozenset(known)
    candidates = sorted(ancestors(graph, variables) - known)
    for count in range(len(candidates) + 1):
        for chosen in combinations(candidates, count):
            condition = known.union(chosen)
            if all(v not in bayes_ball(graph, (u,), condition).linked for u, v in combinations(variables, 2)):
                return frozenset(chosen)
    raise AssertionError("variables that are all known are independent")


def checked(graph: ParentLists) -> None:
    """Raise InputError unless all variables come after their parents."""
    for variable, parents in enumerate(graph):
        if not all(0 <= parent < variable for parent in parents) or len(set(parents)) < len(parents):
            raise InputError(
                f"parents are {parents}",
                where=f"variable {variable}",
                hint="number the variables so that each comes after its parents, and name each parent once",
            )

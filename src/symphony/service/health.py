"""Which parts of a service are degraded, and what to do about each."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from collections.abc import Iterator
from typing import Final

from symphony.problem.units import show
from symphony.service import wire
from symphony.service.connections import Connections
from symphony.service.service import Service
from symphony.service.tls import TlsFiles
from symphony.service.wire import HealthState

OK: Final = "ok"
DEGRADED: Final = "degraded"
FAILING: Final = "failing"
ORDER = (OK, DEGRADED, FAILING)
SLOW_COMMIT_S, RECENT_COMMITS = 0.5, 32  # median of the last transactions
LOW_DISK_BYTES, LOW_DISK_SHARE, NO_DISK_BYTES = 5 << 30, 0.1, 200 << 20  # low: both less than the bytes and the share
MAX_DESCRIPTOR_SHARE = 0.9
MAX_FALLBACK_SHARE, MIN_TURNS = 0.1, 100
CERTIFICATE_DAYS = 14.0  # left, below which it should be renewed


def health(service: Service, connections: Connections, tls: TlsFiles | None) -> wire.Health:
    """Every part, with its state. The whole is as bad as its worst part."""
    parts = [
        _service(service),
        _journal(service),
        _disk(service),
        _connections(connections),
        _descriptors(),
        _devices(service),
        _policy(service),
        *_certificate(tls),
    ]
    worst = max(parts, key=lambda part: ORDER.index(part.state))
    return wire.Health(state=worst.state, parts=parts)


def _part(name: str, state: HealthState, text: str) -> wire.HealthPart:
    return wire.HealthPart(name=name, state=state, text=text)


def _service(service: Service) -> wire.HealthPart:
    if service.failed.is_set():
        return _part("service", FAILING, "it has failed and stops; accepted jobs continue at the next start")
    if service.draining:
        return _part("service", DEGRADED, "it is draining and accepts no new jobs; start it again to end that")
    return _part("service", OK, "it accepts jobs")


def _journal(service: Service) -> wire.HealthPart:
    ledger = service.ledger
    if ledger.stuck:
        return _part("journal", FAILING, f"it cannot be written: {ledger.stuck}; the service retries")
    recent = list(ledger.commit_s)[-RECENT_COMMITS:]
    median_s = statistics.median(recent) if recent else 0.0
    if median_s > SLOW_COMMIT_S:
        return _part("journal", DEGRADED, f"a transaction takes {_seconds(median_s)}; look at its disk or database")
    if ledger.damaged:
        return _part(
            "journal",
            DEGRADED,
            f"{len(ledger.damaged)} damaged events were set aside at the start; see the log",
        )
    return _part("journal", OK, f"a transaction takes {_seconds(median_s)}" if recent else "nothing was written yet")


def _disk(service: Service) -> wire.HealthPart:
    usage = shutil.disk_usage(service.blobs.folder)
    free = show(float(usage.free), "bytes")
    if usage.free < NO_DISK_BYTES:
        return _part("disk", FAILING, f"only {free} are free for the journal and blobs; free some space")
    if usage.free < LOW_DISK_BYTES and usage.free < LOW_DISK_SHARE * usage.total:
        return _part("disk", DEGRADED, f"only {free} are free; free some space, or lower --keep-days")
    return _part("disk", OK, f"{free} are free")


def _connections(connections: Connections) -> wire.HealthPart:
    count = f"{len(connections)} of {connections.most} in use"
    trouble = connections.trouble
    return _part("connections", DEGRADED, trouble) if trouble else _part("connections", OK, count)


def _descriptors() -> wire.HealthPart:
    used, most = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and used > MAX_DESCRIPTOR_SHARE * most:
        text = f"{used} of {most} are in use; allow more (ulimit -n), or fewer --connections"
        return _part("descriptors", DEGRADED, text)
    return _part("descriptors", OK, f"{used} in use")


def _devices(service: Service) -> wire.HealthPart:
    down, every = sorted(service.cluster.down), service.cluster.topology.devices
    if down:
        named = ", ".join(down[:5]) + (f" and {len(down) - 5} more" if len(down) > 5 else "")
        state: HealthState = FAILING if len(down) >= len(every) else DEGRADED
        return _part("devices", state, f"{len(down)} of {len(every)} are down: {named}")
    return _part("devices", OK, f"{len(every)} of {len(every)} up")


def _policy(service: Service) -> wire.HealthPart:
    found = service.cluster.statistics
    count = sum(found.fallbacks.values())
    if found.turns >= MIN_TURNS and count > MAX_FALLBACK_SHARE * found.turns:
        why = ", ".join(sorted(found.fallbacks))
        text = f"the heuristic replaced {service.policy} in {count} of {found.turns} turns ({why})"
        return _part("policy", DEGRADED, text)
    return _part("policy", OK, service.policy)


def _certificate(tls: TlsFiles | None) -> Iterator[wire.HealthPart]:
    if tls is None:
        return
    days = (tls.expires - time.time()) / 86_400
    if days <= 0:
        yield _part("certificate", FAILING, "it has expired: replace it; it is read again within a minute")
    elif tls.trouble or days < CERTIFICATE_DAYS:
        yield _part("certificate", DEGRADED, tls.trouble or f"it expires in {days:.0f} days: replace it")
    else:
        yield _part("certificate", OK, f"it expires in {days:.0f} days")


def _seconds(seconds: float) -> str:
    return show(float(f"{seconds:.2g}"), "seconds")

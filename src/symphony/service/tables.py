"""The tables of a service's database, for SQLite and PostgreSQL alike.

The journal is `events`. The other tables hold data that events refer to and a replay does not need, tokens, and the
audit log.
Checksums are CRC-32 (`journal.py`); rows written by old versions have none.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),  # in order, without gaps
    Column("at", Double, nullable=False),  # seconds since 1970
    Column("job", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("task", Integer, nullable=False),  # -1 = the whole job
    Column("seconds", Double, nullable=False),  # device time used
    Column("data", Text, nullable=False),  # JSON
    Column("follows", BigInteger, nullable=True),  # the previous event of the same job, 0 = none
    Column("checksum", BigInteger, nullable=True),  # of all the other columns
    Index("events_of_a_job", "job", "id"),
)

# Damaged events, as far as they are readable. A replay ignores them.
damaged_events = Table(
    "damaged_events",
    metadata,
    Column("number", Integer, primary_key=True),
    *(Column(column.name, column.type, nullable=True) for column in events.columns),
    Column("why", Text, nullable=False),
    Column("found", Double, nullable=False),  # when, seconds since 1970
)

# One row: who may write, the last transaction, and how the last service ended.
journal = Table(
    "journal",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # 1
    Column("epoch", BigInteger, nullable=False),  # incremented by every process that takes the lock
    Column("turn", BigInteger, nullable=False),  # incremented by every transaction of the ledger
    Column("stopped", Boolean, nullable=False),  # whether the last service was stopped; False: it crashed
)

# Submitted graphs: the shape, for display, and the request body, until the job has ended.
payloads = Table(
    "payloads",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("shape", Text, nullable=False),  # JSON: name, kernel and reads of each task
    Column("body", LargeBinary, nullable=True),
    Column("checksum", BigInteger, nullable=True),  # of the body
    Column("accepted", Text, nullable=True),  # copy of the event with which the job began (`journal.copy_of`)
    Column("kernels", Text, nullable=True),  # JSON: what futures need of kernels and tasks (`graphs.kernel_facts`)
)

# Forecasts of jobs, and what happened. Times are seconds from when they were made.
forecasts = Table(
    "forecasts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job", BigInteger, nullable=False),
    Column("user", String(100), nullable=False),
    Column("what", String(8), nullable=False),  # start or finish
    Column("at", Double, nullable=False),  # seconds since 1970
    *(Column(name, Double, nullable=True) for name in ("low", "mid", "high")),  # of the model; NULL = infinite …
    *(Column(f"shown_{name}", Double, nullable=True) for name in ("low", "mid", "high")),  # … and as it was shown
    Column("actual", Double, nullable=True),  # NULL = not known yet
    Index("forecasts_of_a_job", "job"),
)

# Values of tasks, while they are needed: JSON of a `wire.Value`.
outputs = Table(
    "outputs",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("task", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    Column("checksum", BigInteger, nullable=True),  # of the body
)

# Blobs, which are stored in files, and the users who may use them.
blobs = Table(
    "blobs",
    metadata,
    Column("user", String(100), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("at", Double, nullable=False),  # when it was last uploaded or checked for
)

# Blobs that jobs use.
uses = Table(
    "uses",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(64), primary_key=True),
    Index("uses_of_a_blob", "digest"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("secret", String(64), nullable=False),  # SHA-256 of it
    Column("user", String(100), nullable=False),
    Column("scopes", String(100), nullable=False),  # separated by spaces
    Column("priority", Integer, nullable=False),  # the highest that its jobs may have
    Column("created", Double, nullable=False),
    Column("expires", Double, nullable=True),
)

# Who did what to the service. Triggers refuse changes and deletions (migration 0003).
audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Double, nullable=False),  # seconds since 1970
    Column("user", String(100), nullable=False),  # who did it; "" = unknown
    Column("token", String(16), nullable=False),  # ID of the token; "" = none, with access to the database
    Column("address", String(100), nullable=False),  # of the client; "" = the command line of this machine
    Column("action", String(32), nullable=False),
    Column("target", String(200), nullable=False),  # a token, a job …
    Column("detail", Text, nullable=False),  # JSON
    Index("audit_by_time", "at"),
)

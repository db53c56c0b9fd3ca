"""The tables of a service's database, for SQLite and PostgreSQL alike.

The journal is `events`. The other tables hold what events refer to: bytes, which nobody needs to replay, and tokens.
Checksums are CRC-32 (`journal.py`); rows that an older version wrote have none.
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
    Column("task", Integer, nullable=False),  # -1 = of the whole job
    Column("seconds", Double, nullable=False),  # of a device, that it took
    Column("data", Text, nullable=False),  # JSON
    Column("follows", BigInteger, nullable=True),  # the event of the same job before this one, 0 = none
    Column("checksum", BigInteger, nullable=True),  # of all the other columns
    Index("events_of_a_job", "job", "id"),
)

# Events that were found damaged, with what was left of each. The state is not made from them.
damaged_events = Table(
    "damaged_events",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", BigInteger, nullable=True),
    Column("at", Double, nullable=True),
    Column("job", BigInteger, nullable=True),
    Column("kind", String(16), nullable=True),
    Column("task", Integer, nullable=True),
    Column("seconds", Double, nullable=True),
    Column("data", Text, nullable=True),
    Column("follows", BigInteger, nullable=True),
    Column("checksum", BigInteger, nullable=True),
    Column("why", Text, nullable=False),
    Column("found", Double, nullable=False),  # when, seconds since 1970
)

# One row: who may write, how far the journal is, and how the last service ended.
journal = Table(
    "journal",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # 1
    Column("epoch", BigInteger, nullable=False),  # grows with every process that takes the lock
    Column("turn", BigInteger, nullable=False),  # grows with every transaction of the ledger
    Column("stopped", Boolean, nullable=False),  # whether the last service was stopped, and did not die
)

# What was submitted: its shape for people, and all of it, as it came, until the job is over.
payloads = Table(
    "payloads",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("shape", Text, nullable=False),  # JSON: name, kernel and reads of each task
    Column("body", LargeBinary, nullable=True),
    Column("checksum", BigInteger, nullable=True),  # of the body
)

# What tasks made, while somebody may want it: JSON of a `wire.Value`.
outputs = Table(
    "outputs",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("task", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    Column("checksum", BigInteger, nullable=True),  # of the body
)

# Bytes that are kept in files, and who may name them.
blobs = Table(
    "blobs",
    metadata,
    Column("user", String(100), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("at", Double, nullable=False),  # when it was last given or named
)

# Jobs that need a blob.
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
    Column("priority", Integer, nullable=False),  # the largest that its jobs may have
    Column("created", Double, nullable=False),
    Column("expires", Double, nullable=True),
)

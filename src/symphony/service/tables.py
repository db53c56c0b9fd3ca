"""The tables of a service's database, for SQLite and PostgreSQL alike.

The journal is `events`. The other tables hold what events refer to: bytes, which nobody needs to replay, and tokens.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, MetaData, String, Table, Text

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
    Index("events_of_a_job", "job", "id"),
)

# What was submitted: its shape for people, and all of it, as it came, until the job is over.
payloads = Table(
    "payloads",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("shape", Text, nullable=False),  # JSON: name, kernel and reads of each task
    Column("body", LargeBinary, nullable=True),
)

# What tasks made, while somebody may want it: JSON of a `wire.Value`.
outputs = Table(
    "outputs",
    metadata,
    Column("job", BigInteger, primary_key=True, autoincrement=False),
    Column("task", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
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

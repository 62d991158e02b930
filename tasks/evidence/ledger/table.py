"""The ledger's SQL table in SQLite or PostgreSQL. Triggers reject every change except appending the next entry."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.schema import CreateTable

from configs.errors import BadInput, Refused

GENESIS = "0" * 64
"""Text that the first entry states as the digest of its predecessor."""

METADATA = sql.MetaData()
TABLE = sql.Table(
    "ledger",
    METADATA,
    sql.Column("sequence", sql.Integer, primary_key=True, autoincrement=False),
    # Unique: two writers cannot both follow the same entry (compare-and-set).
    sql.Column("predecessor", sql.String(64), nullable=False, unique=True),
    sql.Column("digest", sql.String(64), nullable=False, unique=True),
    sql.Column("timestamp", sql.String(27), nullable=False),
    sql.Column("kind", sql.String(32), nullable=False),
    sql.Column("plant", sql.String(64), nullable=False),
    sql.Column("envelope", sql.Text, nullable=False),
)
SQLITE_TRIGGERS = (
    "CREATE TRIGGER IF NOT EXISTS ledger_no_update BEFORE UPDATE ON ledger "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS ledger_no_delete BEFORE DELETE ON ledger "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    # Also stops INSERT OR REPLACE, which deletes without firing the trigger above.
    "CREATE TRIGGER IF NOT EXISTS ledger_next_only BEFORE INSERT ON ledger "
    "WHEN NEW.sequence IS NOT (SELECT COALESCE(MAX(sequence), 0) + 1 FROM ledger) "
    f"OR NEW.predecessor IS NOT COALESCE((SELECT digest FROM ledger ORDER BY sequence DESC LIMIT 1), '{GENESIS}') "
    "BEGIN SELECT RAISE(ABORT, 'the ledger only takes the next entry'); END",
)
POSTGRESQL_TRIGGERS = (
    """CREATE OR REPLACE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$""",
    f"""CREATE OR REPLACE FUNCTION ledger_next_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF NEW.sequence IS DISTINCT FROM (SELECT COALESCE(MAX(sequence), 0) + 1 FROM ledger)
        OR NEW.predecessor IS DISTINCT FROM
          COALESCE((SELECT digest FROM ledger ORDER BY sequence DESC LIMIT 1), '{GENESIS}')
      THEN RAISE unique_violation USING MESSAGE = 'the ledger only takes the next entry';
      END IF;
      RETURN NEW;
    END $$""",
    """CREATE OR REPLACE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()""",
    """CREATE OR REPLACE TRIGGER ledger_next_only BEFORE INSERT ON ledger
    FOR EACH ROW EXECUTE FUNCTION ledger_next_only()""",
)
GUARDED = sql.text(
    "SELECT count(*) = 2 FROM pg_trigger WHERE tgrelid = to_regclass('ledger') "
    "AND tgname IN ('ledger_no_change', 'ledger_next_only')"
)
"""Query: does PostgreSQL have the table and both triggers? A process may have been killed between creating them."""
TRIGGERS = {"sqlite": SQLITE_TRIGGERS, "postgresql": POSTGRESQL_TRIGGERS}
"""Triggers by SQL dialect. An administrator can drop them, but the signed chain still reveals changes."""
CURES = {
    "sqlite": "restore it from a backup",
    "postgresql": "check NEORL_LEDGER_URL and the server, or restore the database from a backup",
}
FIRST_USE = int.from_bytes(b"neorl", "big")
"""Number of the advisory lock in PostgreSQL that a process takes to create the table."""
TIMEOUT = 60
"""Seconds to wait for SQLite's lock."""
CALL = 10
"""Connection timeout of a database server in seconds."""


@lru_cache(maxsize=16)
def connect(url: str) -> sql.Engine:
    """Return SQLAlchemy's engine for a ledger's URL; no connection is kept open."""
    try:
        found = sql.make_url(url)
        if found.drivername == "postgresql":
            found = found.set(drivername="postgresql+psycopg")
        backend = found.get_backend_name()
        if backend not in TRIGGERS:
            raise BadInput(f"NEORL_LEDGER_URL must begin with sqlite or postgresql, got {backend}: correct it")
        waits = {"timeout": TIMEOUT} if backend == "sqlite" else {"connect_timeout": CALL}
        # An entry is one insert; the unique predecessor protects against concurrent writers.
        engine = sql.create_engine(found, poolclass=sql.NullPool, isolation_level="AUTOCOMMIT", connect_args=waits)
    except (ArgumentError, ValueError) as error:
        # The URL is not shown: it may contain a password.
        raise BadInput(
            "NEORL_LEDGER_URL is not a URL of the form postgresql://USER:PASSWORD@HOST/DATABASE: correct it"
        ) from error
    except ImportError as error:
        raise BadInput(
            f"the driver {error.name} for NEORL_LEDGER_URL is missing: install NeoRL with the extra 'team'"
        ) from error
    if engine.dialect.name == "sqlite":

        @sql.event.listens_for(engine, "connect")
        def durable(connection: Any, _: Any) -> None:
            # EXTRA also syncs the folder after removing the journal, so that appends survive a power cut.
            connection.execute("PRAGMA synchronous=EXTRA")

    return engine


def create(engine: sql.Engine) -> bool:
    """Create the table if it does not exist; return whether it is empty."""
    try:
        with engine.connect() as connection:
            # On a server, concurrent `IF NOT EXISTS` can collide, and replacing a trigger waits for writers.
            if engine.dialect.name == "sqlite" or not connection.scalar(GUARDED):
                with _alone(connection):
                    connection.execute(CreateTable(TABLE, if_not_exists=True))
                    for statement in TRIGGERS[engine.dialect.name]:
                        connection.exec_driver_sql(statement)
            if engine.dialect.name == "sqlite" and engine.url.database and os.access(engine.url.database, os.W_OK):
                os.chmod(engine.url.database, 0o600)
            return connection.execute(sql.select(TABLE.c.sequence).limit(1)).first() is None
    except DBAPIError as error:
        raise Refused(
            f"cannot use the database {named(engine)} ('{_message(error)}'): {CURES[engine.dialect.name]}"
        ) from error


def rows_from(engine: sql.Engine, sequence: int) -> Generator[sql.Row[Any], None, None]:
    """Yield rows from a sequence number on, in order."""
    query = sql.select(TABLE).order_by(TABLE.c.sequence)
    # The first reading has no filter, so that a row with an altered sequence number is seen.
    if sequence:
        query = query.where(TABLE.c.sequence >= sequence)
    number = max(sequence, 1)
    try:
        with engine.connect() as connection:
            for row in connection.execute(query):
                yield row
                number += 1
    except DBAPIError as error:
        raise Refused(
            f"ledger entry {number} cannot be read ('{_message(error)}'): {CURES[engine.dialect.name]}"
        ) from error


def named(engine: sql.Engine) -> str:
    """Return the database's URL without the password."""
    return engine.url.render_as_string(hide_password=True)


@contextmanager
def _alone(connection: sql.Connection) -> Iterator[None]:
    """Keep other processes from creating the table at the same time; SQLite does this by itself."""
    if connection.dialect.name == "sqlite":
        yield
        return
    connection.execute(sql.select(sql.func.pg_advisory_lock(FIRST_USE)))
    try:
        yield
    finally:
        connection.execute(sql.select(sql.func.pg_advisory_unlock(FIRST_USE)))


def _message(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())

"""The ledger's SQL table: SQLite in the home, or a team's database; it only takes the next entry."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import lru_cache
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from configs.errors import Refused

GENESIS = "0" * 64
"""Predecessor of the first entry."""

METADATA = sql.MetaData()
TABLE = sql.Table(
    "ledger",
    METADATA,
    sql.Column("sequence", sql.Integer, primary_key=True, autoincrement=False),
    # Unique, so that two writers cannot both follow the same entry: appending is compare-and-set.
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


@lru_cache(maxsize=16)
def connect(url: str) -> sql.Engine:
    """The engine for a ledger's URL; it keeps statements that were compiled, and no connection."""
    # Statements commit one by one: an entry is one insert, and the unique predecessor guards the rest.
    connect_args = {"timeout": 60} if url.startswith("sqlite") else {}
    engine = sql.create_engine(url, poolclass=sql.NullPool, isolation_level="AUTOCOMMIT", connect_args=connect_args)
    if engine.dialect.name == "sqlite":

        @sql.event.listens_for(engine, "connect")
        def durable(connection: Any, _: Any) -> None:
            # Also syncs the folder once the journal is gone, so that a finished append survives a power cut.
            connection.execute("PRAGMA synchronous=EXTRA")

    return engine


def create(engine: sql.Engine) -> bool:
    """Make the table where there is none.

    Returns:
        Whether it is empty.

    Raises:
        Refused: when there is something else than a database.
    """
    try:
        with engine.connect() as connection:
            connection.execute(CreateTable(TABLE, if_not_exists=True))
            if engine.dialect.name == "sqlite":
                if engine.url.database and os.access(engine.url.database, os.W_OK):
                    os.chmod(engine.url.database, 0o600)
                for trigger in SQLITE_TRIGGERS:
                    connection.exec_driver_sql(trigger)
            return connection.execute(sql.select(TABLE.c.sequence).limit(1)).first() is None
    except DBAPIError as error:
        raise Refused(
            f"expected a database at {engine.url}, got '{error.orig}': restore it from its backup."
        ) from error


def rows_from(engine: sql.Engine, sequence: int) -> Generator[sql.Row[Any], None, None]:
    """Rows in the order of their sequence, all of them where it is 0.

    Raises:
        Refused: when they cannot be read.
    """
    query = sql.select(TABLE).order_by(TABLE.c.sequence)
    # The first look has no filter: a row whose sequence was altered must not slip below it.
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
            f"expected ledger entry {number} to be readable, got '{error.orig}': restore the database from its backup."
        ) from error

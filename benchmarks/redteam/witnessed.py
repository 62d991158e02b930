"""Witnesses that run in this process: NeoRL's own code without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from configs.home import Home
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.signer import Signer
from tasks.evidence.witness.notes import SIGNATURE, Verifier
from tasks.evidence.witness.pinned import FILE, PinnedWitness, Witnesses, pin
from tasks.evidence.witness.server import open_witness
from tasks.evidence.witness.transport import Reply, Transport
from tasks.evidence.witness.witness import Denied, Witness

ORIGIN = "neorl.example/plant-7"
Clock = Callable[[], datetime]


def now() -> datetime:
    """Return the current time for witnesses and signers."""
    return datetime.now(UTC)


def direct(*witnesses: Witness, silent: Sequence[str] = ()) -> Transport:
    """Return a transport to witnesses without a server.

    Args:
        witnesses: witnesses by name.
        silent: names of witnesses that do not answer.
    """
    by_key = {str(witness.verifier): witness for witness in witnesses}

    def transport(pinned: PinnedWitness, path: str, body: str | None) -> Reply:
        witness = by_key[pinned.key]
        if witness.name in silent:
            raise ConnectionRefusedError("no server listens")
        try:
            if body is None:
                return Reply(200, witness.newest(unquote(path.removeprefix("/newest/"))))
            answers = {
                "/add-checkpoint": witness.add_checkpoint,
                "/nonce": witness.nonce,
                "/add-log": witness.accept_log,
            }
            return Reply(200, answers[path](body))
        except Denied as error:
            return Reply(error.status, error.text)

    return transport


def witness_in(folder: Path, name: str, clock: Clock = now, *, open_to_all: bool = True) -> Witness:
    """Make a witness in a folder."""
    return open_witness(folder, name, open_to_all=open_to_all, clock=clock)


def pin_witnesses(home: Home, *witnesses: Witness, required: int = 1) -> Path:
    """Pin these witnesses in a home."""
    home.folder()
    rows = [PinnedWitness(key=str(witness.verifier), url="http://127.0.0.1:9") for witness in witnesses]
    pin(home.root / FILE, Witnesses(origin=ORIGIN, required=required, witnesses=rows))
    return home.root / FILE


def watched(home: Home, transport: Transport, clock: Clock = now) -> Ledger:
    """Open the ledger of a home with a signer in this process and witnesses behind `transport`."""
    return Ledger.open(home, ask=Signer.open(home, clock=clock, transport=transport).answer)


def log_key(ledger: Ledger, home: Home) -> Verifier:
    """Return the public key by which a witness knows the home's ledger."""
    key, _ = open_keys(home, first_use=False)
    return Verifier.of(ORIGIN, SIGNATURE, key)

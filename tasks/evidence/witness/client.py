"""The signer's client of witnesses: compares the ledger with known heads, and has new heads countersigned."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence.ledger.entry import Entry, root_of
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import SigningKey, heads_in, key_id, signed_by, to_base64
from tasks.evidence.witness.notes import SIGNATURE, Checkpoint, Note, Verifier, signed_note
from tasks.evidence.witness.pinned import (
    FILE,
    PinnedWitness,
    Witnesses,
    pin,
    pinned,
    pinned_file,
    witness_fault,
)
from tasks.evidence.witness.seeds import NonceBody, SeedBody, countersigned_at
from tasks.evidence.witness.transport import OWN, Reply, Transport, newest_path, start_own
from tasks.files.canonical import write_atomic
from tasks.files.merkle import consistency_proof, inclusion_proof, leaf_hash

WITNESSED = ("seed", "promotion", "rollback")
"""Before an entry of these kinds, witnesses countersign the head, which also covers earlier entries of other kinds."""
COUNTERSIGNED = "witnessed.head"
"""File of the newest countersigned head, in the home."""
PAUSE = 30.0
"""Seconds during which a witness that timed out is not asked again."""
RACES = 5
"""Retries when another writer reaches a witness first."""


class Countersigned(NamedTuple):
    """Head with the witnesses that countersigned it."""

    note: Note
    by: tuple[PinnedWitness, ...]
    required: int

    @property
    def chosen(self) -> tuple[str, ...]:
        """Keys of the first `required` witnesses."""
        return tuple(witness.key for witness in self.by[: self.required])

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.parse(self.note.text)


class NoAnswer(Exception):
    """The witness does not answer."""


class WitnessClient:
    """Client of all witnesses of one ledger."""

    def __init__(self, home: Home, ledger: Ledger, key: SigningKey, transport: Transport, own: bool) -> None:
        """Create a client; no witness is contacted yet.

        Args:
            own: whether to start the home's own witness if none is pinned.
        """
        self._home, self._ledger, self._key, self._transport, self._own = home, ledger, key, transport, own
        self._caught_up = False
        self._paused_until: dict[str, float] = {}

    def catch_up(self) -> None:
        """Check once per process that the ledger agrees with every head that this home or a witness knows."""
        if self._caught_up:
            return
        entries, own = self._ledger.entries(), self._home.root / "ledger.head"
        if own.exists():
            self._ledger.verify([own.read_text(errors="replace")])
        elif entries and self._home.ledger.exists():
            raise Refused(
                f"the ledger has {len(entries)} entries, but the file of its newest head, {own}, does not exist: "
                "restore the file from a backup"
            )
        witnesses = pinned(self._home, self._ledger.trust)
        self._follow_folders(witnesses)
        if witnesses:
            for witness in witnesses.witnesses:
                try:
                    self._check_newest(witness, witnesses.origin, entries)
                except NoAnswer:
                    continue  # steps that need this witness ask again
        self._caught_up = True

    def countersigned(self) -> Countersigned | None:
        """Have the head countersigned by all witnesses that answer.

        Returns:
            The countersigned head; None if no witness is pinned and none may be started.
        """
        self.catch_up()
        witnesses = self._pinned_or_own()
        if witnesses is None:
            return None
        if lost := next((folder for folder in head_folders(witnesses) if not folder.is_dir()), None):
            raise Refused(f"the folder {lost}, listed under 'heads' in {FILE}, does not exist: mount it")
        self._follow_folders(witnesses)
        entries = self._ledger.entries()
        time = entries[-1].timestamp if entries else ""
        root = root_of(entries, len(entries))
        checkpoint = Checkpoint(witnesses.origin, len(entries), root, time)
        note = signed_note(checkpoint.text, witnesses.origin, self._key)
        by, unanswered = list[PinnedWitness](), list[str]()
        for witness in witnesses.witnesses:
            try:
                note = note.with_lines([self._countersignature(witness, checkpoint, note, entries)])
                by.append(witness)
            except NoAnswer as error:
                unanswered.append(str(error))
        if len(by) < witnesses.required:
            raise Refused(
                f"{len(by)} of {len(witnesses.witnesses)} witnesses countersigned, {witnesses.required} are required "
                f"({'; '.join(unanswered)}): start them with 'neorl witness serve', or ask their owners"
            )
        write_atomic(self._home.root / COUNTERSIGNED, str(note).encode())
        return Countersigned(note, tuple(by), witnesses.required)

    def announce_successor(self, key: SigningKey) -> None:
        """Announce the next signing key to every witness; the current key vouches for it."""
        witnesses = pinned(self._home, self._ledger.trust)
        for witness in witnesses.witnesses if witnesses else ():
            assert witnesses is not None
            following = Verifier.of(witnesses.origin, SIGNATURE, key)
            try:
                note = signed_note(f"{following}\n", witnesses.origin, self._key)
                reply = self._request(witness, "/add-log", str(note))
            except NoAnswer as error:
                raise Refused(f"a witness did not get the next key ({error}): start it, then rotate again") from error
            # A witness that has never seen this ledger gets the key with the first head.
            if reply.status not in (200, 404):
                message = reply.text.strip()[:200]
                raise Refused(
                    f"witness {witness.verifier.name} rejected the next key: '{message}'; ask its owner to add the key"
                )

    def for_key(self, key: SigningKey, ledger: Ledger) -> WitnessClient:
        return WitnessClient(self._home, ledger, key, self._transport, self._own)

    def check_seed(self, body: SeedBody) -> None:
        """Check that a commitment names enough witnesses, all of them pinned."""
        witnesses = pinned(self._home, self._ledger.trust)
        if fault := witness_fault(witnesses, body.witnesses):
            raise Refused(f"{fault}: repeat the run to draw another seed")

    def nonces(self, record: Entry) -> NonceBody:
        """Have the witnesses countersign a head that contains a seed entry, and return their nonces for this entry."""
        body = record.read(SeedBody)
        index, leaf = record.sequence - 1, leaf_hash(record.envelope)
        for _ in range(RACES):
            head = self.countersigned()
            by = {witness.key: witness for witness in head.by} if head else {}
            if head is None or (missing := next((key for key in body.witnesses if key not in by), None)):
                name = Verifier.parse(missing or body.witnesses[0]).name
                raise Refused(
                    f"witness {name}, which the attempt's seed entry names, does not answer: start it, or remove the "
                    "attempt's file in keys/seeds to abandon the attempt"
                )
            leaves = [entry.envelope for entry in self._ledger.entries()[: head.checkpoint.size]]
            proof = [to_base64(node) for node in inclusion_proof(leaves, index)]
            asked = "\n".join([f"leaf {index} {to_base64(leaf)}", *proof, "", str(head.note)])
            try:
                replies = [self._request(by[key], "/nonce", asked) for key in body.witnesses]
            except NoAnswer as error:
                raise Refused(f"no nonce from {error}: run the same command again") from error
            if all(reply.status == 200 for reply in replies):
                given = tuple(reply.text.strip() for reply in replies)
                stamp = self._stamp(head.note.text)
                return NonceBody(attempt=body.attempt, head=str(head.note), nonces=given, stamp=stamp)
            if wrong := next((reply for reply in replies if reply.status not in (200, 409)), None):
                raise Refused(f"a witness refused to give a nonce: '{wrong.text.strip()[:200]}'; ask its owner")
        raise Refused(f"another writer advanced the ledger {RACES} times while nonces were drawn: try again")

    def _stamp(self, text: str) -> str:
        """Return a time stamp of a head, or an empty string if no authority is pinned."""
        witnesses = pinned(self._home, self._ledger.trust)
        if witnesses is None or (asked := witnesses.timestamps) is None:
            return ""
        # Imported late: most homes pin no authority.
        from tasks.evidence.witness.timestamps import read_authority_certificate, request_stamp, verify_stamp

        folder = pinned_file(self._home, self._ledger.trust).parent
        certificate = read_authority_certificate(folder / asked.certificate)
        try:
            token = request_stamp(asked.url, text.encode())
        except OSError as error:
            raise Refused(
                f"the time-stamp authority {asked.url} did not answer ('{error}'): try again later"
            ) from error
        verify_stamp(token, text.encode(), certificate)
        return to_base64(token)

    def _pinned_or_own(self) -> Witnesses | None:
        witnesses = pinned(self._home, self._ledger.trust)
        if witnesses is not None:
            return witnesses
        if any(entry.body["witnesses"] for entry in self._ledger.entries("seed")):
            raise Refused(
                f"the ledger's attempts name witnesses, but {pinned_file(self._home, self._ledger.trust)} does not "
                "exist: restore it from a backup"
            )
        if not self._own:
            return None
        verifier = start_own(self._home)
        origin = f"neorl/{key_id(self._key.public)}"
        made = Witnesses(origin=origin, witnesses=[PinnedWitness(key=str(verifier), url=OWN)])
        pin(self._home.root / FILE, made)
        return made

    def _follow_folders(self, witnesses: Witnesses | None) -> None:
        for folder in head_folders(witnesses):
            for path, found in stored_heads(folder, self._ledger.trust.keys):
                try:
                    self._ledger.verify(found)
                except Refused as error:
                    raise Refused(f"{path}: {error}") from error

    def _countersignature(
        self, witness: PinnedWitness, checkpoint: Checkpoint, note: Note, entries: Sequence[Entry]
    ) -> str:
        leaves = [entry.envelope for entry in entries]
        for _ in range(RACES):
            old = self._check_newest(witness, checkpoint.origin, entries)
            proof = [to_base64(node) for node in consistency_proof(leaves, old)]
            reply = self._request(witness, "/add-checkpoint", "\n".join([f"old {old}", *proof, "", str(note)]))
            if reply.status == 200:
                line = reply.text.rstrip("\n")
                if Note(note.text, (line,)).countersigned_by(witness.verifier) is None:
                    raise Refused(
                        f"the countersignature is not by the pinned key of {witness.verifier.name}: correct {FILE}"
                    )
                return line
            if reply.status == 404:
                self._introduce(witness, checkpoint.origin)
            elif reply.status != 409:
                message = reply.text.strip()[:300]
                raise Refused(f"witness {witness.verifier.name} refused to countersign: {message}")
        raise Refused(f"other processes sent newer heads to witness {witness.verifier.name} {RACES} times: try again")

    def _check_newest(self, witness: PinnedWitness, origin: str, entries: Sequence[Entry]) -> int:
        """Check the newest head that a witness knows against the ledger; return its size, or 0 if there is none."""
        reply = self._request(witness, newest_path(origin), None)
        if reply.status == 404:
            return 0
        if reply.status != 200:
            raise NoAnswer(f"{witness.verifier.name} at {witness.url}: status {reply.status}")
        try:
            countersigned_at(entries, reply.text, [witness.key])
        except NeoRLError as error:
            raise Refused(f"{witness.verifier.name} knows a head that this ledger does not match: {error}") from error
        return Checkpoint.parse(Note.parse(reply.text).text).size

    def _introduce(self, witness: PinnedWitness, origin: str) -> None:
        """Ask a witness to accept this ledger; if the witness is not open to all, its owner must add the ledger."""
        own = Verifier.of(origin, SIGNATURE, self._key)
        reply = self._request(witness, "/add-log", f"{own}\n")
        if reply.status != 200:
            raise Refused(
                f"witness {witness.verifier.name} does not know this ledger ('{reply.text.strip()[:200]}'): the owner "
                f"must run 'neorl witness add FOLDER {own}'"
            )

    def _request(self, witness: PinnedWitness, path: str, body: str | None) -> Reply:
        where = f"{witness.verifier.name} at {witness.url}"
        if monotonic() < self._paused_until.get(witness.key, -math.inf):
            raise NoAnswer(f"{where}: timed out less than {PAUSE:g} s ago")
        try:
            reply = self._transport(witness, path, body)
        except TimeoutError as error:
            # Do not ask again soon: one request needs several answers, and the signer's client waits only one minute.
            self._paused_until[witness.key] = monotonic() + PAUSE
            raise NoAnswer(f"{where}: {error}") from error
        except OSError as error:
            raise NoAnswer(f"{where}: {error}") from error
        if reply.status >= 500:
            # A proxy or a failing witness sends such a status; it says nothing about a head.
            raise NoAnswer(f"{where}: status {reply.status}")
        return reply


def head_folders(witnesses: Witnesses | None) -> list[Path]:
    """Return the folders with signed heads that must belong to the ledger."""
    return [Path(name).expanduser() for name in witnesses.heads] if witnesses else []


def stored_heads(folder: Path, keys: Container[str]) -> Iterator[tuple[Path, list[str]]]:
    """Yield each file in a folder that may contain heads, and its heads that name one of these keys as their signer."""
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".head", ".html")):
        yield path, signed_by(heads_in(path.read_text(errors="replace")), keys)

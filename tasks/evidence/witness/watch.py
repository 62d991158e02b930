"""What a writer owes its witnesses: it follows every head that is known, and has its own countersigned."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence.ledger.ledger import Entry, Ledger, root_of
from tasks.evidence.ledger.signing import SigningKey, heads_in, key_id, signed_by, to_base64
from tasks.evidence.witness.client import OWN, Reach, Reply, newest_path, start_own
from tasks.evidence.witness.notes import SIGNATURE, Checkpoint, Note, Verifier, signed_note
from tasks.evidence.witness.pinned import (
    FILE,
    PinnedWitness,
    Witnesses,
    lacking_witnesses,
    pin,
    pinned,
    pinned_file,
)
from tasks.evidence.witness.seeds import NonceBody, SeedBody, countersigned_at
from tasks.files.canonical import write_atomic
from tasks.files.merkle import consistency_proof, inclusion_proof, leaf_hash

WITNESSED = ("seed", "promotion", "rollback")
"""Kinds of entries before which enough witnesses must countersign: the others follow when one of these does."""
COUNTERSIGNED = "witnessed.head"
"""The newest countersigned head, in the home."""
SILENCE = 30.0
"""Seconds for which a witness that did not answer in time is not asked again."""
RACES = 5
"""Times that another writer may be first at a witness."""


class Countersigned(NamedTuple):
    """A head with its countersignatures."""

    note: Note
    by: tuple[PinnedWitness, ...]
    required: int

    @property
    def chosen(self) -> tuple[str, ...]:
        """Keys of as many as are required."""
        return tuple(witness.key for witness in self.by[: self.required])

    @property
    def checkpoint(self) -> Checkpoint:
        """The head."""
        return Checkpoint.parse(self.note.text)


class Silent(Exception):
    """A witness that gives no answer."""


class Watch:
    """A signer's side of its witnesses."""

    def __init__(self, home: Home, ledger: Ledger, key: SigningKey, reach: Reach, own: bool) -> None:
        """Look at nothing yet.

        Args:
            home: of the ledger.
            ledger: what is watched.
            key: signs heads.
            reach: asks a witness.
            own: whether the home's own witness is started where none is pinned.
        """
        self._home, self._ledger, self._key, self._reach, self._own = home, ledger, key, reach, own
        self._caught_up = False
        self._silent_until: dict[str, float] = {}

    def catch_up(self) -> None:
        """Hold the ledger, once, against every head that this home or its witnesses know.

        Raises:
            Refused: when it is behind one of them, or is another history.
        """
        if self._caught_up:
            return
        entries, own = self._ledger.entries(), self._home.root / "ledger.head"
        if own.exists():
            self._ledger.verify([own.read_text(errors="replace")])
        elif entries and self._home.ledger.exists():
            raise Refused(
                f"expected the newest head of {len(entries)} ledger entries in {own}, got no such file: restore it "
                "from its backup, or bring back the ledger that was there."
            )
        witnesses = pinned(self._home, self._ledger.trust)
        self._follow_folders(witnesses)
        if witnesses:
            for witness in witnesses.witnesses:
                try:
                    self._newest(witness, witnesses.origin, entries)
                except Silent:
                    continue  # what must not go on without it asks again
        self._caught_up = True

    def countersigned(self) -> Countersigned | None:
        """The head now, countersigned by all witnesses that answer; None where there is none and none is to be made.

        Raises:
            Refused: when the ledger is behind a head that is known, or fewer witnesses answer than are required.
        """
        self.catch_up()
        witnesses = self._pinned_or_own()
        if witnesses is None:
            return None
        if lost := next((folder for folder in head_folders(witnesses) if not folder.is_dir()), None):
            raise Refused(f"expected the signed heads in {lost}, which {FILE} names, got no such folder: mount it.")
        self._follow_folders(witnesses)
        entries = self._ledger.entries()
        time = entries[-1].timestamp if entries else ""
        root = root_of(entries, len(entries))
        checkpoint = Checkpoint(witnesses.origin, len(entries), root, time)
        note, by, silent = signed_note(checkpoint.text, witnesses.origin, self._key), list[PinnedWitness](), list[str]()
        for witness in witnesses.witnesses:
            try:
                note = note.beside([self._line(witness, checkpoint, note, entries)])
                by.append(witness)
            except Silent as error:
                silent.append(str(error))
        if len(by) < witnesses.required:
            raise Refused(
                f"expected {witnesses.required} of {len(witnesses.witnesses)} witnesses to countersign, got "
                f"{len(by)} ({'; '.join(silent)}): start what is missing with 'neorl witness serve', or ask its owner."
            )
        write_atomic(self._home.root / COUNTERSIGNED, str(note).encode())
        return Countersigned(note, tuple(by), witnesses.required)

    def name_successor(self, key: SigningKey) -> None:
        """Have every witness know the key that takes the place of this one, which vouches for it.

        Raises:
            Refused: when one of them does not answer, or does not take it.
        """
        witnesses = pinned(self._home, self._ledger.trust)
        for witness in witnesses.witnesses if witnesses else ():
            assert witnesses is not None
            following = Verifier.of(witnesses.origin, SIGNATURE, key)
            try:
                reply = self._told(witness, "/add-log", str(signed_note(f"{following}\n", witnesses.origin, self._key)))
            except Silent as error:
                raise Refused(f"expected every witness to learn of the next key, got no answer ({error}).") from error
            # A witness that has never seen this ledger is introduced to it by whichever key signs then.
            if reply.status not in (200, 404):
                said = reply.text.strip()[:200]
                raise Refused(f"expected the witness {witness.verifier.name} to take the next key, got '{said}'.")

    def succeeded_by(self, key: SigningKey, ledger: Ledger) -> Watch:
        """The same for the next key."""
        return Watch(self._home, ledger, key, self._reach, self._own)

    def check_seed(self, body: SeedBody) -> None:
        """Refuse a commitment that names other witnesses than the pinned ones, or fewer than are required."""
        witnesses = pinned(self._home, self._ledger.trust)
        if fault := lacking_witnesses(witnesses, body.witnesses):
            raise Refused(f"{fault}: draw the seed again.")

    def nonces(self, record: Entry) -> NonceBody:
        """Have a head countersigned that contains a commitment, and get the nonces of its witnesses.

        Args:
            record: the commitment's entry.

        Raises:
            Refused: when one of them does not answer, or is pinned no more.
        """
        body = record.read(SeedBody)
        index, leaf = record.sequence - 1, leaf_hash(record.envelope)
        for _ in range(RACES):
            head = self.countersigned()
            by = {witness.key: witness for witness in head.by} if head else {}
            if head is None or (missing := next((key for key in body.witnesses if key not in by), None)):
                name = Verifier.parse(missing or body.witnesses[0]).name
                raise Refused(
                    f"expected the witness {name}, which the attempt's commitment names, got no answer: start it, "
                    "or remove the attempt's file in keys/seeds to abandon the attempt."
                )
            leaves = [entry.envelope for entry in self._ledger.entries()[: head.checkpoint.size]]
            proof = [to_base64(node) for node in inclusion_proof(leaves, index)]
            asked = "\n".join([f"leaf {index} {to_base64(leaf)}", *proof, "", str(head.note)])
            try:
                replies = [self._told(by[key], "/nonce", asked) for key in body.witnesses]
            except Silent as error:
                raise Refused(f"expected a nonce, got no answer ({error}): run the same command again.") from error
            if all(reply.status == 200 for reply in replies):
                given = tuple(reply.text.strip() for reply in replies)
                stamp = self._stamp(head.note.text)
                return NonceBody(attempt=body.attempt, head=str(head.note), nonces=given, stamp=stamp)
            if wrong := next((reply for reply in replies if reply.status not in (200, 409)), None):
                raise Refused(f"expected a nonce, got the witness's '{wrong.text.strip()[:200]}'.")
        raise Refused("expected the witnesses to keep a head for a moment, got newer ones again and again: try again.")

    def _stamp(self, text: str) -> str:
        """A time stamp of a head, where an authority is pinned."""
        witnesses = pinned(self._home, self._ledger.trust)
        if witnesses is None or (asked := witnesses.timestamps) is None:
            return ""
        # Imported here, for most homes pin none.
        from tasks.evidence.witness.timestamps import read_certificate_of, request_stamp, stamped_at

        folder = pinned_file(self._home, self._ledger.trust).parent
        certificate = read_certificate_of(folder / asked.certificate)
        try:
            token = request_stamp(asked.url, text.encode())
        except OSError as error:
            raise Refused(f"expected a time stamp of {asked.url}, got '{error}': try again when it answers.") from error
        stamped_at(token, text.encode(), certificate)
        return to_base64(token)

    def _pinned_or_own(self) -> Witnesses | None:
        witnesses = pinned(self._home, self._ledger.trust)
        if witnesses is not None:
            return witnesses
        if any(entry.body["witnesses"] for entry in self._ledger.entries("seed")):
            raise Refused(
                f"expected the witnesses that this ledger's attempts name in "
                f"{pinned_file(self._home, self._ledger.trust)}, got no such file: restore it from its backup."
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
            for path, found in kept_heads(folder, self._ledger.trust.keys):
                try:
                    self._ledger.verify(found)
                except Refused as error:
                    raise Refused(f"{path}: {error}") from error

    def _line(self, witness: PinnedWitness, checkpoint: Checkpoint, note: Note, entries: Sequence[Entry]) -> str:
        """The line by which a witness countersigns a head."""
        leaves = [entry.envelope for entry in entries]
        for _ in range(RACES):
            old = self._newest(witness, checkpoint.origin, entries)
            proof = [to_base64(node) for node in consistency_proof(leaves, old)]
            reply = self._told(witness, "/add-checkpoint", "\n".join([f"old {old}", *proof, "", str(note)]))
            if reply.status == 200:
                line = reply.text.rstrip("\n")
                if Note(note.text, (line,)).countersigned_by(witness.verifier) is None:
                    raise Refused(f"expected a countersignature by {witness.verifier.name}, got another key's.")
                return line
            if reply.status == 404:
                self._introduce(witness, checkpoint.origin)
            elif reply.status != 409:
                said = reply.text.strip()[:300]
                raise Refused(f"expected the witness {witness.verifier.name} to countersign, got its refusal: {said}")
        raise Refused(f"expected the witness {witness.verifier.name} to countersign, got other heads: try again.")

    def _newest(self, witness: PinnedWitness, origin: str, entries: Sequence[Entry]) -> int:
        """Size of the newest head that a witness knows, which this ledger must contain; 0 where it knows none."""
        reply = self._told(witness, newest_path(origin), None)
        if reply.status == 404:
            return 0
        if reply.status != 200:
            raise Silent(f"{witness.verifier.name} at {witness.url}: it answers with status {reply.status}")
        try:
            countersigned_at(entries, reply.text, [witness.key])
        except NeoRLError as error:
            raise Refused(f"{witness.verifier.name} knows another head of this ledger: {error}") from error
        return Checkpoint.parse(Note.parse(reply.text).text).size

    def _introduce(self, witness: PinnedWitness, origin: str) -> None:
        """Make this ledger known to the home's own witness; another's owner does that."""
        own = Verifier.of(origin, SIGNATURE, self._key)
        reply = self._told(witness, "/add-log", f"{own}\n")
        if reply.status != 200:
            raise Refused(
                f"expected the witness {witness.verifier.name} to know this ledger, got '{reply.text.strip()[:200]}': "
                f"have its owner run 'neorl witness add FOLDER {own}'."
            )

    def _told(self, witness: PinnedWitness, path: str, body: str | None) -> Reply:
        where = f"{witness.verifier.name} at {witness.url}"
        if monotonic() < self._silent_until.get(witness.key, -math.inf):
            raise Silent(f"{where}: it has just not answered in time")
        try:
            reply = self._reach(witness, path, body)
        except TimeoutError as error:
            # One request asks a witness several times, and its client waits for a minute only.
            self._silent_until[witness.key] = monotonic() + SILENCE
            raise Silent(f"{where}: {error}") from error
        except OSError as error:
            raise Silent(f"{where}: {error}") from error
        if reply.status >= 500:
            # A proxy speaks here, or a witness that failed: neither says anything of a head.
            raise Silent(f"{where}: it answers with status {reply.status}")
        return reply


def head_folders(witnesses: Witnesses | None) -> list[Path]:
    """The folders of signed heads that the ledger must contain."""
    return [Path(name).expanduser() for name in witnesses.heads] if witnesses else []


def kept_heads(folder: Path, keys: Container[str]) -> Iterator[tuple[Path, list[str]]]:
    """The files with signed heads in a folder, and those heads that say they are signed by one of these keys."""
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".head", ".html")):
        yield path, signed_by(heads_in(path.read_text(errors="replace")), keys)

"""Attacks on seeds, on the start of the ledger, and on clocks."""

from __future__ import annotations

import hashlib
import shutil
from base64 import b64encode
from datetime import timedelta

from benchmarks.redteam.stage import Stage, forge
from benchmarks.redteam.witnessed import direct, now
from benchmarks.tamper import truncate
from configs.home import Home
from tasks.evidence.attempts import Attempt, Inputs, draw_seed, lineage_of, open_attempt, seed_file
from tasks.evidence.ledger.keys import open_key, open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Nonces
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.ledger.table import connect, create
from tasks.evidence.rules import NoteBody
from tasks.evidence.signer import Signer
from tasks.evidence.witness.notes import Nonce
from tasks.evidence.witness.pinned import FILE
from tasks.evidence.witness.seeds import NonceBody, SeedBody, derive_seed, entry_of_attempt
from tasks.evidence.witness.server import KEY
from tasks.files.canonical import write_secret
from tasks.files.merkle import leaf_hash

SECRETS = [hashlib.sha256(bytes([number])).digest() for number in range(50)]
"""Secrets that the attacker tries offline."""
GAINED = "the seed that runs is none of those that were tried: a nonce is in it that was given later"


def _opened(stage: Stage, ledger: Ledger) -> Attempt:
    digest = "d" * 64
    claim = stage.claim
    return open_attempt(
        ledger, Inputs(lineage=lineage_of(claim), composite=digest, dataset=digest, config=digest), claim
    )


def _put(stage: Stage, attempt: Attempt, secret: bytes) -> None:
    write_secret(seed_file(stage.home, attempt.entry), secret)


def try_seeds_before_one_is_drawn(stage: Stage) -> str | None:
    """Kill the process after the attempt is logged, and write a chosen secret into the seed file."""
    ledger = stage.ledger()
    attempt = _opened(stage, ledger)
    _put(stage, attempt, SECRETS[7])
    drawn = draw_seed(stage.ledger(), attempt)
    return None if drawn in {derive_seed(secret, ()) for secret in SECRETS} else GAINED


def change_the_secret_once_the_nonce_is_known(stage: Stage) -> str | None:
    ledger = stage.ledger()
    attempt = _opened(stage, ledger)
    _put(stage, attempt, SECRETS[7])
    draw_seed(ledger, attempt)
    _put(stage, attempt, SECRETS[8])
    draw_seed(stage.ledger(), attempt)
    return None


def ask_for_unlogged_nonces(stage: Stage) -> str | None:
    """Ask the witness for nonces of entries that are not logged, which would show the seed before the commitment."""
    assert stage.witness is not None
    ledger = stage.ledger()
    draw_seed(ledger, _opened(stage, ledger))
    head = (stage.home.root / "witnessed.head").read_text()
    transport, asked = direct(stage.witness), stage.pinned.witnesses[0]
    size = len(ledger.entries())
    for secret in SECRETS[:10]:
        leaf = b64encode(leaf_hash(hashlib.sha256(secret).digest())).decode()
        if transport(asked, "/nonce", f"leaf {size - 2} {leaf}\n\n{head}").status == 200:
            return None
    return "the witness gives no nonce for a record that no countersigned head contains"


def set_the_ledger_back_for_another_commitment(stage: Stage) -> str | None:
    """Truncate ledger and heads to a state before the commitment, in order to get another nonce."""
    ledger = stage.ledger()
    attempt = _opened(stage, ledger)
    size = len(ledger.entries())
    draw_seed(ledger, attempt)
    _set_back(stage.home, size)
    seed_file(stage.home, attempt.entry).unlink()
    draw_seed(stage.ledger(), attempt)
    return None


def set_the_witness_back_too(stage: Stage) -> str | None:
    """Truncate the ledger likewise, and restore the witness's folder if the attacker can reach it."""
    assert stage.witness is not None
    ledger = stage.ledger()
    attempt = _opened(stage, ledger)
    size, kept = len(ledger.entries()), stage.home.root.with_name("kept-witness")
    shutil.copytree(stage.witness.folder, kept)
    draw_seed(ledger, attempt)
    _set_back(stage.home, size)
    seed_file(stage.home, attempt.entry).unlink()
    if stage.watched_from_here:
        shutil.rmtree(stage.witness.folder)
        shutil.copytree(kept, stage.witness.folder)
    draw_seed(stage.ledger(), attempt)
    return stage.audited()


def make_the_nonce_oneself(stage: Stage) -> str | None:
    """Sign a nonce with all reachable keys; the key of a local witness belongs to the same user."""
    assert stage.witness is not None
    ledger = stage.ledger()
    attempt = _opened(stage, ledger)
    commitment = hashlib.sha256(SECRETS[7]).hexdigest()
    keys = (str(stage.witness.verifier),)
    ledger.append("seed", SeedBody(attempt=attempt.entry, commitment=commitment, witnesses=keys), plant=stage.plant)
    record = entry_of_attempt(ledger.entries(), "seed", attempt.entry)
    assert record is not None
    true = NonceBody.model_validate_json(ledger.request(Nonces(attempt=attempt.entry)).envelope)
    asked = Nonce(stage.pinned.origin, record.sequence - 1, leaf_hash(record.envelope))
    own, _ = open_keys(stage.home, first_use=False)
    key = open_key(stage.witness.folder / KEY) if stage.watched_from_here else own
    foreseen = b64encode(asked.sign(key)).decode()
    forge(stage.home, "nonce", true.model_copy(update={"nonces": (foreseen,)}), plant=stage.plant)
    return stage.audited()


def _set_back(home: Home, size: int) -> None:
    truncate(home, size)
    key, _ = open_keys(home, first_use=False)
    head = key.seal(HEAD_TYPE, Ledger.open(home, write=False).head()._asdict())
    (home.root / "ledger.head").write_bytes(head)
    (home.root / "witnessed.head").unlink(missing_ok=True)


def delete_the_ledger(stage: Stage) -> str | None:
    stage.home.ledger.unlink()
    _opened(stage, stage.ledger())
    return None


def put_an_empty_ledger_in_its_place(stage: Stage) -> str | None:
    """Replace the ledger with an empty one, and delete the heads in the home."""
    stage.home.ledger.unlink()
    for name in ("ledger.head", "witnessed.head"):
        (stage.home.root / name).unlink(missing_ok=True)
    create(connect(stage.home.ledger_url))
    stage.ledger().append("note", NoteBody(text="a new beginning"))
    return None


def truncate_the_ledger(stage: Stage) -> str | None:
    truncate(stage.home, 6)
    stage.ledger().append("note", NoteBody(text="the seventh once more"))
    return None


def truncate_the_ledger_and_its_head(stage: Stage) -> str | None:
    _set_back(stage.home, 1)
    stage.ledger().append("note", NoteBody(text="the second once more"))
    return None


def restore_an_older_home_whole(stage: Stage) -> str | None:
    """Restore an older copy of the home, with the witness's folder if it is in the home."""
    older = stage.home.root.with_name("older")
    shutil.copytree(stage.home.root, older)
    ledger = stage.ledger()
    draw_seed(ledger, _opened(stage, ledger))
    shutil.rmtree(stage.home.root)
    shutil.copytree(older, stage.home.root)
    ledger = stage.ledger()
    ledger.append("note", NoteBody(text="as if nothing had been tried"))
    return stage.audited()


def begin_a_new_home(stage: Stage) -> str | None:
    """Start a new home with a new key, whose first attempt has the full error probability."""
    claim, digest = stage.claim, "d" * 64
    other = Home(stage.home.root.with_name("new"))
    Signer.open(other)
    shutil.copy(stage.home.root / FILE, other.root / FILE)
    witness = stage.witness
    if stage.watched_from_here and witness is not None:
        shutil.copytree(witness.folder, other.root / "witness")
        shutil.rmtree(other.root / "witness" / "logs")
    anew = Stage(other, stage.plant, stage.beside(other))
    ledger = anew.ledger()
    inputs = Inputs(lineage=lineage_of(claim), composite=digest, dataset=digest, config=digest)
    draw_seed(ledger, open_attempt(ledger, inputs, claim))
    return anew.audited()


def take_the_witnesses_away(stage: Stage) -> str | None:
    (stage.home.root / FILE).unlink()
    ledger = stage.ledger()
    draw_seed(ledger, _opened(stage, ledger))
    return None


def date_an_entry_2099(stage: Stage) -> str | None:
    ahead = stage.ledger(lambda: now() + timedelta(days=365 * 73))
    draw_seed(ahead, _opened(stage, ahead))
    return None


def go_on_after_2099(stage: Stage) -> str | None:
    """Set the clock to 2099 for an entry without a witness, then set it back."""
    stage.ledger(lambda: now() + timedelta(days=365 * 73)).append("note", NoteBody(text="from the future"))
    stage.ledger().append("note", NoteBody(text="dated 2099, too"))
    return None


def forge_an_entry_of_2099(stage: Stage) -> str | None:
    forge(stage.home, "note", NoteBody(text="from the future"), timestamp="2099-01-01T00:00:00.000000Z")
    return stage.audited()

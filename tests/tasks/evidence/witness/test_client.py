"""A ledger with witnesses: unpredictable seeds, no truncation, no false clocks."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from ruamel.yaml import YAML

from benchmarks.redteam.witnessed import ORIGIN, direct, log_key, now, pin_witnesses, watched, witness_in
from benchmarks.tamper import truncate
from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.attempts import draw_seed, seed_file
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import PAYLOAD_TYPE, read_certificate, verify_certificate
from tasks.evidence.decisions.champions import champion
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Answer, Append, Countersign, Nonces, Request
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.rules import NoteBody
from tasks.evidence.signer import Signer
from tasks.evidence.witness.notes import Checkpoint, Note
from tasks.evidence.witness.pinned import FILE, PinnedWitness, pinned
from tasks.evidence.witness.seeds import NonceBody, SeedBody, derive_seed
from tasks.evidence.witness.witness import Witness
from tasks.files.canonical import write_atomic
from tasks.files.merkle import leaf_hash
from tests.evidence import attempt_for, certify, crown, forge, open_ledger

A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def place(home: Path) -> Home:
    return Home(home)


@pytest.fixture
def witness(place: Home, tmp_path: Path) -> Witness:
    """Return the witness that the home has pinned."""
    found = witness_in(tmp_path / "witness", "witness.example/w1")
    pin_witnesses(place, found)
    return found


@pytest.fixture
def ledger(place: Home, witness: Witness) -> Ledger:
    return watched(place, direct(witness))


def test_a_seed_combines_a_secret_and_a_later_nonce(place: Home, ledger: Ledger, witness: Witness) -> None:
    attempt = attempt_for(ledger, A)
    seed = draw_seed(ledger, attempt)
    opened, record, given = ledger.entries()
    assert [entry.kind for entry in (opened, record, given)] == ["attempt", "seed", "nonce"]
    assert record.body["witnesses"] == [str(witness.verifier)]
    # By hand from the files: the witness's signature, and the input of the seed.
    secret, nonce = seed_file(place, attempt.entry).read_bytes(), base64.b64decode(given.body["nonces"][0])
    leaf = base64.b64encode(hashlib.sha256(b"\x00" + record.envelope).digest()).decode()
    text = f"neorl-nonce/v1\n{ORIGIN}\n1\n{leaf}\n"
    Ed25519PublicKey.from_public_bytes(witness.verifier.public).verify(nonce, text.encode())
    assert seed == hashlib.sha256(b"neorl attempt seed v1\n" + secret + nonce).digest()
    assert record.body["commitment"] == hashlib.sha256(secret).hexdigest()
    # The head that the witness countersigned before it gave the nonce contains the commitment.
    assert Checkpoint.parse(Note.parse(given.body["head"]).text).size == 2
    assert draw_seed(watched(place, direct(witness)), attempt) == seed
    assert len(ledger.entries()) == 3


def test_a_seed_chosen_after_looking_is_not_used(place: Home, ledger: Ledger, witness: Witness) -> None:
    """Attack 1: try secrets offline and store a suitable one as the drawn seed."""
    attempt = attempt_for(ledger, A)
    tried = [hashlib.sha256(bytes([i])).digest() for i in range(50)]
    foreseen = {derive_seed(secret, ()) for secret in tried}
    path = seed_file(place, attempt.entry)
    write_atomic(path, tried[7])
    path.chmod(0o600)
    assert draw_seed(ledger, attempt) not in foreseen
    # Once the nonce is known, another secret is not the one committed to.
    write_atomic(path, tried[8])
    path.chmod(0o600)
    with pytest.raises(Refused, match="does not match the SHA-256 that the ledger states for attempt 1"):
        draw_seed(ledger, attempt)


def test_no_nonce_is_given_for_a_record_outside_the_log(ledger: Ledger, witness: Witness) -> None:
    """Nor for another record at its position: the witness verifies the proof."""
    attempt = attempt_for(ledger, A)
    draw_seed(ledger, attempt)
    head = witness.newest(ORIGIN)
    other = base64.b64encode(leaf_hash(b"a commitment that was never logged")).decode()
    transport, pinned = direct(witness), _pinned(ledger)
    for index in (0, 1, 2, 5):
        assert transport(pinned, "/nonce", f"leaf {index} {other}\n\n{head}").status == 422
    assert transport(pinned, "/nonce", f"leaf 0 {other}\n\n{head.replace(ORIGIN, 'elsewhere')}").status == 404


def _pinned(ledger: Ledger) -> PinnedWitness:
    found = pinned(ledger.home, ledger.trust)
    assert found is not None
    return found.witnesses[0]


def test_a_deleted_ledger_cannot_be_restarted(place: Home, ledger: Ledger, witness: Witness) -> None:
    """Attack 2 and variants: with the home's head, without it, and with an empty table."""
    certify(ledger, A)
    place.ledger.unlink()
    with pytest.raises(Refused, match=r"this home has a signing key, but the ledger .* a new ledger needs a new home"):
        watched(place, direct(witness))
    # With an empty table and without the home's head, the witness's head remains.
    (place.root / "ledger.head").unlink()
    stranger = Home(place.root.with_name("stranger"))
    shutil.copy(_empty(stranger), place.ledger)
    with pytest.raises(Refused, match=r"witness.example/w1 knows a head .* the ledger has 0 entries"):
        watched(place, direct(witness)).append("note", NoteBody())
    with pytest.raises(Refused, match=r"the ledger has 0 entries.*was truncated"):
        attempt_for(watched(place, direct(witness)), A)


def _empty(home: Home) -> Path:
    open_ledger(home)
    return home.ledger


def test_a_truncated_ledger_rejects_entries(place: Home, ledger: Ledger, witness: Witness) -> None:
    certify(ledger, A)
    truncate(place, 1)
    with pytest.raises(Refused, match="the ledger has 1 entries, but a signed head covers 4"):
        watched(place, direct(witness)).append("note", NoteBody())
    # All of the home is set back, its own head included.
    key, _ = open_keys(place, first_use=False)
    older = key.seal(HEAD_TYPE, Ledger.open(place, write=False).head()._asdict())
    (place.root / "ledger.head").write_bytes(older)
    with pytest.raises(Refused, match=r"witness.example/w1 knows a head .* the ledger has 1 entries"):
        watched(place, direct(witness)).append("note", NoteBody())


def test_another_history_of_the_same_length_is_refused(place: Home, ledger: Ledger, witness: Witness) -> None:
    """The key's holder rewrites the ledger to draw another seed."""
    attempt_for(ledger, A)
    draw_seed(ledger, attempt_for(ledger, A))
    truncate(place, 1)
    for text in "ab":
        forge(place, "note", NoteBody(text=text))
    with pytest.raises(Refused, match="do not match a countersigned head: entries were altered or replaced"):
        watched(place, direct(witness)).append("note", NoteBody())


def test_an_external_witness_does_not_know_another_homes_key(tmp_path: Path) -> None:
    """Ten new homes with keys that the witness's owner never added."""
    witness = witness_in(tmp_path / "witness", "witness.example/w1", open_to_all=False)
    first, second = Home(tmp_path / "first"), Home(tmp_path / "second")
    for place in (first, second):
        pin_witnesses(place, witness)
    ledger = watched(first, direct(witness))
    with pytest.raises(Refused, match=r"the owner must run 'neorl witness add FOLDER neorl.example/plant-7\+"):
        draw_seed(ledger, attempt_for(ledger, A))
    witness.add_log(log_key(ledger, first))
    draw_seed(ledger, attempt_for(ledger, A))
    again = watched(second, direct(witness))
    with pytest.raises(Refused, match="knows a head that this ledger does not match"):
        draw_seed(again, attempt_for(again, A))
    assert len(again.entries("seed")) == 0


@pytest.mark.parametrize("lost", [Countersign, Nonces, Append])
@pytest.mark.parametrize("done", [True, False])
def test_an_attempt_continues_after_a_kill_at_any_step(
    place: Home, witness: Witness, lost: type[Request], done: bool
) -> None:
    signer = Signer.open(place, transport=direct(witness))

    def dying(request: Request) -> Answer:
        if isinstance(request, lost) and (not isinstance(request, Append) or request.kind == "nonce"):
            if done:
                signer.answer(request)
            raise KeyboardInterrupt
        return signer.answer(request)

    dies = Ledger.open(place, ask=dying)
    with pytest.raises(KeyboardInterrupt):
        draw_seed(dies, attempt_for(dies, A))
    ledger = watched(place, direct(witness))
    attempt = attempt_for(ledger, A)
    seed = draw_seed(ledger, attempt)
    assert attempt.number == 1
    assert [entry.kind for entry in ledger.entries()] == ["attempt", "seed", "nonce"]
    assert draw_seed(ledger, attempt) == seed


def test_a_missing_witness_is_one_sentence(place: Home, witness: Witness) -> None:
    ledger = watched(place, direct(witness, silent=[witness.name]))
    # What is no evidence of an attempt goes on without it.
    ledger.append("note", NoteBody())
    attempt = attempt_for(ledger, A)
    with pytest.raises(Refused, match=r"0 of 1 witnesses countersigned, 1 are required .* 'neorl witness serve'"):
        draw_seed(ledger, attempt)
    assert [entry.kind for entry in ledger.entries()] == ["note", "attempt"]
    back = watched(place, direct(witness))
    assert draw_seed(back, attempt_for(back, A))
    assert attempt_for(back, A).number == 1


def test_some_of_several_witnesses_are_enough(place: Home, tmp_path: Path) -> None:
    several = [witness_in(tmp_path / name, f"witness.example/{name}") for name in ("w1", "w2", "w3")]
    pin_witnesses(place, *several, required=2)
    ledger = watched(place, direct(*several, silent=["witness.example/w2"]))
    attempt = attempt_for(ledger, A)
    draw_seed(ledger, attempt)
    names = [Note.parse(entry.body["head"]) for entry in ledger.entries("nonce")]
    keys = [str(several[0].verifier), str(several[2].verifier)]
    assert list(ledger.entries("seed")[0].body["witnesses"]) == keys
    assert all(names[0].countersigned_by(each.verifier) for each in (several[0], several[2]))
    # Its nonces are those of the witnesses that were named: another that answers now is no substitute.
    late = watched(place, direct(*several, silent=["witness.example/w1", "witness.example/w2"]))
    with pytest.raises(Refused, match="1 of 3 witnesses countersigned, 2 are required"):
        draw_seed(late, attempt_for(late, B))


def test_a_witness_named_by_the_commitment_cannot_be_replaced(place: Home, tmp_path: Path) -> None:
    one, other = (witness_in(tmp_path / name, f"witness.example/{name}") for name in ("w1", "w2"))
    pin_witnesses(place, one, other, required=1)
    ledger = watched(place, direct(one, other))
    attempt = attempt_for(ledger, A)

    def dying(request: Request) -> Answer:
        if isinstance(request, Nonces):
            raise KeyboardInterrupt
        return Signer.open(place, transport=direct(one, other)).answer(request)

    with pytest.raises(KeyboardInterrupt):
        draw_seed(Ledger.open(place, ask=dying), attempt)
    gone = watched(place, direct(one, other, silent=["witness.example/w1"]))
    with pytest.raises(Refused, match=r"witness.example/w1, which the attempt's seed entry names, does not answer"):
        draw_seed(gone, attempt_for(gone, A))


def test_a_commitment_names_enough_pinned_witnesses(place: Home, ledger: Ledger, tmp_path: Path) -> None:
    attempt = attempt_for(ledger, A)
    stranger = str(witness_in(tmp_path / "other", "witness.example/w9").verifier)
    for keys, why in (
        ((), "the attempt names 0 pinned witnesses, 1 are required"),
        ((stranger,), "the attempt names the witness witness.example/w9, which is not pinned"),
    ):
        body = SeedBody(attempt=attempt.entry, commitment=A, witnesses=keys)
        with pytest.raises(Refused, match=why):
            ledger.append("seed", body)


def test_forged_nonces_break_the_rules(place: Home, ledger: Ledger, witness: Witness) -> None:
    """With the signing key: a forged nonce, a head without the witness, another order."""
    attempt = attempt_for(ledger, A)
    body = SeedBody(attempt=attempt.entry, commitment=hashlib.sha256(bytes(32)).hexdigest(),
                    witnesses=(str(witness.verifier),))  # fmt: skip
    ledger.append("seed", body)
    good = NonceBody.model_validate_json(ledger.request(Nonces(attempt=attempt.entry)).envelope)
    own = base64.b64encode(bytes(64)).decode()
    head = Note.parse(good.head)
    spoiled = {
        "the nonce for entry 2 was not given by witness.example/w1": good.model_copy(update={"nonces": (own,)}),
        "0 nonces given for 1 witnesses": good.model_copy(update={"nonces": ()}),
        "the head is not countersigned by witness.example/w1": good.model_copy(
            update={"head": str(Note(head.text, head.lines[:1]))}
        ),
        "'x' is not a signed note": good.model_copy(update={"head": "x"}),
        "already has nonces, or has no seed entry": good.model_copy(update={"attempt": A}),
    }
    for why, bad in spoiled.items():
        with pytest.raises(Refused, match=why):
            ledger.append("nonce", bad)
    forge(place, "nonce", spoiled["0 nonces given for 1 witnesses"])
    assert any("0 nonces given for 1 witnesses" in check.detail for check in audit(place).failures)


def test_a_future_entry_is_refused_by_witness_and_signer(place: Home, ledger: Ledger, witness: Witness) -> None:
    """Attack 10: a clock set to 2099 would date this and all later entries."""
    ahead = watched(place, direct(witness), clock=lambda: now() + timedelta(days=365 * 73))
    ahead.append("note", NoteBody(text="from the future"))
    attempt = attempt_for(ahead, A)
    with pytest.raises(Refused, match="refused to countersign: the last record is of 2099"):
        draw_seed(ahead, attempt)
    # A signer with a correct clock writes nothing after that time either.
    with pytest.raises(Refused, match="is behind the ledger's last entry"):
        watched(place, direct(witness)).append("note", NoteBody())


def test_promotions_are_countersigned_before_and_after(place: Home, ledger: Ledger, witness: Witness) -> None:
    crown(ledger, A)
    size = len(ledger.entries())
    assert Checkpoint.parse(Note.parse(witness.newest(ORIGIN)).text).size == size
    assert (place.root / "witnessed.head").read_text().startswith(f"{ORIGIN}\n{size}\n")
    silent = watched(place, direct(witness, silent=[witness.name]))
    before = champion(silent.entries(), "chemical_reactor")
    with pytest.raises(Refused, match="0 of 1 witnesses"):
        crown(silent, B)
    assert champion(silent.entries(), "chemical_reactor") == before


def test_a_certificate_names_its_witnesses_and_verifies_without_the_ledger(
    place: Home, ledger: Ledger, witness: Witness, tmp_path: Path
) -> None:
    path = certify(ledger, A)
    stated = read_certificate(path, ledger.trust).predicate
    assert stated.claim.splitlines()[1] == (
        "Witnessed by witness.example/w1: the seed could not be known before the attempt was logged"
    )
    checks = {check.name: check for check in verify_certificate(path, ledger.trust, ledger=ledger)}
    assert all(check.passed is not False for check in checks.values())
    assert checks["witnesses"].passed is True
    # Another witness is pinned than the one that took part.
    other = Home(tmp_path / "other")
    shutil.copytree(place.root, other.root)
    pin_witnesses(other, witness_in(tmp_path / "w9", "witness.example/w9"))
    found = {check.name: check for check in verify_certificate(path, Ledger.open(other, write=False).trust)}
    assert found["witnesses"].passed is False
    assert audit(place).passed
    assert any("witness.example/w1" in check.detail for check in audit(other).failures)


@pytest.mark.parametrize("field", ["secret", "nonces", "head", "value"])
def test_an_inconsistent_seed_is_found(place: Home, ledger: Ledger, field: str) -> None:
    path = certify(ledger, A)
    statement = read_certificate(path, ledger.trust).model_dump(mode="json", by_alias=True)
    other = {"secret": "00" * 32, "nonces": [base64.b64encode(bytes(64)).decode()], "head": "", "value": "00" * 32}
    statement["predicate"]["seed"][field] = other[field]
    key, _ = open_keys(place, first_use=False)
    spoiled = write_atomic(path.with_name("false.json"), key.seal(PAYLOAD_TYPE, statement))
    failed = [check.name for check in verify_certificate(spoiled, ledger.trust) if check.passed is False]
    assert failed == ["seed"]


def test_a_removed_witnesses_file_is_noticed(place: Home, ledger: Ledger) -> None:
    certify(ledger, A)
    (place.root / FILE).unlink()
    alone = open_ledger(place)
    with pytest.raises(Refused, match=r"the ledger's attempts name witnesses, but .*witnesses.yaml does not exist"):
        draw_seed(alone, attempt_for(alone, B))
    told = [check.detail for check in audit(place).failures]
    assert told == [f"none are pinned in {place.root / FILE}: but attempts name witness.example/w1"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"required": 2}, "at least 2 witnesses with different names"),
        ({"witnesses": []}, "witnesses"),
        ({"origin": "a b"}, "origin"),
        ({"more": 1}, "more"),
    ],
)
def test_a_malformed_witnesses_file_is_one_sentence(
    place: Home, ledger: Ledger, change: dict[str, object], why: str
) -> None:
    path = place.root / FILE
    found = YAML(typ="safe").load(path.read_text()) | change
    path.write_text(json.dumps(found))
    with pytest.raises(BadInput, match=why):
        draw_seed(ledger, attempt_for(ledger, A))


def test_the_ledger_must_match_a_folder_of_heads(place: Home, ledger: Ledger, witness: Witness, tmp_path: Path) -> None:
    """A folder of heads that the signing machine cannot write."""
    for i in range(3):
        ledger.append("note", NoteBody(text=f"{i}"))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "monday.head").write_text(ledger.signed_head())
    truncate(place, 1)
    key, _ = open_keys(place, first_use=False)
    older = key.seal(HEAD_TYPE, Ledger.open(place, write=False).head()._asdict())
    (place.root / "ledger.head").write_bytes(older)
    watched(place, direct(witness)).append("note", NoteBody())
    with (place.root / FILE).open("a") as file:
        file.write(f'heads: ["{tmp_path}/kept"]\n')
    with pytest.raises(Refused, match=r"monday\.head: the ledger has .* a signed head covers 3"):
        watched(place, direct(witness)).append("note", NoteBody())
    # A missing folder shows nothing: entries that need witnesses are refused.
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(Refused, match=r"kept, listed under 'heads' in witnesses\.yaml, does not exist"):
        draw_seed(alone := watched(place, direct(witness)), attempt_for(alone, A))


def test_missing_witnesses_are_reported(home: Path) -> None:
    ledger = open_ledger(Home(home))
    path = certify(ledger, C)
    assert read_certificate(path, ledger.trust).predicate.claim.splitlines()[1].startswith("No witness: ")
    assert not (home / FILE).exists()

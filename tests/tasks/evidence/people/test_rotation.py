"""Replaced and revoked keys: earlier signatures count, later ones do not, and kills lose nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import Home
from flows.cli.main import run
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.champions import champion
from tasks.evidence.decisions.verdicts import approve
from tasks.evidence.ledger import table
from tasks.evidence.ledger.entry import Entry, read_entry
from tasks.evidence.ledger.keys import kept_passphrase, open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, Ledger, insert
from tasks.evidence.ledger.protocol import Append, Rotate
from tasks.evidence.ledger.seals import seal_result, verify_result
from tasks.evidence.ledger.signing import HEAD_TYPE, SigningKey, TrustRoot, key_id, keyid_of, public_text
from tasks.evidence.people import private_keys, rotation
from tasks.evidence.people.keyring import REPLACEMENT_TYPE, RotationBody, key_of, keyring
from tasks.evidence.people.rules import rotation_content
from tasks.evidence.rules import NoteBody
from tasks.evidence.signer import Signer
from tasks.files.canonical import write_atomic
from tasks.lifecycle import keys
from tests.evidence import PLANT, certify, crown, open_ledger, put, signer_at
from tests.evidence import verdict as verdict_of
from tests.tasks.evidence.people.persons import Person, enrol

A, B, C = "a" * 64, "b" * 64, "c" * 64
SECRET = b"correct horse battery"


@pytest.fixture
def served(home: Path) -> Iterator[Ledger]:
    """A home with its signer on a socket."""
    with signer_at(Home(home)):
        yield Ledger.open(Home(home))


@pytest.fixture
def passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = write_atomic(tmp_path / "passphrase", SECRET + b"\n")
    monkeypatch.setenv(private_keys.PASSPHRASE_FILE, str(file))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return file


def forged(home: Home, key: SigningKey, kind: str, body: dict[str, object], plant: str = PLANT) -> Entry:
    """Append an entry signed by an ended key, as its thief would."""
    history = Ledger.open(home, write=False).entries()
    payload = {
        "artefacts": [],
        "body": body,
        "kind": kind,
        "plant": plant,
        "predecessor": history[-1].digest,
        "rules": history[-1].rules,
        "sequence": len(history) + 1,
        "timestamp": history[-1].timestamp,
    }
    insert(table.connect(home.ledger_url), read_entry(payload, key.seal(ENTRY_TYPE, payload)))
    ledger = Ledger.open(home, write=False)
    (home.root / "ledger.head").write_text(key.seal(HEAD_TYPE, ledger.head()._asdict()).decode())
    return ledger.entries()[-1]


def test_the_old_key_names_the_new_one_and_signs_no_more(served: Ledger) -> None:
    crown(served, A)
    home = served.home
    old, _ = open_keys(home, first_use=False)
    pem = home.signing_key.read_bytes()
    seal_result(home, "evaluate", "k", "0" * 64)
    name = keys.rotate_home(home, "an administrator", "yearly")
    ledger = Ledger.open(home)
    (entry,) = ledger.entries("rotation")
    assert keyid_of(entry.envelope) == key_id(old.public) == entry.body["old"]
    new, _ = open_keys(home, first_use=False)
    assert key_id(new.public) == name != entry.body["old"]
    # The new key shows that somebody holds it; the trust root has both, and when the old one went out.
    assert TrustRoot({name: new.public}, Path("x")).unseal(REPLACEMENT_TYPE, entry.body["possession"].encode()) == {
        "new": name,
        "old": key_id(old.public),
    }
    pins = {pin.id: pin for pin in TrustRoot.read(home.trust).pins}
    assert (pins[key_id(old.public)].until, pins[name].until) == (entry.timestamp, "")
    # A backup with the old key can be opened, but its signatures do not count.
    assert kept_passphrase(pem) != kept_passphrase(home.signing_key.read_bytes())
    assert all(kept_passphrase(each).exists() for each in (pem, home.signing_key.read_bytes()))
    # What was signed before counts; the signer goes on with the new key.
    assert champion(ledger.entries(), PLANT) is not None
    crown(ledger, B)
    assert keyid_of(ledger.entries()[-1].envelope) == name
    assert audit(home).passed
    assert not verify_result(home, "evaluate", "k", "0" * 64)


def test_signatures_by_a_replaced_key_do_not_count(served: Ledger) -> None:
    """Attack: a copy of the old key withdraws the champion or writes a note after the rotation."""
    home = served.home
    old, _ = open_keys(home, first_use=False)
    first = crown(served, A)
    keys.rotate_home(home, "an administrator", "the disk went to repair")
    body: dict[str, object] = {
        "by": "Eve",
        "composite": A,
        "promotion": first.digest,
        "version": "1",
        "why": "because",
        "signed": "",
        "signature": "",
    }
    forged(home, old, "withdrawal", body)
    ledger = Ledger.open(home)
    assert ledger.entries()[-1].kind == "void"
    assert champion(ledger.entries(), PLANT) == first
    report = audit(home)
    assert {check.name for check in report.failures} == {"people"}
    assert f"does not count: signed by key {key_id(old.public)}, which entry" in report.failures[0].detail
    # The home goes on.
    crown(ledger, B)


def test_a_revoked_home_key_permits_nothing_and_refunds_nothing(home: Path) -> None:
    """Its permissions since then are void; attempts, rejections and withdrawals still count."""
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    ledger = open_ledger(Home(home), clock=lambda: moment)
    signer = Signer.open(Home(home), clock=lambda: moment)
    first = crown(ledger, A)
    moment = datetime(2024, 2, 1, tzinfo=UTC)
    crown(ledger, B)
    ledger.append("rejection", verdict_of(ledger, C), plant=PLANT)
    attempts = len(ledger.entries("attempt"))
    old = key_id(open_keys(Home(home), first_use=False)[0].public)
    moment = datetime(2024, 3, 1, tzinfo=UTC)
    with pytest.raises(Refused, match="is not a person's key or a replaced key of the home"):
        keys.revoke(ledger, old, "2024-01-15T00:00:00.000000Z", "an administrator", "stolen")
    assert not signer.answer(Rotate(by="an administrator", why="stolen")).stale
    ledger = open_ledger(Home(home), clock=lambda: moment)
    with pytest.raises(Refused, match="a key cannot be revoked in advance"):
        keys.revoke(ledger, old, "2024-04-15T00:00:00.000000Z", "an administrator", "stolen")
    keys.revoke(ledger, old, "2024-01-15T00:00:00.000000Z", "an administrator", "stolen")
    ledger = open_ledger(Home(home), clock=lambda: moment)
    assert champion(ledger.entries(), PLANT) == first
    assert len(ledger.entries("attempt")) == attempts
    assert len(ledger.entries("rejection")) == 1
    assert {e.body["composite"] for e in ledger.entries("result")} == {A}
    report = audit(Home(home))
    assert report.passed, report.failures
    told = [check.detail for check in report.checks if check.name == "people" and check.passed is None]
    assert any(f"signed by key {old}, which was revoked from 2024-01-15" in line for line in told)
    # What is certified anew is the next attempt of its lineage.
    certify(ledger, B)
    assert [e.body["number"] for e in ledger.entries("attempt")] == [1, 2, 3, 4]
    promotion = crown(ledger, B)
    assert promotion.body["replaces"] == first.digest
    assert audit(Home(home)).passed


def test_an_external_trust_root_can_end_a_key(home: Path, tmp_path: Path) -> None:
    """The ledger has no revocation or lost it; the auditor's own trust root has the date."""
    ledger = open_ledger(Home(home))
    crown(ledger, A)
    kept = tmp_path / "trust.yaml"
    shutil.copytree(home / "policies", tmp_path / "policies")
    (pin,) = ledger.trust.pins
    for date in ("2026-01-01T00:00:00.000000Z", "2026-01-01", "2026-01-01T01:00:00+01:00"):
        rotation.write_pins(kept, [pin._replace(revoked=date)])
        read = Ledger.open(Home(home), trust=kept, write=False)
        assert read.trust.pins[0].revoked == "2026-01-01T00:00:00.000000Z"
        assert champion(read.entries(), PLANT) is None
        # By the ledger it counts: whoever wrote that line is asked.
        assert any(f"only {kept} says so" in check.detail for check in audit(Home(home), trust=kept).failures)
    # What is no date would be later than all of them as a text, and the key would count.
    rotation.write_pins(kept, [pin._replace(revoked="November 2020")])
    with pytest.raises(BadInput, match=r"'November 2020' is not a date: write 2026-11-20"):
        Ledger.open(Home(home), trust=kept, write=False)


@pytest.mark.parametrize("when", ["before the entry", "after the entry"])
def test_a_killed_rotation_leaves_one_complete_key(home: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    place = Home(home)
    signer = Signer.open(place)
    old, _ = open_keys(place, first_use=False)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(signer, "_write", kill) if when.startswith("before") else monkeypatch.setattr(
        rotation, "put_in_place", kill
    )
    with pytest.raises(KeyboardInterrupt):
        signer.answer(Rotate(by="x", why="y"))
    monkeypatch.undo()
    monkeypatch.setenv("NEORL_HOME", str(home))
    ledger = open_ledger(place)
    now, _ = open_keys(place, first_use=False)
    assert (key_id(now.public) == key_id(old.public)) is when.startswith("before")
    assert sorted(path.name for path in place.signing_key.parent.glob("*.pem")) == ["signing.pem"]
    entry = ledger.append("note", NoteBody(text="goes on"))
    assert keyid_of(entry.envelope) == key_id(now.public)
    assert audit(place).passed


def test_a_rotation_that_is_refused_leaves_nothing_behind(home: Path) -> None:
    place, moment = Home(home), datetime(2024, 1, 1, tzinfo=UTC)
    open_ledger(place, clock=lambda: moment).append("note", NoteBody(text="of a day"))
    signer = Signer.open(place, clock=lambda: moment)
    kept = kept_passphrase(place.signing_key.read_bytes())
    before = (TrustRoot.read(place.trust).pins, sorted(kept.parent.iterdir()))
    moment = datetime(2023, 1, 1, tzinfo=UTC)
    with pytest.raises(Refused, match="is behind"):
        signer.answer(Rotate(by="x", why="y"))
    assert (TrustRoot.read(place.trust).pins, sorted(kept.parent.iterdir())) == before
    assert sorted(path.name for path in place.signing_key.parent.glob("*.pem")) == ["signing.pem"]
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert not signer.answer(Rotate(by="x", why="y")).stale
    assert audit(place).passed


def test_no_client_rotates_the_homes_key_by_an_entry(home: Path) -> None:
    signer = Signer.open(Home(home))
    thief = SigningKey(Ed25519PrivateKey.generate())
    old, _ = open_keys(Home(home), first_use=False)
    body = rotation.replacement(thief, key_id(old.public), "Eve", "because").model_dump(mode="json")
    said = Append(kind="rotation", plant="", body=body, artefacts=(), predecessor="0" * 64)
    with pytest.raises(Refused, match=r"a rotation of the home's key .* cannot be appended"):
        signer.answer(said)
    assert isinstance(RotationBody.model_validate(body), RotationBody)


def test_a_person_replaces_their_own_key(served: Ledger, passphrase: Path) -> None:
    file, own = private_keys.create(served.home, "Ada Lovelace")
    private = file.with_suffix(".pem")
    assert private.stat().st_mode & 0o777 == 0o600
    assert private.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert not private.resolve().is_relative_to(served.home.root.resolve())
    keys.enrol(served, file, ["operator"], "an administrator", "known in person")
    assert keys.enrol(served, file, ["operator"], "an administrator", "again").body["public"] == own.public
    assert len(served.entries("key")) == 1
    candidate = verdict_of(served, A, "Ada Lovelace")
    before = private_keys.signatory_of("ada lovelace")
    given = approve(served, PLANT, candidate, before)
    name = keys.rotate_person(served, "Ada Lovelace", "yearly")
    found = key_of(served.entries(), "Ada Lovelace")
    assert found is not None
    assert (found.id, found.roles) == (name, ("operator",))
    # What the old one signed counts still.
    put(served, given, None)
    assert sorted(path.name for path in private.parent.iterdir()) == ["ada-lovelace.json", "ada-lovelace.pem"]
    old = next(key for key in keyring(served.entries()).values() if not key.in_force)
    pins = {pin.id: pin for pin in TrustRoot.read(served.trust.source).pins}
    assert (pins[old.id].until, pins[name].person, pins[name].roles) == (old.until, "Ada Lovelace", ("operator",))
    assert old.until
    # A thief of the old key is refused, and its owner's new one is not.
    another = verdict_of(served, B, "Ada Lovelace")
    with pytest.raises(Refused, match=f"the key {old.id} of Ada Lovelace was replaced at"):
        approve(served, PLANT, another, before)
    assert len(served.entries("approval")) == 1
    assert approve(served, PLANT, another, private_keys.signatory_of("Ada Lovelace")).body["by"] == "Ada Lovelace"
    assert audit(served.home).passed


@pytest.mark.parametrize("when", ["before the entry", "after the entry", "between the files"])
def test_a_persons_rotation_that_is_killed_is_completed(
    served: Ledger, passphrase: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    file, _ = private_keys.create(served.home, "Ada")
    keys.enrol(served, file, [], "an administrator", "known in person")
    before = key_of(served.entries(), "Ada")
    count = 0
    replace = os.replace

    def kill(*paths: Path) -> None:
        nonlocal count
        count += 1
        if count == (2 if when.startswith("between") else 1):
            raise KeyboardInterrupt
        replace(*paths)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if when.startswith("before"):
        monkeypatch.setattr(Ledger, "append", killed)
    else:
        monkeypatch.setattr(keys.os, "replace", lambda a, b: kill(a, b) if "next" in str(a) else replace(a, b))
    with pytest.raises(KeyboardInterrupt):
        keys.rotate_person(served, "Ada", "yearly")
    monkeypatch.undo()
    monkeypatch.setenv("NEORL_HOME", str(served.home.root))
    monkeypatch.setenv(private_keys.PASSPHRASE_FILE, str(passphrase))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(passphrase.parent / "config"))
    name = keys.rotate_person(served, "Ada", "yearly")
    now = key_of(served.entries(), "Ada")
    assert before is not None
    assert now is not None
    assert now.id == name != before.id
    assert len(served.entries("rotation")) == 1
    found = private_keys.signatory_of("Ada")
    assert found is not None
    approve(served, PLANT, verdict_of(served, A, "Ada"), found)


def test_a_persons_key_is_refused_without_its_passphrase(
    home: Path, passphrase: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Home(home)
    with pytest.raises(BadInput, match="so copies of it could sign as"):
        private_keys.create(place, "Ada", home / "ada.pem")
    file, _ = private_keys.create(place, "Ada")
    private = file.with_suffix(".pem")
    with pytest.raises(BadInput, match="Ada already has a key"):
        private_keys.create(place, "Ada")
    passphrase.write_text("another one\n")
    with pytest.raises(Refused, match="does not decrypt") as refusal:
        private_keys.unlock(private)
    assert "another one" not in str(refusal.value)
    passphrase.write_text("short\n")
    with pytest.raises(BadInput, match="at least 8 characters, got 5"):
        private_keys.create(place, "Ben")
    monkeypatch.delenv(private_keys.PASSPHRASE_FILE)
    with pytest.raises(Refused, match="the passphrase of Ada's key is missing"):
        private_keys.unlock(private)
    with pytest.raises(BadInput, match="at least 8 characters, got 0"):
        private_keys.create(place, "Ben")
    # An agent or a key ring, by the command that asks it.
    monkeypatch.setenv(private_keys.PASSPHRASE_COMMAND, f"printf '{SECRET.decode()}'")
    assert private_keys.unlock(private).person == "Ada"
    for command in ("false", "/no/such/agent", "true"):
        monkeypatch.setenv(private_keys.PASSPHRASE_COMMAND, command)
        with pytest.raises(BadInput, match=f"{private_keys.PASSPHRASE_COMMAND} gave"):
            private_keys.unlock(private)
    monkeypatch.setenv(private_keys.PASSPHRASE_COMMAND, f"printf '{SECRET.decode()}'")
    private.chmod(0o644)
    with pytest.raises(Refused, match="got 0644"):
        private_keys.unlock(private)
    private.chmod(0o600)
    # Beside another's public half it is nobody's.
    other, _ = private_keys.create(place, "Ben")
    shutil.copy(other, file)
    with pytest.raises(Refused, match="does not match Ben's public file"):
        private_keys.unlock(private)
    file.write_text("{}")
    with pytest.raises(BadInput, match="is not a person's public key"):
        private_keys.signatory_of("Ada")


def test_a_persons_key_is_written_to_the_given_path(
    home: Path, passphrase: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    for name in ("ada.json", "ada.key", "ada"):
        with pytest.raises(BadInput, match=r"a private key must end with \.pem, got"):
            private_keys.create(Home(home), "Ada", folder / name)
    assert list(folder.iterdir()) == []
    assert run(["keys", "create", "--person", "Ada", "--key", str(folder / "ada.v2.pem"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert private_keys.unlock(Path(made["key"])).person == "Ada"
    assert sorted(map(str, folder.iterdir())) == [made["public"], made["key"]]
    assert folder.stat().st_mode & 0o777 == 0o755
    # A folder that is made for the key is its owner's alone.
    private_keys.create(Home(home), "Ben", tmp_path / "new" / "ben.pem")
    private_keys.create(Home(home), "Carl")
    for made_folder in (tmp_path / "new", private_keys.people_folder()):
        assert made_folder.stat().st_mode & 0o777 == 0o700


def test_a_rotation_of_a_persons_key_needs_the_old_key(home: Path) -> None:
    ledger = open_ledger(Home(home))
    ada, new, eve = Person("Ada"), Person("Ada"), Person("Eve")
    enrol(ledger, ada)
    enrol(ledger, eve, by=ada)
    said = rotation.replacement(new.key, ada.id, "Ada", "because", "Ada")
    for signatory, told in ((eve.signs, "the statement of Ada is signed by Eve"), (None, "needs the signature of")):
        signature = signatory.sign(rotation_content(said)) if signatory else ""
        with pytest.raises(Refused, match=told):
            ledger.append("rotation", said.model_copy(update={"signature": signature}))
    # A key that is not in the hands of who asks, or that is known already.
    stolen = said.model_copy(update={"public": public_text(eve.key.public)})
    with pytest.raises(Refused, match="pinned in the request"):
        ledger.append("rotation", stolen)
    known = rotation.replacement(eve.key, ada.id, "Ada", "because", "Ada")
    known = known.model_copy(update={"signature": ada.signs.sign(rotation_content(known))})
    with pytest.raises(Refused, match="the ledger already knows the key"):
        ledger.append("rotation", known)

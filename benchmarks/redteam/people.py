"""Attacks on decisions: other people's names, revoked keys, and misleading pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.redteam.attacks import Attack, C
from benchmarks.redteam.stage import Stage, forge
from configs.strict import Approvers
from tasks.evidence.decisions.verdicts import approve, reject, signed
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Rotate
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, key_id, public_text
from tasks.evidence.people import rotation
from tasks.evidence.people.keyring import KEY_TYPE, KeyBody, PersonKey, RevocationBody
from tasks.evidence.people.rules import key_content, revocation_content
from tasks.evidence.people.statement import Signatory, with_key
from tasks.evidence.rules import NoteBody
from tasks.lifecycle.aliases import check_pages
from tasks.lifecycle.pages import wanted_pages
from tasks.lifecycle.policy import sign
from tasks.promote import verdict_on
from tasks.registry.reading import Page
from tasks.registry.upload import COMPOSITE

ADA = "Ada"
LOGIN = "ada"


class Persons:
    """A copy of the home in which Ada and Ben have keys and the safety policy requires keys."""

    def __init__(self, stage: Stage, **approvers: object) -> None:
        self.stage, self.ledger = stage, stage.ledger()
        self.ada, self.ben, self.eve = (SigningKey(Ed25519PrivateKey.generate()) for _ in range(3))
        self.ledger.append("key", key_body(self.ada, ADA, ["safety engineer"]))
        pin(self.ledger)
        self.ledger.append("key", self.vouched(key_body(self.ben, "Ben", by=ADA)))
        pin(self.ledger)
        rule = {"count": 1, "keys": True, **approvers}
        policy = stage.policy.model_copy(update={"approvers": Approvers.model_validate(rule)})
        sign(self.ledger, policy, ADA, "persons sign", [self.signs])
        result = stage.certified(self.ledger, C, stage.claim)
        record = stage.record(result, stage.champion.digest).model_copy(update={"author": LOGIN})
        self.candidate = self.ledger.append("candidate", record, plant=stage.plant)

    @property
    def signs(self) -> Signatory:
        return with_key(ADA, self.ada)

    def vouched(self, body: KeyBody) -> KeyBody:
        return body.model_copy(update={"signature": self.signs.sign(key_content(body))})

    def approves(self, by: str, signatory: Signatory | None = None, role: str = "") -> Entry:
        return approve(self.ledger, self.stage.plant, verdict_on(self.candidate, by, "", role), signatory)

    def promotes(self, approval: Entry) -> None:
        body = self.stage.promotion(approval, self.stage.champion.digest)
        self.ledger.append("promotion", body, plant=self.stage.plant)


def key_body(key: SigningKey, person: str, roles: Sequence[str] = (), by: str = "an administrator") -> KeyBody:
    """Return the body of an entry that enrols a person's key."""
    own = PersonKey(person=person, public=public_text(key.public), login=person.lower())
    possession = key.seal(KEY_TYPE, own.model_dump()).decode()
    return KeyBody(**own.model_dump(), roles=tuple(roles), possession=possession, by=by, why="known")


def pin(ledger: Ledger) -> None:
    """Copy the keys of the ledger into the trust root, as the owner of the home can."""
    trust = TrustRoot.read(ledger.trust.source)
    rotation.write_pins(trust.source, rotation.pins_of(trust, ledger.entries()))


def decide_as(name: str) -> Callable[[Stage], str | None]:
    """Return an attack that approves with a typed name through the home's signer."""

    def play(stage: Stage) -> str | None:
        persons = Persons(stage)
        persons.promotes(persons.approves(name))
        return None

    return play


def sign_for_another(stage: Stage) -> str | None:
    persons = Persons(stage)
    persons.promotes(persons.approves(ADA, with_key(ADA, persons.ben)))
    return None


def make_an_approver(stage: Stage) -> str | None:
    """Enrol a key of the attacker, pin it in the home, and approve with it."""
    persons = Persons(stage)
    persons.ledger.append("key", key_body(persons.eve, "Eve"))
    return None


def make_an_approver_past_the_rules(stage: Stage) -> str | None:
    persons = Persons(stage)
    forge(stage.home, "key", key_body(persons.eve, "Eve"))
    pin(stage.ledger())
    return stage.audited()


def take_keys_out_of_the_policy(stage: Stage) -> str | None:
    persons = Persons(stage)
    lax = stage.policy.model_copy(update={"approvers": Approvers(count=1)})
    sign(persons.ledger, lax, "Somebody Else", "faster")
    return None


def give_an_approval_again(stage: Stage) -> str | None:
    persons = Persons(stage)
    given = persons.approves(ADA, persons.signs)
    against = verdict_on(persons.candidate, "Ben", "no", against=True)
    reject(persons.ledger, stage.plant, against, with_key("Ben", persons.ben))
    again = {name: given.body[name] for name in ("signature", "signed")}
    approve(persons.ledger, stage.plant, verdict_on(persons.candidate, ADA, "").model_copy(update=again))
    return None


def keep_an_approval_for_another_policy(stage: Stage) -> str | None:
    persons = Persons(stage)
    body = verdict_on(persons.candidate, ADA, "")
    kept = signed(persons.ledger.entries(), "approval", stage.plant, body, persons.signs)
    policy = stage.policy.model_copy(update={"approval_days": 3})
    sign(persons.ledger, policy, ADA, "three days", [persons.signs])
    approve(persons.ledger, stage.plant, kept)
    return None


def edit_a_statement(stage: Stage) -> str | None:
    """Change the note of a statement that Ada has signed."""
    persons = Persons(stage)
    body = verdict_on(persons.candidate, ADA, "only for the summer")
    kept = signed(persons.ledger.entries(), "approval", stage.plant, body, persons.signs)
    approve(persons.ledger, stage.plant, kept.model_copy(update={"note": ""}))
    return None


def approve_what_one_ran_oneself(stage: Stage) -> str | None:
    persons = Persons(stage, not_author=True)
    persons.promotes(persons.approves(ADA, persons.signs))
    return None


def take_a_role_that_one_does_not_have(stage: Stage) -> str | None:
    persons = Persons(stage, roles=["safety engineer"])
    persons.promotes(persons.approves("Ben", with_key("Ben", persons.ben), "safety engineer"))
    return None


def rename_a_person_in_the_trust_root(stage: Stage) -> str | None:
    persons = Persons(stage)
    trust = TrustRoot.read(persons.ledger.trust.source)
    rows = [pin._replace(person="Eve") if pin.person == "Ben" else pin for pin in trust.pins]
    rotation.write_pins(trust.source, rows)
    return stage.audited()


def use_a_revoked_key(stage: Stage) -> str | None:
    persons = Persons(stage)
    _revoke(persons, key_id(persons.ben.public), datetime.now(UTC).isoformat().replace("+00:00", "Z"))
    persons.approves("Ben", with_key("Ben", persons.ben))
    return None


def rest_on_a_key_that_was_stolen_before(stage: Stage) -> str | None:
    persons = Persons(stage)
    given = persons.approves("Ben", with_key("Ben", persons.ben))
    persons.promotes(given)
    _revoke(persons, key_id(persons.ben.public), given.timestamp)
    return stage.audited()


def _revoke(persons: Persons, key: str, since: str) -> None:
    body = RevocationBody(key=key, since=since, by=ADA, why="stolen")
    persons.ledger.append(
        "revocation", body.model_copy(update={"signature": persons.signs.sign(revocation_content(body))})
    )
    pin(persons.ledger)


def rotate_to_a_key_of_ones_own(stage: Stage) -> str | None:
    """Append an entry that names the attacker's key as the home's next key."""
    thief, own = SigningKey(Ed25519PrivateKey.generate()), open_keys(stage.home, first_use=False)[0]
    stage.ledger().append("rotation", rotation.replacement(thief, key_id(own.public), "Eve", "because"))
    return None


def sign_with_a_key_that_was_replaced(stage: Stage) -> str | None:
    old, _ = open_keys(stage.home, first_use=False)
    stage.signer().answer(Rotate(by="an administrator", why="the disk went to repair"))
    pin(stage.ledger())
    forge(stage.home, "note", NoteBody(text="hello"), plant=stage.plant, key=old)
    return stage.audited()


def revoke_ones_own_key_for_fresh_attempts(stage: Stage) -> str | None:
    """Revoke the home's key from an early date, so that attempts and rejections would not count."""
    old = key_id(open_keys(stage.home, first_use=False)[0].public)
    before = len(stage.ledger().entries("attempt", stage.plant))
    stage.signer().answer(Rotate(by="an administrator", why="because"))
    ledger = stage.ledger()
    body = RevocationBody(key=old, since="2000-01-01T00:00:00.000000Z", by="an administrator", why="because")
    ledger.append("revocation", body)
    pin(ledger)
    found = stage.certified(stage.ledger(), C, stage.claim)
    number = found.body["number"]
    return f"the next attempt is number {number} all the same" if number == before + 1 else None


def reject_the_champion_below_the_lock(stage: Stage) -> str | None:
    body = verdict_on(stage.candidate, "Somebody Else", "", against=True)
    reject(stage.ledger(), stage.plant, body)
    return None


def let_a_page_say_otherwise(stage: Stage) -> str | None:
    """Edit the MLflow page of a version so that it looks like the champion's page."""
    entries = stage.ledger().entries()
    wanted = wanted_pages(entries, stage.plant, datetime.now(UTC))
    composites = {e.body["version"]: e.body["composite"] for e in entries if e.kind == "candidate"}
    found = {
        version: Page(
            {**page.tags, COMPOSITE: composites[version]}, page.description.replace("was champion", "champion")
        )
        for version, page in wanted.items()
    }
    version, page = next(iter(found.items()))
    found[version] = page._replace(description="### Status: champion of the year\n\n---\n\n")
    checks = check_pages(entries, stage.plant, found)
    return f"{checks[0].name}: {checks[0].detail}" if checks else None


PEOPLE = (
    Attack("8b", "edit a model page to look like a champion's", "MLflow", let_a_page_say_otherwise),
    Attack("9d", "approve with --by Somebody Else, without a key", "home", decide_as("Somebody Else")),
    Attack("9e", "approve with the name of a person who has a key", "home", decide_as(ADA)),
    Attack("9f", "use one person's signature for another name", "home", sign_for_another),
    Attack("9g", "enrol an approver of the attacker", "home", make_an_approver),
    Attack("9h", "enrol an approver of the attacker, bypassing the signer", "key", make_an_approver_past_the_rules),
    Attack("9i", "remove the keys from the safety policy", "home", take_keys_out_of_the_policy),
    Attack("9j", "repeat an approval after it was taken back", "home", give_an_approval_again),
    Attack("9k", "use an approval under another safety policy", "home", keep_an_approval_for_another_policy),
    Attack("9l", "change the note under a signature", "home", edit_a_statement),
    Attack("9m", "approve one's own retraining", "home", approve_what_one_ran_oneself),
    Attack("9n", "claim a role of another person", "home", take_a_role_that_one_does_not_have),
    Attack("9o", "rename a person in the trust root", "home", rename_a_person_in_the_trust_root),
    Attack("10d", "approve with a revoked key", "home", use_a_revoked_key),
    Attack("10e", "keep a champion that a stolen key approved", "home", rest_on_a_key_that_was_stolen_before),
    Attack("10f", "rotate the home's key to the attacker's", "home", rotate_to_a_key_of_ones_own),
    Attack("10g", "append an entry with a replaced key", "key", sign_with_a_key_that_was_replaced),
    Attack("10h", "revoke the home's key to get attempts back", "home", revoke_ones_own_key_for_fresh_attempts),
    Attack("11e", "reject the candidate that is already champion", "home", reject_the_champion_below_the_lock),
)

"""Names of fields in ledger entries and certificates: renaming one would make stored records unreadable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tasks.evidence.attempts import AttemptBody, ResultBody
from tasks.evidence.claims import Statement
from tasks.evidence.decisions.approvals import VerdictBody
from tasks.evidence.decisions.champions import PromotionBody, RollbackBody, WithdrawalBody
from tasks.evidence.decisions.shadows import ExtensionBody, ShadowBody
from tasks.evidence.federations import FederationBody, RoundBody
from tasks.evidence.people.keyring import KeyBody, RevocationBody, RotationBody
from tasks.evidence.policies import PolicyBody
from tasks.evidence.rules import RULES, NoteBody, RefusalBody
from tasks.evidence.witness.seeds import NonceBody, SeedBody
from tasks.references import CandidateRecord, DecisionRecord, DriftRecord, ShadowComparison

STORED = Path(__file__).with_name("fields_1.txt").read_text().split("\n")
"""Fields and values by kind of entry at commit 89a12a2, such as `approval/meaning = reviewed`."""
BODIES: dict[str, type[BaseModel]] = {
    "attempt": AttemptBody,
    "seed": SeedBody,
    "nonce": NonceBody,
    "result": ResultBody,
    "candidate": CandidateRecord,
    "decision": DecisionRecord,
    "approval": VerdictBody,
    "rejection": VerdictBody,
    "policy": PolicyBody,
    "promotion": PromotionBody,
    "rollback": RollbackBody,
    "withdrawal": WithdrawalBody,
    "shadow": ShadowBody,
    "extension": ExtensionBody,
    "comparison": ShadowComparison,
    "drift": DriftRecord,
    "federation": FederationBody,
    "round": RoundBody,
    "key": KeyBody,
    "rotation": RotationBody,
    "revocation": RevocationBody,
    "refusal": RefusalBody,
    "note": NoteBody,
    "certificate": Statement,
}


def fields(schema: dict[str, Any], types: dict[str, Any], path: str) -> Iterator[tuple[str, bool]]:
    """Every field and allowed value of a JSON schema, and whether it is required."""
    if "$ref" in schema:
        schema = types[schema["$ref"].rpartition("/")[2]]
    for value in [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]:
        yield f"{path} = {value}", False
    for option in (option for part in ("anyOf", "oneOf", "allOf") for option in schema.get(part, [])):
        yield from fields(option, types, path)
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}/{name}", name in schema.get("required", [])
        yield from fields(inner, types, f"{path}/{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties"), *schema.get("prefixItems", [])):
        if isinstance(inner, dict):
            yield from fields(inner, types, f"{path}/*")


def test_every_kind_of_entry_is_covered() -> None:
    assert set(BODIES) - {"certificate"} == set(RULES)


@pytest.mark.parametrize("kind", BODIES)
def test_stored_fields_keep_their_names(kind: str) -> None:
    schema = BODIES[kind].model_json_schema(by_alias=True)
    found = dict(fields(schema, schema.get("$defs", {}), kind))
    limited = {path.partition(" = ")[0] for path in found if " = " in path}
    stored = {line for line in STORED if line.partition("/")[0] == kind}
    # A field that was limited to some values may accept any text now.
    free = {line for line in stored if " = " in line and line.partition(" = ")[0] not in limited}
    assert stored - free - found.keys() == set(), "removed or renamed: stored entries have it"
    added = {path for path, required in found.items() if required and path not in stored}
    assert {path for path in added if path.rpartition("/")[0] in {*stored, kind}} == set(), "needs a default"

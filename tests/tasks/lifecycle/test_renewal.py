"""Renewal of a policy after an upgrade of jax alone. Records of an older version are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.redteam.plants import write_project
from configs.code import UserCode
from configs.errors import BadInput, Refused
from configs.home import Home
from configs.safety_policy import SafetyPolicy
from configs.strict import Approvers
from flows.cli.main import run
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.policies import PolicyBody, policy_content, policy_of, unmet_requirement
from tasks.evidence.recorded_steps import RecordedSteps, largest_difference, read_steps, record_file, write_steps
from tasks.files.canonical import digest_json
from tasks.lifecycle.policy import LOWERED_BY, record_steps, sign
from tasks.lifecycle.renewal import renew, renewal
from tasks.models.plants.known import KnownPlant, plant_of_code
from tasks.models.plants.step import computed_steps, drawn_inputs, step_digest, step_program
from tests.evidence import CLAIM, POLICY, open_ledger, signer_at
from tests.tasks.evidence.people.persons import Person, enrol

OLDER = "0.9.0, jaxlib 0.9.0"
ROUNDED = "level = (level + valve) - valve"
"""Addition in another order, as another compiler may choose."""


@pytest.fixture(scope="module")
def plants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KnownPlant]:
    """The tank, the same tank with an addition in another order, and a tank that is changed by hand."""
    statements = {"now": "", "before": ROUNDED, "changed": "level = level * 1.001"}
    folder = tmp_path_factory.mktemp("tanks")
    return {name: plant_of_code(write_project(folder / name, text)) for name, text in statements.items()}


@pytest.fixture
def ledger(home: Path) -> Ledger:
    return open_ledger(Home(home))


def tank_policy(known: KnownPlant, **changes: Any) -> SafetyPolicy:
    return POLICY.model_copy(update={"plant": "tank", "simulator": step_digest(known.simulator()), **changes})


def older(plants: dict[str, KnownPlant], which: str = "before") -> RecordedSteps:
    """Return the record that another jax would have left: another program of the sources that are installed now."""
    plant = plants[which].simulator()
    program, inputs = step_program(plant), drawn_inputs(plant)
    sources = plants["now"].sources(LOWERED_BY)
    return RecordedSteps(program.digest, sources, OLDER, inputs, computed_steps(program, inputs))


def signed_with(ledger: Ledger, record: RecordedSteps, **changes: Any) -> SafetyPolicy:
    write_steps(ledger.home, "tank", record)
    policy = POLICY.model_copy(update={"plant": "tank", "simulator": record.simulator, **changes})
    sign(ledger, policy, "a reviewer", "with an older jax")
    return policy


def test_signing_records_the_steps_of_the_simulator(ledger: Ledger, plants: dict[str, KnownPlant]) -> None:
    known = plants["now"]
    policy = tank_policy(known)
    record_steps(ledger, known, policy)
    (entry,) = [sign(ledger, policy, "a reviewer", "first")]
    body = entry.read(PolicyBody)
    assert [file.name for file in entry.artefacts] == ["recorded steps"]
    steps = read_steps(ledger.home, "tank", policy.simulator, body.recorded)
    assert len(steps.inputs["keys"]) == 64
    # A second implementation: the step without lowering, for one of the inputs.
    import jax

    plant = known.simulator()
    constants, start, noise = jax.random.split(
        jax.random.wrap_key_data(steps.inputs["keys"][5], impl="threefry2x32"), 3
    )
    params = plant.sample_params(constants, plant.domain)
    state, observation = plant.reset(start, params)
    leaves = jax.tree.leaves((observation, plant.step(noise, state, steps.inputs["actions"][5], params)))
    for leaf, name in zip(leaves, sorted(steps.outputs), strict=True):
        np.testing.assert_allclose(steps.outputs[name][5], leaf, rtol=1e-5, atol=1e-6)
    with pytest.raises(BadInput, match="binds the installed program: nothing to renew"):
        renewal(ledger, known)


def test_another_program_of_the_same_sources_is_renewed_by_one_person(
    ledger: Ledger, plants: dict[str, KnownPlant]
) -> None:
    ada, ben = Person("Ada Lovelace", "ada"), Person("Ben")
    enrol(ledger, ada)
    enrol(ledger, ben, by=ada)
    before = signed_with(ledger, older(plants), approvers=Approvers(count=2, keys=True))
    found = renewal(ledger, plants["now"])
    assert 0 < found.difference < 1e-5
    assert (found.before.jax, found.before.simulator) == (OLDER, before.simulator)
    with pytest.raises(Refused, match="needs the signature of a person: the policy requires"):
        renew(ledger, plants["now"], "a person", "jax 0.10.2")
    entry = renew(ledger, plants["now"], ada.name, "jax 0.10.2", [ada.signs])
    policy = policy_of(ledger.entries(), "tank")
    assert policy is not None
    assert (policy.simulator, policy.earlier_simulators) == (step_digest(plants["now"].simulator()), [before.simulator])
    assert entry.read(PolicyBody).renewed
    assert audit(ledger.home).passed
    # Certificates with the earlier digest remain valid, others do not become valid.
    claim = CLAIM.model_copy(update={"plant": "tank", "step": before.simulator})
    assert unmet_requirement(policy, claim) is None
    assert "must be" in str(unmet_requirement(policy, claim.model_copy(update={"step": "f" * 64})))
    with pytest.raises(BadInput, match="nothing to renew"):
        renew(ledger, plants["now"], ada.name, "again", [ada.signs])


def test_one_person_cannot_change_anything_else_as_a_renewal(ledger: Ledger, plants: dict[str, KnownPlant]) -> None:
    ada, ben = Person("Ada Lovelace", "ada"), Person("Ben")
    enrol(ledger, ada)
    enrol(ledger, ben, by=ada)
    policy = signed_with(ledger, older(plants), approvers=Approvers(count=2, keys=True))
    found = renewal(ledger, plants["now"])
    write_steps(ledger.home, "tank", found.now)
    lax = found.policy.model_copy(update={"p0": 0.5})
    with pytest.raises(Refused, match="a renewal may change only the simulator's digest in the policy of tank"):
        sign(ledger, lax, ada.name, "why", [ada.signs], renewed=True)
    with pytest.raises(Refused, match="needs 2 persons' signatures, got 1"):
        sign(ledger, found.policy, ada.name, "why", [ada.signs])
    # The signer compares the recorded files itself.
    forged = found.now._replace(outputs={**found.now.outputs, "000": found.now.outputs["000"] + 1})
    for record in (forged, found.now._replace(sources="0" * 64), found.now._replace(jax=OLDER)):
        write_steps(ledger.home, "tank", record)
        with pytest.raises(Refused, match="recorded steps of tank do not support a renewal"):
            sign(ledger, found.policy, ada.name, "why", [ada.signs], renewed=True)
    assert policy_of(ledger.entries(), "tank") == policy


def test_recorded_steps_that_are_altered_are_found(ledger: Ledger, plants: dict[str, KnownPlant]) -> None:
    policy = signed_with(ledger, older(plants))
    path = record_file(ledger.home, "tank", policy.simulator)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Refused, match=r"must have SHA-256 [0-9a-f]{12}, got [0-9a-f]{12}: restore it from a backup"):
        renewal(ledger, plants["now"])
    assert [check.name for check in audit(ledger.home).failures] == ["files"]


def _domain(record: RecordedSteps) -> RecordedSteps:
    return record._replace(inputs={n: v * (2 if n.startswith("domain") else 1) for n, v in record.inputs.items()})


@pytest.mark.parametrize(
    ("which", "change", "said"),
    [
        ("changed", lambda record: record, r"64 recorded steps of tank differ by up to 0\.\d+ .* rounding of 1e-05"),
        ("before", lambda record: record._replace(sources="0" * 64), "the source of tank changed .*, not only jax"),
        ("before", lambda record: record._replace(jax=None), "neither the source nor jax .* reads other inputs"),
        ("before", _domain, "the operating domain of tank changed since the policy was signed"),
    ],
)
def test_more_than_another_jax_needs_a_new_policy(
    ledger: Ledger,
    plants: dict[str, KnownPlant],
    which: str,
    change: Callable[[RecordedSteps], RecordedSteps],
    said: str,
) -> None:
    record = change(older(plants, which))
    if record.jax is None:
        from tasks.files.provenance import jax_versions

        record = record._replace(jax=jax_versions())
    signed_with(ledger, record)
    with pytest.raises(Refused, match=f"{said}.*sign a new policy"):
        renewal(ledger, plants["now"])


def test_a_policy_without_recorded_steps_is_signed_anew(ledger: Ledger, plants: dict[str, KnownPlant]) -> None:
    with pytest.raises(BadInput, match="tank has no safety policy"):
        renewal(ledger, plants["now"])
    sign(ledger, tank_policy(plants["before"]), "a reviewer", "by an earlier version")
    with pytest.raises(BadInput, match="tank has a safety policy without recorded steps"):
        renewal(ledger, plants["now"])


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ([[1.0, 200.0], [2.0, 100.0]], 0.0),
        ([[1.0, 200.0], [2.002, 100.0]], 1e-3),
        ([[1.0, 201.0], [2.0, 100.0]], 5e-3),
        ([[np.nan, 200.0], [2.0, 100.0]], np.inf),
        ([[1.0, 200.0]], np.inf),
    ],
)
def test_differences_are_relative_to_the_largest_value_of_each_output(found: list[Any], difference: float) -> None:
    recorded = {"0": np.array([[1.0, 200.0], [2.0, 100.0]], np.float32)}
    assert largest_difference(recorded, {"0": np.array(found, np.float32)}) == pytest.approx(difference, rel=1e-3)
    assert largest_difference({"0": np.array([1, 2])}, {"0": np.array([1, 3])}) == np.inf
    assert largest_difference({"0": np.zeros(2)}, {"0": np.array([0.0, 1e-9])}) == np.inf
    assert largest_difference({"0": np.array([np.inf, 1.0])}, {"0": np.array([np.inf, 1.0])}) == 0.0


def test_statements_of_earlier_versions_agree() -> None:
    """Their policies had no fields for the simulator, and their entries no recorded steps."""
    body = PolicyBody(policy=POLICY, by="Ada", why="first", replaces=None)
    written = POLICY.model_dump(mode="json", exclude={"simulator", "earlier_simulators", "own_lineage", "most_unlike"})
    assert policy_content(body).about == {"policy": digest_json(written), "replaces": None}


def test_the_command_shows_the_comparison_and_signs_only_with_a_reason(
    home: Path, plants: dict[str, KnownPlant], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = plants["now"]
    assert isinstance(known.source, UserCode)
    assert known.source.project is not None
    with signer_at(Home(home)):
        signed_with(Ledger.open(Home(home)), older(plants))
        monkeypatch.chdir(known.source.project)
        file = Path("tank.yaml")
        file.write_text("plant: plants/tank.py\n")
        command = ["policy", "renew", "tank"]
        assert run(command) == 2
        assert (
            "the code of tank is not installed: name a run of this plant with --run RUN.yaml."
            in capsys.readouterr().err
        )
        assert run([*command, "--run", "tank.yaml"]) == 0
        shown = capsys.readouterr().out
        assert "64 recorded steps differ by at most " in shown
        assert f"jax: {OLDER} -> 0." in shown
        assert len(Ledger.open(Home(home)).entries("policy")) == 1
        assert run([*command, "--run", "tank.yaml", "--why", "jax"]) == 0
        assert "the renewed policy of tank is ledger entry 2" in capsys.readouterr().out

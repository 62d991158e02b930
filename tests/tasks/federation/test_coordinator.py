"""Federations in this process: results, ledger entries and resumption."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from configs.federation import Federation
from configs.home import Home
from neorl_core.federated.federate import federated_scaling
from neorl_core.networks import policy_act
from neorl_core.training.preparation import merge_moments, moments
from tasks.evidence.audit.audit import audit
from tasks.evidence.federations import RoundBody, rounds_of
from tasks.evidence.ledger.ledger import Ledger
from tasks.federation import coordinator
from tasks.federation.coordinator import Result, run_federation
from tasks.federation.messages import Question, read_text
from tasks.federation.site import Participant
from tasks.federation.transport.network import InProcess, Message, MissingAnswer
from tasks.files.arrays import read_npz
from tasks.models.bundles.policy_file import load_policy
from tests.evidence import open_ledger
from tests.tasks.federation.sites import federation, participants

NAMES = ("north", "south", "east")
Change = Callable[[str, int, Message], Message | MissingAnswer]


class Changed(InProcess):
    """Sites with answers changed by (site, round, answer) -> answer."""

    def __init__(self, sites: Mapping[str, Participant], change: Change) -> None:
        super().__init__({name: site.answer for name, site in sites.items()})
        self._change = change

    def exchange(self, questions: Mapping[str, Message], seconds: float) -> dict[str, Message | MissingAnswer]:
        answers = super().exchange(questions, seconds)
        for name, message in questions.items():
            question, answer = read_text(Question, message), answers[name]
            if question.kind == "round" and isinstance(answer, Message):
                answers[name] = self._change(name, question.number, answer)
        return answers


class Place:
    """A coordinator with sites."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, Home(folder / "home")
        self.ledger: Ledger = open_ledger(self.home)
        self.sites = participants(folder, NAMES)
        self.lines = list[str]()

    def run(self, config: Federation, change: Change = lambda name, number, answer: answer) -> Result:
        return run_federation(config, Changed(self.sites, change), self.home, self.ledger, self.lines.append)

    @property
    def rounds(self) -> list[RoundBody]:
        entries = self.ledger.entries()
        return rounds_of(entries, [e.digest for e in entries if e.kind == "federation"][-1])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_round_is_the_weighted_mean_and_all_get_the_policy(place: Place) -> None:
    result = place.run(federation(NAMES, rounds=2))
    assert [(one.number, len(one.participants), one.left_out) for one in place.rounds] == [(1, 3, ()), (2, 3, ())]
    ours = load_policy(result.policy)
    for name in NAMES:
        (theirs,) = (place.folder / name / "kept").glob("*/policy.npz")
        np.testing.assert_array_equal(theirs.read_bytes(), result.policy.read_bytes())
    # The scaling equals that of all rows in one place.
    rows = [site.transitions for site in place.sites.values()]
    spec = place.sites["north"].spec
    expected = federated_scaling(rows, spec).normaliser
    np.testing.assert_array_equal(ours.policy.normaliser.mean, expected.mean)
    np.testing.assert_array_equal(ours.policy.normaliser.action_half_range, expected.action_half_range)
    known = reduce(merge_moments, map(moments, rows))
    whole = np.concatenate([np.asarray(each.observation, np.float64) for each in rows])
    np.testing.assert_allclose(known.observation_mean, whole.mean(axis=0), rtol=1e-6)
    assert np.all(np.isfinite(policy_act(ours.policy, jnp.zeros(spec.observation.size))))
    assert next(check for check in audit(place.home).checks if check.name == "federations").passed


def test_interrupted_run_resumes_to_the_same_weights(place: Place, tmp_path: Path) -> None:
    config = federation(NAMES, method="scaffold")
    whole = Place(tmp_path / "whole").run(config)

    def interrupt(name: str, number: int, answer: Message) -> Message:
        if number == 3:
            raise KeyboardInterrupt
        return answer

    with pytest.raises(KeyboardInterrupt):
        place.run(config, interrupt)
    assert len(place.rounds) == 2
    # The sites are ahead of the coordinator and repeat the round; one site was restarted.
    place.sites["east"] = participants(tmp_path / "again", NAMES)["east"]
    place.sites["east"].folder = place.folder / "east" / "kept"
    assert place.run(config).digest == whole.digest
    size = len(place.ledger.entries())
    assert place.run(config).digest == whole.digest
    assert len(place.ledger.entries()) == size


def test_invalid_and_missing_answers_are_left_out_and_recorded(place: Place) -> None:
    def lie(name: str, number: int, answer: Message) -> Message | MissingAnswer:
        if name == "south" and number == 1:
            return answer._replace(arrays={n: np.full_like(a, np.nan) for n, a in answer.arrays.items()})
        if name == "south" and number == 2:
            return answer._replace(arrays={n: a[..., :1] for n, a in answer.arrays.items()})
        if name == "east" and number == 3:
            return answer._replace(text=answer.text.replace('"log_weight":', '"log_weight":1'))
        return MissingAnswer("absent", "it is not connected") if name == "north" and number == 4 else answer

    place.run(federation(NAMES, rounds=4), lie)
    left_out = [[(one.site, one.why, one.detail) for one in body.left_out] for body in place.rounds]
    assert [[one[:2] for one in each] for each in left_out] == [
        [("south", "refused")],
        [("south", "refused")],
        [("east", "refused")],
        [("north", "absent")],
    ]
    assert "finite" in left_out[0][0][2]
    assert "must have shape" in left_out[1][0][2]
    assert "for the 200 rows" in left_out[2][0][2]


def test_unbounded_changes_and_weights_are_left_out(place: Place) -> None:
    """One change overflows the float32 norm, one FEDORA weight is huge."""

    def lie(name: str, number: int, answer: Message) -> Message:
        if name == "east" and number == 1:
            arrays = {n: np.full_like(a, 1e25) if n.startswith("change/") else a for n, a in answer.arrays.items()}
            return answer._replace(arrays=arrays)
        if name == "south" and number == 2:
            return answer._replace(text=json.dumps(json.loads(answer.text) | {"log_weight": 1e300}))
        return answer

    place.run(federation(NAMES, rounds=2, method="fedora"), lie)
    left_out = [[(one.site, one.why, one.detail) for one in body.left_out] for body in place.rounds]
    assert [[one[:2] for one in each] for each in left_out] == [[("east", "refused")], [("south", "refused")]]
    assert "must be finite in float32" in left_out[0][0][2]
    assert "the log-weight must be at most 1e6 in size, got 1e+300" in left_out[1][0][2]


def test_median_resists_a_false_change_and_records_its_distance(place: Place) -> None:
    def lie(name: str, number: int, answer: Message) -> Message:
        grown = {n: 1e4 * a if n.startswith("change/") else a for n, a in answer.arrays.items()}
        return answer._replace(arrays=grown) if name == "east" else answer

    place.run(federation(NAMES, rounds=1, aggregate={"kind": "median"}), lie)
    (body,) = place.rounds
    distances = {one.site: one.distance or 0.0 for one in body.participants}
    assert distances["east"] > 100 * max(distances["north"], distances["south"])


def test_round_with_too_few_answers_is_repeated_then_refused(place: Place) -> None:
    config = federation(NAMES, rounds=2, minimum_sites=3, tries=2)

    def deaf(name: str, number: int, answer: Message) -> Message | MissingAnswer:
        return MissingAnswer("late", "no answer within 1 s") if name == "east" and number == 2 else answer

    with pytest.raises(Refused, match="round 2 needs answers of 3 sites, got 2 in the last of 2 tries"):
        place.run(config, deaf)
    assert [(one.number, one.completed) for one in place.rounds] == [(1, True), (2, False), (2, False)]
    assert place.rounds[-1].after == place.rounds[0].after
    assert place.run(config).rounds == 2


def test_secure_sums_give_the_same_weights_and_hide_changes(place: Place, tmp_path: Path) -> None:
    open_sums = Place(tmp_path / "open").run(federation(NAMES, rounds=2))
    place.run(federation(NAMES, rounds=2, secure_sums=True))
    one, other = (load_policy(path).policy.params for path in (open_sums.policy, next(_policies(place.home))))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), one, other)
    assert all(part.norm is None and part.distance is None for body in place.rounds for part in body.participants)


def test_secure_sum_continues_without_a_dropped_site(place: Place, tmp_path: Path) -> None:
    def drop(name: str, number: int, answer: Message) -> Message | MissingAnswer:
        return MissingAnswer("late", "no answer within 1 s") if (name, number) == ("south", 1) else answer

    config = federation(NAMES, rounds=2)
    expected = Place(tmp_path / "open").run(config, drop)
    place.run(config.model_copy(update={"secure_sums": True}), drop)
    one, other = (load_policy(path).policy.params for path in (expected.policy, next(_policies(place.home))))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), one, other)
    assert [[left.site for left in body.left_out] for body in place.rounds] == [["south"], []]


def test_private_changes_are_clipped_and_epsilon_is_recorded(place: Place) -> None:
    private = {"clip": 0.01, "noise": 50.0, "insist": True}
    with pytest.raises(Refused, match="times the clip norm"):
        place.run(federation(NAMES, rounds=2, privacy={**private, "insist": False}))
    place.run(federation(NAMES, rounds=2, privacy=private))
    assert all(part.norm <= 0.0100001 for body in place.rounds for part in body.participants if part.norm)
    first, second = (body.epsilon or 0.0 for body in place.rounds)
    assert 0 < first < second < 1


def test_noise_changes_the_weights_and_differs_per_run(tmp_path: Path) -> None:
    digests = set()
    for i, noise in enumerate((0.0, 50.0, 50.0)):
        place = Place(tmp_path / str(i))
        place.run(federation(NAMES, rounds=1, privacy={"clip": 0.01, "noise": noise, "insist": True}))
        digests.add(place.rounds[0].after)
    assert len(digests) == 3


def test_noise_key_uses_all_bits() -> None:
    drawn = np.stack([jax.random.key_data(coordinator.secret_key()) for _ in range(8)])
    assert len(set(drawn[:, 0].tolist())) == len(set(drawn[:, 1].tolist())) == 8


def test_site_that_missed_the_warm_up_observes_its_rows(place: Place) -> None:
    def lose(name: str, number: int, answer: Message) -> Message | MissingAnswer:
        if name == "south" and number < 3:
            for path in (place.folder / name / "kept").glob("*/site-*.npz"):
                path.unlink()
            return MissingAnswer("absent", "it is not connected")
        return answer

    small = {"hidden": [8], "model_hidden": [8], "horizon": 3, "warm_up_updates": 8}
    place.run(federation(NAMES, algorithm="bptt", hyperparameters=small, rounds=3), lose)
    for name, steps in {"north": 12, "south": 8}.items():
        (path,) = (place.folder / name / "kept").glob("*/site-000003.npz")
        kept = read_npz(path)
        assert kept["train/step"] == steps
        assert np.all(kept["train/learner/model/low"] < kept["train/learner/model/high"])


def test_site_enforces_its_terms(place: Place) -> None:
    def refused(**terms: Any) -> None:
        north = place.sites["north"]
        north.terms = north.terms.model_copy(update=terms)
        place.run(federation(NAMES))

    for terms, sentence in (
        ({"least_rows": 201}, "the site has 200 rows, but least_rows is 201"),
        ({"least_rows": 1, "secure_sums": True}, "requires secure sums"),
        ({"secure_sums": False, "private": True}, "requires noise"),
        ({"private": False, "plant": "water_treatment"}, "the federation is for plant double_mass"),
    ):
        with pytest.raises(Refused, match=f"1 of 3 sites did not send moments.*{sentence}"):
            refused(**terms)
    assert not place.ledger.entries("federation")


def test_unreadable_question_gives_one_sentence(place: Place) -> None:
    site = place.sites["north"]
    for text in ("", "{}", '{"kind": "rows"}'):
        with pytest.raises(BadInput, match=r"the message is not a Question.*run the same version"):
            site.answer(Message(text))


def _policies(home: Home) -> Any:
    return (home.root / "federations").glob("*/policy.npz")

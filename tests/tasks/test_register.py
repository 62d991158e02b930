"""What goes into the registry with a candidate: flat parameters and numbers, and only what is the version's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.record import Record
from tasks.register import artifacts, curves, metrics, parameters, tags
from tests.sample_record import sample_record


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record whose gates all passed."""
    return sample_record(tmp_path_factory.mktemp("sample"))[0]


def test_parameters_and_metrics_are_flat(sample: Record) -> None:
    flat = dict(parameters(sample))
    assert flat["train.algorithm"] == sample.run.train.algorithm
    assert flat["selected.alpha"] == "2.5"
    assert flat["selected.seed"] == "3"
    found = dict(metrics(sample))
    assert found["difference/plant_controller/lower"] == pytest.approx(0.091)
    assert found["difference/logged_controller_OPE/lower"] == pytest.approx(0.15)
    assert found["certificate/episodes"] == 4097
    assert found["score"] == 87.5


def test_every_digest_and_the_head_become_tags(sample: Record) -> None:
    digests = sample.digests.model_copy(update={"certificate": None})
    assert set(tags(sample)) - set(tags(sample.model_copy(update={"digests": digests}))) == {"neorl.certificate"}
    assert sample.ledger is not None
    assert tags(sample)["neorl.ledger_head"] == sample.ledger.signed
    assert "neorl.ledger_head" not in tags(sample.model_copy(update={"ledger": None}))


def test_files_lie_where_reviewers_look(sample: Record) -> None:
    found = [(artifact.folder, artifact.path.name) for artifact in artifacts(sample, {"ope": Path("ope.png")})]
    assert found == [
        ("plots", "ope.png"),
        ("data_docs", "docs"),
        ("certificates/candidate", "candidate.dsse.json"),
        ("certificates/fallback", "fallback.dsse.json"),
    ]


def test_the_selected_member_s_curve_is_sent(sample: Record) -> None:
    # Members can be fewer than the curves' rows: a member whose parameters are not finite is left out.
    population = sample.population.model_copy(update={"members": sample.population.members[2:]})
    evaluation = sample.evaluation.model_copy(update={"selected": 1, "members": sample.evaluation.members[2:]})
    fewer = sample.model_copy(update={"population": population, "evaluation": evaluation})
    assert curves(fewer)["critic_loss"].values.tolist() == curves(sample)["critic_loss"].values.tolist()

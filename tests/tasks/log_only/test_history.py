"""A process whose level's rate of change nobody measures: policy, learned model and shadow see earlier values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from configs.home import Home
from flows.preflight import checked_run
from neorl_core.types import History
from tasks.evaluation.evaluate import evaluate
from tasks.ingest import ingest
from tasks.log_only.checks import estimate, examine, held_out_logs
from tasks.log_only.learned_model import fit_model, load_model, one_step_scores
from tasks.log_only.protection import protect
from tasks.log_only.shadow_comparison import proposals
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.references import Champion
from tasks.training.train import train
from tests import small_process


@pytest.mark.slow
def test_a_process_with_a_history_goes_through_every_stage(tmp_path: Path) -> None:
    config = small_process.project(tmp_path)
    text = config.read_text().replace("updates: 600, seeds: 2", "updates: 100, seeds: 1")
    config.write_text(text + "history: {level: 2, valve: 1}\n")
    run, home = checked_run(config), Home(tmp_path / "home")
    dataset = ingest(home, run, (small_process.export(tmp_path / "log.csv"),))
    fallback = protect(home, run, dataset)
    population = train(home, run.for_training(), dataset, protection=fallback)
    bundle = population.members[0].bundle
    composite = load_bundle(bundle.folder, bundle.digest, run.source)[1]
    assert composite.history == History((2, 0, 0), (1,))
    assert composite.shield.references.shape[1] == 4
    evaluation = evaluate(home, run, dataset, population, Champion())
    assert np.isfinite(evaluation.members[0].disagreement)
    model = fit_model(home, run, dataset)
    spec, logs = plant_of(run).spec, held_out_logs(run, dataset)
    # The model's file says itself which history it sees, whatever a later run asks for.
    found = load_model(model, spec)
    assert found.model.history == composite.history
    np.testing.assert_array_equal(found.rest, composite.shield.rest)
    np.testing.assert_allclose(one_step_scores(found, logs).mean(), 1.0, rtol=1e-4)
    assert examine(home, run, dataset, population, evaluation).bounds.beyond_bounds <= 0.0
    assert np.isfinite(estimate(home, run, dataset, population, evaluation, model).returns.value)
    made = proposals(spec, composite, logs)
    assert np.isfinite(made.given).all()
    assert np.isfinite(made.asked).all()

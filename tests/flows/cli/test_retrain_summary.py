"""The summary of `neorl retrain`."""

from __future__ import annotations

from flows.cli.retrain_summary import summary_lines
from tasks.record import VERDICTS
from tasks.references import ChampionInForce, Gate, Interval, Outcome

CHAMPION = ChampionInForce(version="2", url="", composite="c" * 64, since="2026", approver="a reviewer", claim="P(...)")
OUTCOME = Outcome(
    run="1",
    run_key="k",
    plant="double_mass",
    verdict="waiting",
    headline="The candidate passed every gate.",
    gates=(
        Gate(name="simulator", passed=True, detail="errors are small"),
        Gate(name="fallback", passed=False, detail="9 violations"),
        Gate(name="servability", passed=None, detail="not attempted"),
    ),
    score=71.3,
    difference=Interval(value=0.1, lower=-0.1, upper=0.3),
    ope_difference=Interval(value=0.2, lower=0.1, upper=0.3),
    population="p",
    dataset="d",
    champion=CHAMPION,
    waiting=("3",),
    links={"report": "report.html"},
    seconds={"ingest": 1.0, "train": 2.5},
    reused=("ingest",),
)


def test_summary_has_numbers_gates_and_next_step() -> None:
    text = "\n".join(summary_lines(OUTCOME))
    for words in (
        f"double_mass: {VERDICTS['waiting']}.",
        "champion     version 2, composite cccccccccccc",
        "minus the plant's controller: +0.1 [-0.1, +0.3]",
        "minus the logged controller: +0.2 [+0.1, +0.3]",
        "score 71.3 by rollout, for comparison only; published: data 56.6",
        "gate simulator    pass     errors are small",
        "gate fallback     FAIL     9 violations",
        "gate servability  not run  not attempted",
        "next: neorl approve double_mass 3",
        "ingest 1.0 (reused), train 2.5; 3.5 in all",
    ):
        assert words in text


def test_unsupported_estimate_is_named_and_claims_are_indented() -> None:
    nan = float("nan")
    champion = CHAMPION.model_copy(update={"claim": "P(...).\nWitnessed by w"})
    unknown = Interval(value=nan, lower=nan, upper=nan)
    text = "\n".join(summary_lines(OUTCOME.model_copy(update={"ope_difference": unknown, "champion": champion})))
    assert "minus the logged controller: not supported by the logs\n" in text
    assert "  certificate  of the champion: P(...).\n               Witnessed by w\n" in text


def test_summary_without_champion_or_candidate() -> None:
    refused = OUTCOME.model_copy(update={"verdict": "refused", "champion": None, "waiting": ()})
    text = "\n".join(summary_lines(refused))
    assert "Neither the candidate nor the plant's own controller is certified: there is no champion." in text
    assert "none, and no candidate waits for approval: no policy may run this plant" in text
    assert "stays" not in text


def test_unchanged_run_shows_the_earlier_decision() -> None:
    unchanged = OUTCOME.model_copy(update={"verdict": "unchanged", "decided": "refused"})
    assert f"{VERDICTS['unchanged']}. Earlier decision: {VERDICTS['refused']}." in "\n".join(summary_lines(unchanged))

"""Summary of a retraining for the terminal."""

from __future__ import annotations

from math import isfinite

from tasks.record import mark, verdict_text
from tasks.references import NO_CLAIM, Outcome
from tasks.simulate import PUBLISHED_SCORES


def summary_lines(outcome: Outcome) -> list[str]:
    """Return the lines that `neorl retrain` prints at the end."""
    champion, certificate = outcome.champion, outcome.certificate
    lines = ["", f"{outcome.plant}: {_sentence(outcome)}", f"  {outcome.headline}"]
    if outcome.shadow is not None:
        lines.append(f"  shadow       version {outcome.shadow.version}, until {outcome.shadow.until}; {NO_CLAIM}")
    if champion is None and outcome.shadow is None and not outcome.waiting:
        lines.append("  champion     none, and no candidate waits for approval: no policy may run this plant")
    if champion is not None:
        lines.append(f"  champion     version {champion.version}, composite {champion.composite[:12]}")
        lines.append(f"  certificate  of the champion: {_claim(champion.claim or 'none')}")
    if certificate is not None and (champion is None or certificate.composite != champion.composite):
        lines.append(f"  certificate  of the candidate: {_claim(certificate.claim)}")
    if outcome.difference is not None:
        lines.append(f"  return per episode on the simulator, minus the plant's controller: {outcome.difference}")
    if outcome.ope_difference is not None:
        gain = outcome.ope_difference if isfinite(outcome.ope_difference.value) else "not supported by the logs"
        lines.append(f"  return on held-out logs (OPE), minus the logged controller: {gain}")
    if outcome.score is not None and outcome.plant in PUBLISHED_SCORES:
        others = ", ".join(f"{name} {value:g}" for name, value in PUBLISHED_SCORES[outcome.plant].items())
        lines.append(f"  score {outcome.score:.1f} by rollout, for comparison only; published: {others}")
    lines += [f"  gate {gate.name:<12} {mark(gate):<8} {gate.detail}" for gate in outcome.gates]
    lines += [f"  {name:<12} {url}" for name, url in outcome.links.items()]
    spent = ", ".join(
        f"{name} {seconds:.1f}" + (" (reused)" if name in outcome.reused else "")
        for name, seconds in outcome.seconds.items()
    )
    lines.append(f"  seconds      {spent}; {sum(outcome.seconds.values()):.1f} in all")
    following = [f"neorl approve {outcome.plant} {version}" for version in outcome.waiting]
    lines += [f"  next: {command}" for command in following or [f"neorl report {outcome.plant}"]]
    return lines


def _claim(text: str) -> str:
    """Indent the second and later lines of a claim."""
    return text.replace("\n", f"\n{' ' * 15}")


def _sentence(outcome: Outcome) -> str:
    """Return the verdict as a sentence; for unchanged inputs, add the earlier verdict."""
    text = verdict_text(outcome.verdict, outcome.gates, outcome.champion)
    if outcome.decided is not None:
        text += f". Earlier decision: {verdict_text(outcome.decided, outcome.gates, outcome.champion)}"
    return f"{text}."

"""Command `neorl learn`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import BadInput
from flows.cli.common import MOST_SEED, AsJson, ConfigFile, emit, keep_compiled, show_table


def learn(
    config: ConfigFile,
    updates: Annotated[int, typer.Option(help="Gradient steps, each on new episodes.", min=2)] = 600,
    episodes: Annotated[int, typer.Option(help="New episodes of a gradient step.", min=1, max=65_536)] = 64,
    protected: Annotated[
        int | None, typer.Option(help="Gradient steps at the end that run behind the shield; by default half.", min=1)
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            help="Margin below which a step costs points: a share of the limit's range, in the limit's unit if the "
            "limit has one side.",
            min=0.001,
            max=1e6,
        ),
    ] = 0.15,
    seed: Annotated[int, typer.Option(help="Random seed of the policy.", min=0, max=MOST_SEED)] = 0,
    out: Annotated[Path | None, typer.Option(help="Output folder; by default PLANT-learned.")] = None,
    as_json: AsJson = False,
) -> None:
    """Learn a policy in a run's simulator, without logs, gates, certificate or servers.

    The simulator must be smooth: the return of an episode is differentiated by the weights of the policy. The policy
    corrects the action of the plant's controller. It learns over the run's operating domain, at the end behind the
    run's shield. New episodes then compare it with the plant's controller.

    Example: neorl learn configs/chemical_reactor.yaml
    """
    keep_compiled(create_home=True)
    from neorl_core.online import LEARNERS
    from neorl_core.training.population import configure
    from tasks.learning import learn as in_simulator
    from tasks.models.plants.opening import open_run
    from tasks.progress import StageProgress

    behind = max(updates // 2, 1) if protected is None else protected
    if behind >= updates:
        raise BadInput(f"--protected is {behind}, but must be less than the {updates} --updates: reduce it")
    settings = {"episodes": episodes, "margin": margin, "warm_up_updates": updates - behind}
    chosen = configure(LEARNERS["analytic_gradient"].unbound, settings, updates)
    run = open_run(config)
    with StageProgress("learn") as progress:
        found = in_simulator(run, out or Path(f"{run.plant}-learned"), seed, updates, chosen, progress)
    if as_json:
        controllers = {
            who: each._asdict() | {"gain": each.gain and each.gain._asdict()} for who, each in found.controllers.items()
        }
        about = found._asdict() | {"folder": str(found.folder), "controllers": controllers, "better": found.better}
        emit(about, True)
        return
    rows = [
        (
            who,
            f"{each.score:.2f}",
            f"{each.gain.value:+.2f} [{each.gain.lower:+.2f}, {each.gain.upper:+.2f}]" if each.gain else "",
            each.violations,
        )
        for who, each in found.controllers.items()
    ]
    columns = ("controller", "score", "gain, 95 % interval", f"episodes of {found.episodes:,} beyond a limit")
    show_table(columns, rows)
    print(f"\nthe fallback took over {found.taken_over:.1%} of the steps; trained in {found.seconds:.0f} s")
    print(f"bundle and picture: {found.folder}, SHA-256 {found.digest}")
    if found.better:
        print("next: load the bundle by tasks.models.bundles.agents.Agent, or 'neorl retrain' to learn and certify")
    else:
        print("next: keep the plant's controller, or learn with more --updates or another --margin")

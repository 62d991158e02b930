"""Command `neorl learn`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.common import MOST_SEED, AsJson, ConfigFile, emit, keep_compiled, setting, show_table


def learn(
    config: ConfigFile,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="analytic_gradient or ppo. Default: the learner in the run's file, or else ppo for a discrete action "
            "and analytic_gradient for continuous actions."
        ),
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Updates, each on new episodes. Default: as in the run's file.", min=2)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A hyper-parameter, such as episodes=16 or hidden=[32,32]; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the policy.", min=0, max=MOST_SEED)] = 0,
    out: Annotated[Path | None, typer.Option(help="Output folder; by default PLANT-learned.")] = None,
    as_json: AsJson = False,
) -> None:
    """Learn a policy in a run's simulator, without logs, gates, certificate or servers.

    `analytic_gradient` differentiates the return of an episode by the weights of the policy, so the simulator must be
    smooth; `ppo` needs no gradients. The policy moves the plant's controller. It learns over the run's operating
    domain, at the end behind the run's shield. New episodes then compare it with the plant's controller.

    Example: neorl learn configs/chemical_reactor.yaml
    """
    keep_compiled(create_home=True)
    from tasks.learning import chosen
    from tasks.learning import learn as in_simulator
    from tasks.models.plants.opening import open_run
    from tasks.progress import StageProgress

    run = open_run(config)
    by = chosen(run, algorithm, updates, dict(map(setting, settings or [])))
    with StageProgress("learn") as progress:
        found = in_simulator(run, out or Path(f"{run.plant}-learned"), seed, by, progress)
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
        print("next: keep the plant's controller, or learn with more --updates or another margin")

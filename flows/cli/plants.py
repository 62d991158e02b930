"""Commands `neorl plants` and `neorl plants show`."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.home import Home
from flows.cli.common import AsJson, emit, group, say, show_table
from neorl_core.plants import NAMES

if TYPE_CHECKING:
    from neorl_core.types import Controller, Params
    from tasks.models.plants.known import KnownPlant

plants = group(
    f"""List the simulated plants, or show one plant.

    Built-in plants: {", ".join(NAMES)}.

    The column 'tuned controller' is a score: 0 means idling, 100 the best known controller.

    Example: neorl plants
    """
)
EPISODES = 64


class PlantFacts(NamedTuple):
    """Properties of a plant, with units and limits by name."""

    about: str
    observation: Mapping[str, str]
    action: Mapping[str, str]
    limits: Mapping[str, str]
    horizon: int
    period: str
    agents: tuple[str, ...]


@plants.callback(invoke_without_command=True, no_args_is_help=False)
def listing(context: typer.Context, as_json: AsJson = False) -> None:
    """List the plants."""
    if context.invoked_subcommand is not None:
        return
    from configs.plant_scores import plant_scores
    from neorl_core.plants import PLANTS
    from tasks.models.plants.known import plant_named
    from tasks.models.user_code.loading import installed

    scores, table = plant_scores(), {name: _facts(plant_named(name)) for name in (*PLANTS, *installed())}
    if as_json:
        found = {
            name: facts._asdict()
            | {"scores": {who: each.model_dump(by_alias=True) for who, each in scores.get(name, {}).items()}}
            for name, facts in table.items()
        }
        emit({"plants": found}, True)
        return
    rows = [
        (
            name,
            len(facts.observation),
            len(facts.action),
            facts.period,
            facts.horizon,
            f"{scores[name]['tuned'].score:.1f}" if name in scores else "–",
            "; ".join(f"{limit} {text}" for limit, text in facts.limits.items()),
        )
        for name, facts in table.items()
    ]
    show_table(("plant", "observed", "manipulated", "period", "steps", "tuned controller", "hard limits"), rows)
    print("\nnext: neorl plants show NAME")


@plants.command()
def show(
    name: Annotated[str, typer.Argument(help="A name from 'neorl plants', or a plant's file such as plants/tank.py.")],
    out: Annotated[Path | None, typer.Option(help="File for the picture; by default in the home.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the episodes.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Show a plant's signals, units and limits, and draw an episode under each controller and the champion.

    Example: neorl plants show water_treatment --out tanks.png
    """
    from tasks.models.plants.known import plant_at
    from tasks.pictures.style import check_picture
    from tasks.pictures.trajectories import controllers_of, draw_plant

    known, home = plant_at(name), Home.locate()
    name, plant = known.name, known.simulator()
    path = out or home.folder("plants") / f"{name}.png"
    check_picture(path)
    compared = controllers_of(plant) | _champion(home, known)
    found, facts = draw_plant(plant, path, seed, EPISODES, compared), _facts(known)
    if as_json:
        controllers = {
            who: {"return": result.mean_return, "score": result.score, "violated": result.violated}
            for who, result in found.items()
        }
        about = {"plant": name, **facts._asdict(), "episodes": EPISODES}
        emit({**about, "controllers": controllers, "picture": str(path)}, True)
        return
    print(f"{name}: {facts.horizon} steps of {facts.period}; {facts.about}\n")
    rows = [("observed", *each) for each in facts.observation.items()]
    show_table(("", "name", "unit"), [*rows, *(("manipulated", *each) for each in facts.action.items())])
    print()
    show_table(("hard limit", "range"), list(facts.limits.items()))
    print()
    show_table(
        ("controller", "return", "score", f"episodes of {EPISODES} beyond a limit"),
        [(who, f"{r.mean_return:.4g}", f"{r.score:.1f}", r.violated) for who, r in found.items()],
    )
    print(f"\npicture: {path}")


def _champion(home: Home, known: KnownPlant) -> dict[str, tuple[Controller, Params]]:
    """Return the plant's champion behind its shield, if the plant has one that runs on this simulator."""
    from neorl_core.safety.composite import composite_controller
    from tasks.evidence.bundle_signature import bundle_folder
    from tasks.evidence.decisions.champions import champion
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.models.bundles.bundle import is_current, load_bundle

    entry = champion(Ledger.open(home, write=False).entries(), known.name) if Ledger.exists(home) else None
    if entry is None:
        return {}
    digest = entry.body["composite"]
    folder = bundle_folder(home, known.name, digest)
    if not is_current(folder, known):
        say(f"the champion is not shown: it was made for another version of {known.name}")
        return {}
    composite = load_bundle(folder, digest, known.source)[1]
    return {f"champion, version {entry.body['version']}": (composite_controller(known.simulator()), composite)}


def _facts(known: KnownPlant) -> PlantFacts:
    spec = known.spec
    return PlantFacts(
        about=known.about,
        observation=dict(zip(spec.observation.names, spec.observation.units, strict=True)),
        action=dict(zip(spec.action.names, spec.action.units, strict=True)),
        limits={c.name: _range(c.low, c.high, c.unit) for c in spec.constraints},
        horizon=spec.horizon,
        period=f"{spec.dt:g} {spec.time_unit}",
        agents=tuple(view.name for view in known.simulator().agents),
    )


def _range(low: float, high: float, unit: str) -> str:
    """Return a range such as "0 to 20 cm", or "at most 40 N" if one end is infinite."""
    text = f"at most {high:g}" if isinf(low) else f"at least {low:g}" if isinf(high) else f"{low:g} to {high:g}"
    return f"{text} {unit}".removesuffix(" 1")

"""A user's algorithm in its process: attacks have no effect outside, and programs give the same results."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.fit import FitResult, fit
from neorl_core.safety.program import ImpureProgram, check_pure
from neorl_core.training.population import Algorithm
from neorl_core.types import Transition
from tasks.models.user_code import isolated
from tasks.models.user_code.algorithms import algorithm_at, algorithm_of_code, opened_learner
from tasks.models.user_code.contract import TRIED, load_algorithm
from tasks.models.user_code.loading import ALGORITHM, find_code
from tasks.training.train import train
from tests.small_data import reactor_dataset, reactor_run
from tests.tasks.files.test_sandbox import restrictions

FILE = "algorithms/median_cloning.py"
LOSS = "    return jnp.mean(jnp.abs("


UNIX = "import socket; socket.socket(socket.AF_UNIX).connect('{}')"


ANSWER = "open(box + '/answer.json', 'w').write({!r})"
ATTACKS = {
    "fifo": ("os.mkfifo(box + '/answer.json')", "answer.json of the isolated process is not a plain file"),
    "link": ("os.symlink('SECRET', box + '/answer.json')", "left no file answer.json"),
    "missing": ("", "left no file answer.json"),
    "garbage": (ANSWER.format("\x1b[2J"), "answered '"),
    "list": (ANSWER.format("[1]"), r"answered '\[1\]'"),
    "deep": (ANSWER.format("[" * 100_000), r"answered '\[\["),
    "wrong type": (ANSWER.format('{"error": 1}'), "answered"),
    "foreign key": (ANSWER.format('{"error": "x", "isolation": "perfect"}'), "answered"),
}
"""Code of an attack on the files of the process, and the message."""
DESCRIPTION = {"batches_per_update": 1, "usual_updates": 0, "discrete": False, "warm_up": False}


def answering(code: str) -> str:
    """Return code that runs, tells this process that there is an answer, and waits."""
    return f"import os, time; box = os.environ['TMPDIR']; {code or 'pass'}; os.write(3, b'\\n'); time.sleep(100)"


def attacking(project: Path, code: str, traced: bool) -> str:
    """Add code at the import, or in the traced loss."""
    path = project / FILE
    text = path.read_text()
    if traced:
        path.write_text(text.replace(LOSS, f"    {code}\n{LOSS}"))
    else:
        path.write_text(text.replace("class Config(", f"{code}\n\n\nclass Config(", 1))
    return FILE


def toy(algorithm: Algorithm) -> FitResult:
    draw = np.random.default_rng(1)
    shapes = ((200, 3), (200, 2), (200,), (200,), (200, 3))
    fields = [jnp.asarray(draw.uniform(-1, 1, shape), jnp.float32) for shape in shapes]
    logged = Transition(*fields, jnp.zeros(200))
    return fit(logged, TRIED, algorithm, updates=20, seeds=[0, 1], overrides={"hidden": [8]}, batch_size=16)


def with_extra(project: Path, extra: str) -> str:
    """Add a field to the state."""
    path = project / FILE
    text = path.read_text().replace("    hyper: Hyperparameters\n", "    hyper: Hyperparameters\n    extra: object\n")
    text = text.replace("hyperparameters(config))", f"hyperparameters(config), {extra})")
    path.write_text(text.replace("state.hyper), {", "state.hyper, state.extra), {"))
    return FILE


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_environment_is_empty(project: Path, monkeypatch: pytest.MonkeyPatch, traced: bool) -> None:
    monkeypatch.setenv("NEORL_SECRET", "swordfish")
    with pytest.raises(BadInput, match=r"KeyError.*NEORL_SECRET") as refused:
        algorithm_at(attacking(project, "import os; os.environ['NEORL_SECRET']", traced), project)
    assert "median_cloning.py" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_file_outside_is_written_or_read(project: Path, traced: bool) -> None:
    if "Landlock" not in restrictions():
        pytest.skip("Landlock is missing: files are not restricted")
    target = project.parent / "home" / "planted"
    target.parent.mkdir(exist_ok=True)
    secret = project.parent / "secret"
    secret.write_text("swordfish")
    original = (project / FILE).read_text()
    for code in (f"open({str(target)!r}, 'w')", f"open({str(secret)!r})"):
        (project / FILE).write_text(original)
        with pytest.raises(BadInput, match=r"PermissionError.*median_cloning|median_cloning.*PermissionError"):
            algorithm_at(attacking(project, code, traced), project)
    assert not target.exists()


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_connection_reaches_a_server(project: Path, traced: bool) -> None:
    if "no network" not in restrictions():
        pytest.skip("user namespaces are missing: the network is not restricted")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        with pytest.raises(BadInput, match="algorithms/median_cloning"):
            algorithm_at(attacking(project, code, traced), project)
        with pytest.raises(TimeoutError):
            server.accept()


def test_no_connection_reaches_a_unix_socket(project: Path) -> None:
    """The signer of a home listens on such a socket, and obeys the user's processes."""
    if "seccomp" not in restrictions():
        pytest.skip("seccomp is missing: Unix sockets are not restricted")
    place = project.parent / "signer.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()
        server.settimeout(0.2)
        with pytest.raises(BadInput, match=r"PermissionError.*Operation not permitted"):
            algorithm_at(attacking(project, UNIX.format(place), False), project)
        with pytest.raises(TimeoutError):
            server.accept()


def test_an_error_names_file_and_line(project: Path) -> None:
    code = "raise ValueError('wrong batch')"
    found = algorithm_at(attacking(project, f"if batch.reward.shape != (4,): {code}", True), project)
    with pytest.raises(BadInput, match="ValueError: wrong batch: correct it") as refused:
        toy(found.algorithm)
    assert f"{project / FILE} line " in str(refused.value)


def test_calls_of_the_host_are_refused(project: Path) -> None:
    found = algorithm_at(attacking(project, "jax.debug.print('{x}', x=batch.reward)", True), project)
    with pytest.raises(BadInput, match="the program calls the host by 'debug"):
        toy(found.algorithm)


def test_a_forged_program_is_refused() -> None:
    """A process that the user's code controls can answer with any program."""

    name = "xla_ffi_python_cpu_callback"
    called = jax.jit(jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((), jnp.float32)))
    checks = [jax.export.DisabledSafetyCheck.custom_call(name)]
    exported = jax.export.export(called, disabled_checks=checks)(jnp.float32(0))
    with pytest.raises(ImpureProgram, match="callback"):
        check_pure(isolated.Program(exported))


def test_an_end_of_the_process_is_one_sentence(project: Path) -> None:
    code = "import os; print('no luck', flush=True); os._exit(3)"
    with pytest.raises(Refused, match=r"isolated process of .*median_cloning.py ended \(no luck\)"):
        algorithm_at(attacking(project, code, False), project)


@pytest.mark.parametrize("name", ["fifo", *(pytest.param(n, marks=pytest.mark.slow) for n in ATTACKS if n != "fifo")])
def test_a_forged_file_is_refused_in_one_sentence(
    project: Path, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(isolated, "SECONDS", 30.0)
    secret = project.parent / "secret"
    secret.write_text("swordfish")
    code, said = ATTACKS[name]
    with pytest.raises(Refused, match=said) as refused:
        algorithm_at(attacking(project, answering(code.replace("SECRET", str(secret))), False), project)
    assert "\n" not in str(refused.value)
    assert "swordfish" not in str(refused.value) + "".join(capfd.readouterr())
    assert not isolated._current[0].running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("td3_bc", {}, "the name 'td3_bc' of a built-in algorithm"),
        ("x", {"class": 1}, "the settings {'class': 1}"),
        ("x", {"a": {"recipe": {"evil": 1}}}, "the settings"),
        ("x", {"a": {"tuple": 7}}, "the settings"),
    ],
)
def test_a_forged_description_is_refused(project: Path, name: str, settings: dict[str, int], said: str) -> None:
    answer = json.dumps({**DESCRIPTION, "name": name, "settings": settings})
    with pytest.raises(Refused, match=said):
        algorithm_at(attacking(project, answering(ANSWER.format(answer)), False), project)


def test_prints_cannot_control_the_terminal(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('\\x1b[2J passed', flush=True); raise ValueError('\\x1b[31m')"
    with pytest.raises(BadInput, match=r"ValueError '\\x1b\[31m"):
        algorithm_at(attacking(project, code, False), project)
    assert "\\x1b[2J passed" in capfd.readouterr().err


@pytest.mark.slow
def test_the_output_file_cannot_be_replaced(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    secret = project.parent / "secret"
    secret.write_text("swordfish")
    code = f"import os; os.symlink({str(secret)!r}, os.environ['TMPDIR'] + '/output'); os._exit(1)"
    with pytest.raises(Refused, match=r"ended \(no message\)"):
        algorithm_at(attacking(project, code, False), project)
    assert "swordfish" not in capfd.readouterr().err


@pytest.mark.slow
def test_files_are_limited(project: Path) -> None:
    code = "import os; open(os.environ['TMPDIR'] + '/large', 'wb').truncate(2**28 + 1)"
    with pytest.raises(BadInput, match="File too large"):
        algorithm_at(attacking(project, code, False), project)


@pytest.mark.slow
def test_the_restrictions_cannot_be_forged(project: Path) -> None:
    forged = '{"isolation": "audited"}'
    code = f"import pydantic; pydantic.BaseModel.model_dump_json = lambda *_: {forged!r}"
    with pytest.raises(Refused, match=re.escape(f"answered {forged!r}")):
        algorithm_at(attacking(project, code, False), project)
    assert isolated._current[0].isolation == restrictions()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("jnp.zeros((0, 3))", r"an empty array of shape \(0, 3\) at state.extra, which is not stored: leave it out"),
        pytest.param("key", r"a typed random key at state.extra.*jax.random.key_data\(key\)", marks=pytest.mark.slow),
    ],
)
def test_states_that_no_checkpoint_stores_are_refused(project: Path, extra: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        algorithm_at(with_extra(project, extra), project)


@pytest.mark.slow
def test_renamed_fields_are_refused(project: Path) -> None:
    """Python gives the second field of the same name a name that a new NamedTuple cannot have."""
    with_extra(project, "Pair(jnp.zeros(()), jnp.zeros(()))")
    code = "import collections; Pair = collections.namedtuple('Pair', ['a', 'a'], rename=True)"
    reference = attacking(project, code, False)
    with pytest.raises(BadInput, match="Pair has the field '_1': give each field a name"):
        toy(algorithm_at(reference, project).algorithm)


@pytest.mark.slow
def test_a_long_answer_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "SECONDS", 4.0)
    with pytest.raises(Refused, match="gave no answer within 4 s: simplify the code"):
        algorithm_at(attacking(project, "import time; time.sleep(100)", False), project)
    assert not isolated._current[0].running


@pytest.mark.slow
def test_the_state_must_be_from_init(project: Path) -> None:
    found = algorithm_at(FILE, project).algorithm
    with pytest.raises(ValueError, match="the state is not from init of median_cloning"):
        found.act((jnp.zeros(3),), jnp.zeros(3))


@pytest.mark.slow
def test_a_state_with_other_arrays_is_refused(project: Path) -> None:
    """The contract's own batches have four rows, those of the training 16."""
    path = project / FILE
    text = path.read_text()
    changed = "state.hyper if batch.reward.shape == (4,) else {}"
    path.write_text(text.replace("State(actor, optimiser, state.hyper), {", f"State(actor, optimiser, {changed}), {{"))
    with pytest.raises(BadInput, match="update must return a state with the same arrays as its argument"):
        toy(algorithm_at(FILE, project).algorithm)


@pytest.mark.slow
def test_a_program_of_the_process_is_checked_here(project: Path) -> None:
    """The user's code removes the checks from its own process, and calls the host."""
    name = "xla_ffi_python_cpu_callback"
    code = "from neorl_core.safety import program; program.IMPURE = {}; program.impurity = lambda exported: ''; "
    code += "from jax import export; original = export.export; export.export = lambda function, platforms: original("
    code += f"function, platforms=platforms, disabled_checks=[export.DisabledSafetyCheck.custom_call('{name}')])"
    attacking(project, code, False)
    call = f"jax.ffi.ffi_call('{name}', jax.ShapeDtypeStruct((), 'float32'), vmap_method='sequential')(batch.reward)"
    found = algorithm_at(attacking(project, f"batch = batch._replace(action=batch.action + {call})", True), project)
    with pytest.raises(BadInput, match=r"the program does more than compute.*callback"):
        toy(found.algorithm)


@pytest.mark.slow
def test_programs_give_the_results_of_the_code(project: Path) -> None:
    found = algorithm_at(FILE, project)
    assert found.isolation
    apart = toy(found.algorithm)
    # A restarted process gives the same programs.
    isolated.end_process()
    here = toy(load_algorithm(find_code(FILE, project, ALGORITHM)))
    for one, other in zip(jax.tree.leaves(apart.policies), jax.tree.leaves(here.policies), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_this_process_never_imports_the_code(project: Path) -> None:
    marker = project.parent / "imported"
    original = (project / FILE).read_text()
    guard = f"import sys\nif 'pytest' in sys.modules: open({str(marker)!r}, 'w')\n"
    (project / FILE).write_text(original.replace("class Config(", f"{guard}\n\nclass Config(", 1))
    toy(algorithm_at(FILE, project).algorithm)
    assert not marker.exists()


class Killed(Exception):
    """Ends a training after a checkpoint."""


def opened_run(project: Path) -> OpenedRun:
    """Return a run of the project's algorithm with a checkpoint every 10 of 40 updates."""
    settings = {"algorithm": FILE, "updates": 40, "checkpoint_every": 10, "hyperparameters": {"hidden": [8]}}
    run = reactor_run(train=settings)
    return run.model_copy(update={"train": opened_learner(run.train, project)})


def stop(done: int, *_: object) -> None:
    if done == 20:
        raise Killed


def forget() -> None:
    """Forget everything that a new process of NeoRL does not have: the isolated process and compiled programs."""
    isolated.end_process()
    algorithm_of_code.cache_clear()
    jax.clear_caches()


@pytest.mark.slow
def test_a_stopped_training_resumes_bit_for_bit(project: Path, tmp_path: Path) -> None:
    opened = opened_run(project)
    homes = [Home(tmp_path / name) for name in ("whole", "stopped")]
    datasets = [reactor_dataset(home, tmp_path, 0.1) for home in homes]
    whole = train(homes[0], opened, datasets[0])
    with pytest.raises(Killed):
        train(homes[1], opened, datasets[1], stop)
    forget()
    told: list[int] = []
    resumed = train(homes[1], opened, datasets[1], lambda done, *_: told.append(done))
    assert told[0] == 20
    assert [member.bundle.digest for member in resumed.members] == [member.bundle.digest for member in whole.members]
    assert resumed.learners[0].isolation == whole.learners[0].isolation != ""


@pytest.mark.slow
def test_a_resumed_training_refuses_other_programs(project: Path, tmp_path: Path) -> None:
    text, scaled = (project / FILE).read_text(), LOSS.replace("jnp.mean", "(1 + time.time_ns() % 997) * jnp.mean", 1)
    (project / FILE).write_text(text.replace(LOSS, f"    import time\n{scaled}"))
    opened, home = opened_run(project), Home(tmp_path / "home")
    dataset = reactor_dataset(home, tmp_path, 0.1)
    with pytest.raises(Killed):
        train(home, opened, dataset, stop)
    forget()
    with pytest.raises(Refused, match="which this training began with"):
        train(home, opened, dataset)

"""Attacks by forged programs, and programs that must stay allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from jax import export
from jax.extend.mlir import serialize_portable_artifact
from jax.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo

from neorl_core.algorithms import ALGORITHMS
from neorl_core.algorithms import NAMES as LEARNERS
from neorl_core.plants import NAMES, PLANTS
from neorl_core.safety.composite import composite_controller, make_composite
from neorl_core.safety.operations import DEPTH
from neorl_core.safety.program import (
    ImpureProgram,
    Program,
    check_pure,
    episode_program,
    lower,
    read_program,
    simulator_program,
)
from neorl_core.training.population import configure
from neorl_core.types import PlantSpec, Space, Transition

T = "tensor<4xf32>"
VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
EFFECTS = jax.make_jaxpr(lambda: jax.debug.print("x"))().effects
SPEC = PlantSpec(
    "p", Space(("x",), ("1",), (-1.0,), (1.0,)), Space(("u",), ("1",), (-1.0,), (1.0,)), (), 1.0, "s", 9, (0.0, 1.0)
)


def stored(function: Callable[..., Any], *arguments: Any, platform: str = "cpu") -> Program:
    """Lower, store and read a program."""
    return read_program(lower(function, *arguments, platform=platform).serialise())


def forged(module: str, **fields: Any) -> Program:
    """Return a program of a vector with this module, as a hostile process can write it."""
    honest = export.export(jax.jit(lambda x: (x,)), platforms=("cpu",))(VECTOR)
    with mlir.make_ir_context():
        code = mlir.module_to_bytecode(mlir.ir.Module.parse(module))
    version = stablehlo.get_version_from_compatibility_requirement(stablehlo.StablehloCompatibilityRequirement.WEEK_4)
    data = serialize_portable_artifact(code, version, True)
    return read_program(bytes(dataclasses.replace(honest, mlir_module_serialized=data, **fields).serialize()))


def main(body: str, rest: str = "") -> str:
    return f"module {{ func.func public @main(%a: {T}) -> {T} {{ {body} }} {rest} }}"


def own(body: str, rest: str = "") -> str:
    """Return the module of a main function that gives %0."""
    return main(f"{body} return %0 : {T}", rest)


TOKEN = "%t = stablehlo.create_token : !stablehlo.token"
MANY = "".join(f"%{i + 1} = stablehlo.add %{i}, %a : {T} " for i in range(3))
GETRF = (
    "%r = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<2x2xf32> "
    '%0:3 = "stablehlo.custom_call"(%r) {call_target_name = "lapack_sgetrf_ffi", api_version = 4 : i32} : '
    "(tensor<2x2xf32>) -> (tensor<4xf32>, tensor<1xi32>, tensor<i32>) return %0#0 : tensor<4xf32>"
)


def custom(name: str, extra: str = "") -> str:
    call = f'call_target_name = "{name}", api_version = 4 : i32 {extra}'
    return own(f'%0 = "stablehlo.custom_call"(%a) {{{call}}} : ({T}) -> {T}')


def chain(length: int) -> str:
    """Return functions that call each other in a row."""
    name = [f"@f{number}" for number in range(length + 1)]
    inner = "".join(
        f"func.func private {one}(%a: {T}) -> {T} {{ %0 = func.call {other}(%a) : ({T}) -> {T} return %0 : {T} }} "
        for one, other in pairwise(name)
    )
    return own(
        f"%0 = func.call @f0(%a) : ({T}) -> {T}",
        f"{inner} func.func private {name[-1]}(%a: {T}) -> {T} {{ return %a : {T} }}",
    )


def sort(comparison: str, stable: str = "false") -> str:
    return own(
        f'%0 = "stablehlo.sort"(%a) <{{dimension = 0 : i64, is_stable = {stable}}}> ({{ '
        f"^bb0(%x: tensor<f32>, %y: tensor<f32>): {comparison} stablehlo.return %t : tensor<i1> }}) : ({T}) -> {T}"
    )


CALL = f"%0 = func.call @f(%a) : ({T}) -> {T}"
ATTACKS = {
    "wrong shapes of a kernel": (main(GETRF), "'lapack_sgetrf_ffi', which JAX does not make"),
    "unknown target": (custom("own"), "'own', which JAX does not make"),
    "target of another library": (custom("my_lapack_ffi"), "'my_lapack_ffi', which JAX does not make"),
    "target of an accelerator": (custom("cu_own_ffi"), "'cu_own_ffi', which JAX does not make"),
    "target with a space": (custom("Qr xla_ffi_python_cpu_callback"), "which JAX does not make"),
    "allowed name in an attribute": (custom("own", ', x = "stablehlo.custom_call @Qr"'), "'own', which JAX does not"),
    "unwritable name": (custom("\\FF"), "a part that cannot be checked"),
    "composite": (
        own(
            f'%0 = stablehlo.composite "own.op" %a {{decomposition = @f}} : ({T}) -> {T}',
            f"func.func private @f(%a: {T}) -> {T} {{ return %a : {T} }}",
        ),
        "the composite 'own.op'",
    ),
    "hidden state": (
        own(
            "%l = stablehlo.constant dense<0.0> : tensor<f32> %h = stablehlo.constant dense<1.0> : tensor<f32> "
            "%s = stablehlo.constant dense<4> : tensor<1xi64> "
            '%0 = "stablehlo.rng"(%l, %h, %s) {rng_distribution = #stablehlo<rng_distribution UNIFORM>} : '
            f"(tensor<f32>, tensor<f32>, tensor<1xi64>) -> {T}"
        ),
        "the operation stablehlo.rng",
    ),
    "outfeed": (
        main(
            f'{TOKEN} %1 = "stablehlo.outfeed"(%a, %t) {{outfeed_config = ""}} : ({T}, !stablehlo.token) -> '
            f"!stablehlo.token return %a : {T}"
        ),
        "the operation stablehlo.create_token",
    ),
    "infeed": (
        own(
            f'{TOKEN} %0:2 = "stablehlo.infeed"(%t) {{infeed_config = ""}} : (!stablehlo.token) -> ({T}, '
            "!stablehlo.token)"
        ).replace("return %0 ", "return %0#0 "),
        "the operation stablehlo.create_token",
    ),
    "recursion": (own(CALL, f"func.func private @f(%a: {T}) -> {T} {{ {CALL} return %0 : {T} }}"), "calls itself"),
    "long chain of calls": (chain(DEPTH + 1), f"nests more than {DEPTH} calls"),
    "no body": (own(CALL, f"func.func private @f(%a: {T}) -> {T}"), "the function 'f' without a body"),
    "no main": (main(f"return %a : {T}").replace("@main", "@other"), "no function 'main'"),
    "two results": (
        main(f"return %a, %a : {T}, {T}").replace(f"-> {T}", f"-> ({T}, {T})"),
        "other arguments or results of 'main'",
    ),
    "another shape": (main(f"return %a : {T}").replace("4xf32", "5xf32"), "other arguments or results of 'main'"),
    "dialect": (main(f"return %a : {T}", 'sdy.mesh @mesh = <["x"=2]>'), "the operation sdy.mesh"),
    "mesh of devices": (
        own(f'%0 = sdy.sharding_constraint %a <@empty_mesh, [{{"x"}}]> : {T}').replace(
            "module {", 'module { sdy.mesh @empty_mesh = <["x"=1]>'
        ),
        "the operation sdy.mesh",
    ),
    "attribute of a constraint": (
        own(f"%0 = sdy.sharding_constraint %a <@empty_mesh, [{{}}]> {{mhlo.own = 1 : i32}} : {T}").replace(
            "module {", "module { sdy.mesh @empty_mesh = <[]> {stablehlo.mesh = {axes = []}}"
        ),
        "a constraint of devices",
    ),
    "attribute of an operation": (
        own(f'%0 = stablehlo.sine %a {{mhlo.frontend_attributes = {{_xla_compute_type = "host"}}}} : {T}'),
        "the attribute 'mhlo.frontend_attributes'",
    ),
    "attribute of an argument": (
        main(f"return %a : {T}").replace(f"%a: {T}", f"%a: {T} {{tf.aliasing_output = 0 : i32}}"),
        "the attribute 'tf.aliasing_output'",
    ),
    "attribute of the module": (
        main(f"return %a : {T}").replace("module", "module attributes {mhlo.own = 1 : i32}", 1),
        "the attribute 'mhlo.own'",
    ),
    "type without a shape": (
        own(
            "%1 = stablehlo.add %a, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<?xf32> "
            f"%0 = stablehlo.sine %1 : (tensor<?xf32>) -> {T}"
        ),
        "not arrays of fixed shapes",
    ),
    "false order": (sort("%t = stablehlo.constant dense<true> : tensor<i1>"), "a sort with a comparison"),
    "false order of equal numbers": (
        sort("%t = stablehlo.compare LE, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>"),
        "a sort with a comparison",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_program_is_refused(attack: str) -> None:
    module, reason = ATTACKS[attack]
    with pytest.raises(ImpureProgram, match=reason):
        check_pure(forged(module))


@pytest.mark.parametrize("result", ["tensor<2xi32>", "tensor<1xi32>", "tensor<3xi32>"])
def test_only_the_results_of_a_kernel_differ(result: str) -> None:
    """The attributes are JAX's, and the kernel writes two pivots whatever the size of the array is."""
    honest = lower(jax.lax.linalg.lu, jax.ShapeDtypeStruct((2, 2), jnp.float32)).text
    line = next(line for line in honest.splitlines() if "lapack_sgetrf_ffi" in line)
    call = line[line.index("stablehlo.custom_call") :]
    call = call.replace("%arg0", "%r").replace("-> (tensor<2x2xf32>, tensor<2xi32>", f"-> (tensor<2x2xf32>, {result}")
    reshaped = f"%r = stablehlo.reshape %a : ({T}) -> tensor<2x2xf32>"
    body = f"{reshaped} %k:3 = {call}\n %0 = stablehlo.reshape %k#0 : (tensor<2x2xf32>) -> {T}"
    if result == "tensor<2xi32>":
        check_pure(forged(own(body)))
        return
    with pytest.raises(ImpureProgram, match="'lapack_sgetrf_ffi', which JAX does not make"):
        check_pure(forged(own(body)))


def test_an_honest_program_in_text_is_allowed() -> None:
    """The attacks above are refused for their reason, and not because text of this form is refused."""
    check_pure(forged(main(f"return %a : {T}")))
    check_pure(forged(chain(DEPTH // 2)))


def test_deep_regions_are_refused() -> None:
    inner = f"stablehlo.return %a : {T}"
    for number in range(DEPTH + 2):
        case = f'%b{number} = "stablehlo.case"(%i) ({{ {inner} }}) : (tensor<i32>) -> {T}'
        inner = f"{case} stablehlo.return %b{number} : {T}"
    last = f"%b{DEPTH + 1}"
    body = inner.removesuffix(f"stablehlo.return {last} : {T}") + f"return {last} : {T}"
    with pytest.raises(ImpureProgram, match="nested regions"):
        check_pure(forged(main(f"%i = stablehlo.constant dense<0> : tensor<i32> {body}")))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ordered_effects": tuple(EFFECTS)}, "side effects"),
        ({"unordered_effects": tuple(EFFECTS)}, "side effects"),
        ({"platforms": ("cpu", "cuda")}, "several platforms"),
        ({"nr_devices": 2}, "several platforms or devices"),
        ({"module_kept_var_idx": ()}, "other arguments"),
        ({"module_kept_var_idx": (7,)}, "other arguments"),
        ({"out_avals": ()}, "other arguments or results"),
        ({"mlir_module_serialized": b"garbage"}, "a part that cannot be checked"),
    ],
)
def test_fields_that_contradict_the_module_are_refused(fields: dict[str, Any], reason: str) -> None:
    honest = stored(lambda x: (x + 1,), VECTOR)
    with pytest.raises(ImpureProgram, match=reason):
        check_pure(Program(dataclasses.replace(honest.exported, **fields)))


def test_stored_derivatives_are_refused() -> None:
    """Nobody checks the program of the derivatives."""
    program = lower(lambda x: x**2, VECTOR)
    check_pure(read_program(program.serialise()))
    with pytest.raises(ImpureProgram, match="stored derivatives"):
        check_pure(read_program(program.serialise(derivatives=True)))


def test_calls_of_kernels_and_hidden_states_are_not_lowered() -> None:
    shapes = (jax.ShapeDtypeStruct((1, 1), jnp.float32), jax.ShapeDtypeStruct((1,), jnp.int32))
    for function, reason in (
        (lambda x: jax.ffi.ffi_call("lapack_sgetrf_ffi", (*shapes, shapes[1]))(x), "'ffi_call', which may write"),
        (lambda x: x + jax.lax.rng_uniform(0.0, 1.0, x.shape), "'rng_uniform', which has a hidden state"),
    ):
        with pytest.raises(ImpureProgram, match=reason):
            lower(lambda x, inner=function: jax.jit(inner)(x), jax.ShapeDtypeStruct((300, 300), jnp.float32))


def test_unused_memory_and_unlisted_operations_are_not_lowered() -> None:
    with pytest.raises(ImpureProgram, match="'empty', which reads unused memory"):
        lower(lambda x: x + jax.lax.empty(x.shape, x.dtype), VECTOR)
    with pytest.raises(ImpureProgram, match="'ApproxTopK', which JAX does not make"):
        lower(lambda x: jax.lax.approx_max_k(x, 2), VECTOR)


def test_other_effects_are_not_lowered() -> None:
    """The name of the primitive is unknown; only the effect shows that the primitive does more than compute."""
    primitive = jax.extend.core.Primitive("own")
    primitive.def_effectful_abstract_eval(lambda x: (x, EFFECTS))
    with pytest.raises(ImpureProgram, match="'own'"):
        lower(lambda x: primitive.bind(x), VECTOR)


def test_custom_calls_without_guarantee_are_not_lowered() -> None:
    with pytest.raises(ImpureProgram, match="custom call 'cuhybrid_eig_real'"):
        lower(jnp.linalg.eigvals, jax.ShapeDtypeStruct((3, 3), jnp.float32), platform="cuda")


class Bus:
    def send(self, x: Any) -> Any:
        return jnp.sin(x)


def custom_call_net(x: Any) -> Any:
    return jnp.cos(x)


def test_names_of_the_users_code_do_not_matter() -> None:
    def named(x: Any) -> Any:
        with jax.named_scope("bus.send"), jax.named_scope("my custom_call x"):
            return Bus().send(jax.jit(custom_call_net)(x))

    check_pure(stored(named, VECTOR))


LINEAR: dict[str, Callable[[Any], Any]] = {
    "svd": jnp.linalg.svd,
    "svd_reduced": lambda x: jnp.linalg.svd(x[..., :2, :], full_matrices=False),
    "svd_tall": lambda x: jnp.linalg.svd(x[..., :2]),
    "eigh": jnp.linalg.eigh,
    "eigh_upper": lambda x: jnp.linalg.eigh(x, UPLO="U"),
    "qr": jnp.linalg.qr,
    "qr_complete": lambda x: jnp.linalg.qr(x[..., :2], mode="complete"),
    "inv": jnp.linalg.inv,
    "cholesky": jnp.linalg.cholesky,
    "det": jnp.linalg.det,
    "pinv": jnp.linalg.pinv,
    "expm": jax.scipy.linalg.expm,
    "solve": lambda x: jax.scipy.linalg.solve_triangular(x, x, trans=1, lower=True, unit_diagonal=True),
    "tridiagonal": jax.lax.linalg.tridiagonal,
    "eig": jnp.linalg.eig,
    "schur": jax.scipy.linalg.schur,
    "sqrtm": jax.scipy.linalg.sqrtm,
    "hessenberg": jax.lax.linalg.hessenberg,
    "tridiagonal_solve": lambda x: jax.lax.linalg.tridiagonal_solve(x[0], x[1], x[2], x),
}
CPU_ONLY = ("eig", "schur", "sqrtm", "hessenberg")


@pytest.mark.parametrize(
    ("name", "platform"), [(n, p) for n in LINEAR for p in ("cpu", "cuda") if p == "cpu" or n not in CPU_ONLY]
)
def test_linear_algebra_is_allowed(name: str, platform: str) -> None:
    square = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    check_pure(stored(LINEAR[name], square, platform=platform))
    # Batches give kernels other shapes.
    batch = jax.ShapeDtypeStruct((2, 5, 3, 3), jnp.float32)
    check_pure(stored(jax.vmap(jax.vmap(LINEAR[name])), batch, platform=platform))


def test_derivatives_and_complex_numbers_in_linear_algebra_are_allowed() -> None:
    def smooth(x: Any) -> Any:
        return jnp.linalg.svd(x)[1].sum() + jnp.linalg.eigh(x)[0].sum() + jnp.linalg.inv(x).sum()

    check_pure(stored(jax.vmap(jax.grad(smooth)), jax.ShapeDtypeStruct((2, 3, 3), jnp.float32)))
    shared = jax.vmap(jnp.linalg.solve, in_axes=(None, 0))
    square, several = jax.ShapeDtypeStruct((3, 3), jnp.complex64), jax.ShapeDtypeStruct((2, 3), jnp.complex64)
    check_pure(stored(shared, square, several))
    for name in ("svd", "eigh", "qr", "eig", "schur"):
        check_pure(stored(LINEAR[name], square))


def test_linear_algebra_in_double_precision_is_allowed() -> None:
    with jax.enable_x64(True):
        program = stored(lambda x: (jnp.linalg.inv(x), jnp.sort(x)), jax.ShapeDtypeStruct((3, 3), jnp.float64))
    check_pure(program)


def test_sorts_and_special_functions_are_allowed() -> None:
    def computed(x: Any) -> Any:
        special = jax.scipy.special
        key = jax.random.wrap_key_data(x.astype(jnp.uint32)[:2])
        return (
            (
                jnp.sort(x),
                jnp.argsort(-x),
                jnp.lexsort((x, x)),
                jnp.median(x),
                jax.lax.top_k(x, 2),
                jnp.unique(x, size=2),
            ),
            (special.erf(x), special.erfinv(x), special.gammaln(x), special.bessel_jn(x, v=2), jnp.fft.fft(x)),
            (jnp.sinh(x), jnp.cosh(x), jnp.tan(x), jnp.arcsin(x), jnp.arccos(x), jnp.arctan(x), jnp.arcsinh(x)),
            (jnp.arccosh(x), jnp.arctanh(x), jax.nn.gelu(x), jax.checkpoint(jnp.sin)(x), jnp.convolve(x, x)),
            (jax.random.gamma(key, x), jax.random.permutation(key, x), jax.random.split(key)),
            jax.random.uniform(jax.random.key(0, impl="unsafe_rbg"), (3,)),
        )

    for platform in ("cpu", "cuda"):
        check_pure(stored(computed, VECTOR, platform=platform))


def test_keys_as_arguments_are_allowed() -> None:
    check_pure(stored(lambda key, _: jax.random.split(key), jax.eval_shape(jax.random.key, 0), VECTOR))


@pytest.mark.parametrize("name", NAMES)
def test_programs_of_the_plants_are_allowed(name: str) -> None:
    plant = PLANTS[name]
    episode = episode_program(plant, composite_controller(plant), make_composite(plant), plant.domain, 8)
    for program in (simulator_program(plant, plant.domain), episode):
        check_pure(read_program(program.serialise()))


@pytest.mark.parametrize("name", LEARNERS)
def test_programs_of_the_algorithms_are_allowed(name: str) -> None:
    learner = ALGORITHMS[name]
    action = Space(("u",), ("1",), (0.0,), (1.0,))
    spec = SPEC._replace(action=action, choices=("off", "on")) if learner.discrete else SPEC
    config = configure(learner, {})

    def trained(data: Any, batches: Any) -> Any:
        first, then = jax.random.split(jax.random.wrap_key_data(data))
        state = learner.init(first, spec, config)
        if learner.warm_up is not None:
            state, _ = learner.warm_up(state, batches, then)
        state, metrics = learner.update(state, batches, then)
        return state, metrics, learner.act(state, batches.observation[0]), learner.actor(state)

    one, shape = jax.ShapeDtypeStruct, (learner.batches_per_update, 4)
    acted = (*shape, 2 if learner.discrete else 1)
    fields = ((*shape, 1), acted, shape, shape, (*shape, 1), shape, acted)
    batches = Transition(*(one(size, jnp.float32) for size in fields))
    check_pure(stored(trained, one((2,), jnp.uint32), batches))

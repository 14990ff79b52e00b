"""What headers of every architecture become, which are refused, and what layers do with trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from edgespec.backends.native.limits import refusal
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.backends.reference.attention import first_seen
from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.architectures.registry import ARCHITECTURES
from edgespec.models.layers import Attention, Matrix, Norm
from edgespec.models.spec import ModelSpec
from tests.support.random_models import MODELS, Recipe, text
from tests.support.recipe_files import ABSURD, header, opened, spec_of
from tests.support.targets import PLAN, decode, score

LAYERS = {
    "llama": "a a a a",
    "qwen2": "a a a a",
    "qwen3": "a a a a",
    "qwen3moe": "aM aM aM aM",
    "gpt-oss": "a32M aM a32M aM",
    "gemma3": "a32 a32 a32 a32 a32 a a32 a32 a32 a32 a32 a",
    "qwen35": "g g g a g g g a",
    "qwen35-wide": "g g g a g g g a",
    "qwen35moe": "gM gM gM aM gM gM gM aM",
    "gemma4": "a32 a32 a a32 a32 a a32<4 a32<4 a<5",
    "gemma4-moe": "a32M a32M aM a32M a32M aM",
    "lfm2": "s s a s s a s",
    "lfm2moe": "s s aM sM sM aM sM",
    "granite": "a a a a",
    "granitehybrid": "m a' m m a' m",
    "granitehybrid-moe": "mM a'M mM mM a'M mM",
    "phi3": "a a a a",
    "smollm3": "a a a a' a a a a'",
    "mistral3": "a a a a",
    "ministral3": "a a a a",
    "gemma2": "a32 a a32 a",
    "gemma3n": 4 * "a32 a32 a32 a32 a " + "a32<18 a32<18 a32<18 a32<18 a<19",
    "olmo2": "a32 a32 a32 a a32 a32 a32 a",
    "llama4": "a8192 a8192M a8192 a'M a8192 a8192M a8192 a'M",
    "glm4moe": "a aM aM aM",
    "qwen2moe": "aM aM aM aM",
    "deepseek2": "l lM lM lM",
    "deepseek2-joined": "l lM lM lM",
    "deepseek2-ranked": "l lM lM lM",
}
"""Mixers by their first letters, with the positions they reach and the layer whose keys they read;
' for no rotation, M for experts.
"""
PRE = "ffn_norm mixer_norm "
HEADS = "key_norm query_norm "
GEMMA = PRE + "activation embedding_scale ffn_post_norm mixer_post_norm "
OWN = "per_layer per_layer_embedding shares value_norm "
YARN = "original_context scale yarn "
HYBRID = PRE + "embedding_scale groups logit_scale residual_scale "
PARTS = {
    "llama": PRE + "factors",
    "qwen2": PRE + "bias",
    "qwen3": PRE + HEADS,
    "qwen3moe": PRE + HEADS + "renormalise",
    "gpt-oss": PRE + YARN + "activation bias magnitude scoring sinks window",
    "gemma3": GEMMA + HEADS + "scale window",
    "qwen35": PRE + HEADS + "first gate run stride",
    "qwen35-wide": PRE + HEADS + "first gate run stride",
    "qwen35moe": PRE + HEADS + "first gate renormalise run shared shared_gate stride",
    "gemma4": GEMMA + HEADS + OWN + "factors logit_softcap output_scale window",
    "gemma4-moe": GEMMA
    + HEADS
    + "beside beside_post_norm expert_scale experts_norm experts_post_norm factors first "
    + "logit_softcap output_scale renormalise router_norm router_scale value_norm window",
    "lfm2": PRE + HEADS + "last_norm",
    "lfm2moe": PRE + HEADS + "choice_bias last_norm renormalise scoring",
    "granite": PRE + "embedding_scale logit_scale residual_scale",
    "granitehybrid": HYBRID,
    "granitehybrid-moe": HYBRID + "renormalise shared",
    "phi3": PRE + "factors first long_factors magnitude original_context",
    "smollm3": PRE,
    "mistral3": PRE,
    "ministral3": PRE + YARN + "position_scale",
    "gemma2": GEMMA + "logit_softcap softcap window",
    "gemma3n": GEMMA + HEADS + OWN + "altup cutoff laurel logit_softcap streams window",
    "olmo2": HEADS + YARN + "ffn_post_norm magnitude mixer_post_norm window",
    "llama4": PRE
    + HEADS
    + "chunk factors norm_after_rope offset position_scale scoring shared weigh_input",
    "glm4moe": PRE + HEADS + "bias choice_bias renormalise scale scoring shared",
    "qwen2moe": PRE + "bias shared shared_gate",
    "deepseek2": PRE + YARN + "first run shared stride transposed",
    "deepseek2-joined": PRE + YARN + "first run shared stride",
    "deepseek2-ranked": PRE
    + YARN
    + "choice_bias first position_scale query_down query_norm renormalise run scoring shared "
    + "stride transposed",
}
"""Fields that are not as by default in some part."""
_COUNTED = ("num_parameters", "unused", "note", "recurrent", "head", "experts")


NOT_NATIVE: dict[str, tuple[str, Callable[[ModelSpec], ModelSpec]]] = {
    "latent attention whose width is not a multiple of 32": (
        "deepseek2", lambda spec: with_mixer(spec, nope_dim=24)
    ),
    "low-rank queries whose rank is not a multiple of 32": (
        "deepseek2-ranked", lambda spec: with_mixer(spec, query_down=Matrix("q", 40, spec.dim))
    ),
    "17 residual streams of width 256": (
        "gemma3n", lambda spec: replace(spec, streams=replace(spec.streams, count=17))
    ),
    "convolutions over 9 positions": ("qwen35", lambda spec: with_mixer(spec, conv_width=9)),
    "layers without a feed-forward part": (
        "llama", lambda spec: replace(spec, layers=(replace(spec.layers[0], ffn=None),))
    ),
    "norms that span several heads but not all of them": (
        "qwen3", lambda spec: with_mixer(spec, query_norm=Norm("q", 96))
    ),
}  # fmt: skip
"""Parts that only the reference backend computes, and a change that gives a model one."""


def with_mixer(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """The model with another first mixer."""
    first = spec.layers[0]
    mixer = replace(first.mixer, **changes)
    return replace(spec, layers=(replace(first, mixer=mixer), *spec.layers[1:]))


@cache
def recipe(name: str) -> Recipe:
    return MODELS[name]()


def parts(value: Any) -> Iterator[Any]:
    """Every dataclass in a nest of them."""
    if isinstance(value, tuple):
        for each in value:
            yield from parts(each)
    elif is_dataclass(value):
        yield value
        for each in fields(value):
            yield from parts(getattr(value, each.name))


def layers(spec: ModelSpec) -> str:
    found = []
    for layer in spec.layers:
        code = type(layer.mixer).__name__[0].lower()
        if isinstance(layer.mixer, Attention):
            code += str(layer.mixer.reach or "")
            code += "" if layer.mixer.rope else "'"
            code += "" if layer.mixer.shares is None else f"<{layer.mixer.shares}"
        found.append(code + ("M" if type(layer.ffn).__name__ == "Moe" else ""))
    return " ".join(found)


def changed_fields(spec: ModelSpec) -> set[str]:
    return {
        field.name
        for part in parts(spec)
        for field in fields(part)
        if field.default is not MISSING
        and getattr(part, field.name) != field.default
        and field.name not in _COUNTED
    }


@pytest.mark.parametrize("name", MODELS)
def test_what_a_header_becomes(name: str) -> None:
    spec = spec_of(recipe(name))
    assert layers(spec) == LAYERS[name]
    assert changed_fields(replace(spec, draft_head=None)) == set(PARTS[name].split())
    assert spec.recurrent == any(letter in LAYERS[name] for letter in "gsm")
    extra = bool(recipe(name).keys.get("nextn_predict_layers"))
    assert any("nextn" in tensor for tensor in spec.unused) == extra
    assert bool(spec.note) == (spec.draft_head is not None) == extra


def test_every_architecture_has_a_model() -> None:
    assert {recipe(name).arch for name in MODELS} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", MODELS)
def test_keys_are_read(name: str) -> None:
    """What changes llama.cpp's logits changes the description, or is refused."""
    plain = spec_of(recipe(name))
    for breakage in recipe(name).breakages:
        if not breakage.keys:
            continue
        try:
            changed = spec_of(recipe(name), keys=breakage.keys)
        except (ModelFileError, UnsupportedModelError):
            continue
        assert changed != plain, breakage.name


@pytest.mark.parametrize("name", MODELS)
def test_damaged_headers_are_refused_in_a_sentence(name: str) -> None:
    """A tensor of each kind missing, or of another shape; one too many."""
    own = recipe(name)
    plain = spec_of(own)
    last = max(int(each.split(".")[1]) for each in own.tensors if each.startswith("blk."))
    kinds = {each.replace(f"blk.{last}.", "blk.N."): each for each in own.tensors}
    for tensor in kinds.values():
        shape = own.tensors[tensor].shape
        if tensor in plain.unused or tensor.startswith("blk.") and f"blk.{last}." not in tensor:
            continue
        with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
            spec_of(own, shapes={tensor: (*shape[:-1], shape[-1] + 2)})
        assert_a_sentence(str(caught.value))
        try:
            assert spec_of(own, shapes={tensor: None}) != plain, tensor
        except (ModelFileError, UnsupportedModelError) as error:
            assert_a_sentence(str(error))
    with pytest.raises(UnsupportedModelError, match="1 tensors do not belong.*'blk.0.more.weight'"):
        spec_of(own, shapes={"blk.0.more.weight": (4, 4)})


@pytest.mark.parametrize("name", MODELS)
def test_absurd_keys_are_refused_in_a_sentence(name: str) -> None:
    """Whatever a key says, opening ends in a description or in one of two errors."""
    own = recipe(name)
    prefix = f"{own.arch}."
    keys = [key.removeprefix(prefix) for key in header(own).metadata if key.startswith(prefix)]
    for key in keys:
        for value in ABSURD:
            try:
                spec_of(own, keys={key: value})
            except (ModelFileError, UnsupportedModelError) as error:
                assert_a_sentence(str(error))


def assert_a_sentence(message: str) -> None:
    assert message.startswith(("cannot open random.gguf: ", "cannot run random.gguf: "))
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize("part", NOT_NATIVE)
def test_what_the_native_backend_refuses(part: str) -> None:
    """In a sentence that names the part."""
    name, change = NOT_NATIVE[part]
    spec = change(spec_of(recipe(name)))
    found = refusal(spec, header(recipe(name)).tensors.values())
    assert found.startswith(f"{spec.name} has {part}")
    assert "--backend reference" in found


def test_sections_that_leave_pairs_out_are_refused() -> None:
    sections = {"rope.dimension_sections": [2, 2, 2, 10]}
    with pytest.raises(UnsupportedModelError, match="sections .* do not turn"):
        spec_of(recipe("qwen35"), keys=sections)


def test_shared_keys_must_be_of_the_same_kind() -> None:
    for count, message in (
        (8, "layer 1 should read the keys of layer -1"),
        (9, "9 of 9 layers cannot share others' keys"),
        (2**31 - 1, "of 9 layers cannot share others' keys"),
    ):
        with pytest.raises(ModelFileError, match=message):
            spec_of(recipe("gemma4"), keys={"attention.shared_kv_layers": count})


def open_reference(name: str, **changes: Any) -> ReferenceTarget:
    plan = replace(PLAN, backend="reference", context_length=64)
    return ReferenceTarget(opened(recipe(name)), replace(plan, **changes))


TREE = TokenTree(
    np.array([5, 6, 7, 8, 9, 10, 11, 12], np.int32),
    np.array([-1, 0, 1, 0, 3, 3, 2, 6], np.int16),
)
PATHS = ([0, 1, 2, 6, 7], [0, 3, 4], [0, 3, 5])
MIXERS = ("gpt-oss", "qwen35moe", "gemma4", "lfm2moe", "granitehybrid", "llama4", "deepseek2")
"""A model of each mixer, and of the ways keys are kept."""


@pytest.mark.parametrize("name", (*MIXERS, pytest.param("gemma3n", marks=pytest.mark.slow)))
def test_trees_equal_chains_bit_for_bit(name: str) -> None:
    """Also after forgetting, forking and restoring, on top of a prompt."""
    prompt = np.array(text(recipe(name), 40), np.int32)
    with open_reference(name, sequences=2) as target:
        target.own.prefill(prompt)
        kept = target.own.snapshot()
        rows = target.own.forward(TREE).logits.copy()
        for path in PATHS:
            chain = TREE.tokens[path]
            np.testing.assert_array_equal(score(target, chain), rows[path])
            fork = target.own.fork()
            fork.prefill(chain[:-1])
            fork.truncate(len(prompt) + 1)
            last = fork.forward(TokenTree.chain(chain[1:])).logits
            np.testing.assert_array_equal(last, rows[path[1:]])
            fork.close()
        target.own.forward(TREE)
        target.own.commit(PATHS[0])
        after = score(target, TREE.tokens[:1])
        target.own.truncate(0)
        target.own.restore(kept)
        np.testing.assert_array_equal(decode(target, TREE.tokens[PATHS[0]]), rows[PATHS[0]])
        np.testing.assert_array_equal(score(target, TREE.tokens[:1]), after)


def test_long_contexts_take_the_long_factors() -> None:
    """Of Phi, when they are opened, whatever the length of the text."""
    ids = np.array(text(recipe("phi3"), 12), np.int32)
    with open_reference("phi3", context_length=256) as short:
        rows = score(short, ids)
    with open_reference("phi3", context_length=257) as long:
        others = score(long, ids)
    assert np.abs(rows[1:] - others[1:]).max() > 0.01
    np.testing.assert_array_equal(rows[0], others[0])  # nothing turns at position 0


def test_windows_and_chunks() -> None:
    mixer = spec_of(recipe("llama")).layers[0].mixer
    assert isinstance(mixer, Attention)
    assert [first_seen(mixer, position) for position in (0, 9)] == [0, 0]
    windowed, chunked = replace(mixer, window=4), replace(mixer, chunk=4)
    assert [first_seen(windowed, position) for position in range(7)] == [0, 0, 0, 0, 1, 2, 3]
    assert [first_seen(chunked, position) for position in range(9)] == [0, 0, 0, 0, 4, 4, 4, 4, 8]


def test_rows_of_fused_tensors() -> None:
    """Every row of a tensor belongs to one of its matrices."""
    for name in ("qwen35", "phi3", "deepseek2-joined", "gemma4-moe"):
        matrices = [part for part in parts(spec_of(recipe(name))) if isinstance(part, Matrix)]
        fused = {part.tensor for part in matrices if part.first}
        assert fused
        for tensor in fused:
            found: list[int] = []
            for part in (each for each in matrices if each.tensor == tensor):
                step, run = part.stride or part.rows, part.run or part.rows
                found += [part.first + row // run * step + row % run for row in range(part.rows)]
            assert sorted(found) == list(range(recipe(name).tensors[tensor].shape[-2])), tensor

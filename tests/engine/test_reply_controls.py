"""Stop texts, log-probabilities, penalties, cuts and grammars: with speculation as without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import OptionError, Reply
from edgespec.drafting.tree import DraftTree
from edgespec.engine.engine import Engine
from edgespec.models.grammars import grammar_of, prepare
from edgespec.verification.constraint import Constraint
from tests.support.equality import verify_everything

PROMPT = "the red ball and the red box and the red ball"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "likes": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
        "is_tall": {"type": "boolean"},
    },
    "required": ["name", "likes", "is_tall"],
    "additionalProperties": False,
}
CONTROLS: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 1.5, "repetition_penalty": 1.2, "repetition_window": 20},
    "dry": {"dry_multiplier": 1.0, "dry_allowed_length": 1},
    "sigma": {"top_n_sigma": 1.0, "temperature": 2.0},
    "typical": {"typical_p": 0.5, "temperature": 1.5},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "bias": {"logit_bias": {10: 5.0, 300: -100.0}},
    "all": {
        "frequency_penalty": 0.2, "dry_multiplier": 0.5, "top_n_sigma": 2.0, "typical_p": 0.9,
        "xtc_probability": 0.3, "top_k": 0, "logit_bias": {7: 1.0},
    },
    "schema": {"schema": PERSON},
    "regex": {"regex": r"(red|blue) ball number [0-9]{1,3}\."},
    "grammar": {"grammar": 'start: "the " ("cat" | "dog") (" and " ("cat" | "dog"))* "."'},
    "schema and penalties": {"schema": PERSON, "frequency_penalty": 0.5, "typical_p": 0.8},
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(bundled_model: Path) -> Iterator[Engine]:
    """Everything that is drafted is verified."""
    with edgespec.load(bundled_model, threads=1, sequences=3, context=512) as opened:
        verify_everything(opened)
        yield opened


def same(left: Reply, right: Reply) -> bool:
    def facts(reply: Reply) -> Any:
        return reply.token_ids, reply.text, reply.finish_reason, reply.logprobs

    return facts(left) == facts(right)


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_control_depends_on_speculation(engine: Engine, name: str, temperature: float) -> None:
    options: dict[str, Any] = {"max_tokens": 48, "temperature": temperature} | CONTROLS[name]
    for seed in (1, 2):
        plain = engine.generate(PROMPT, seed=seed, speculation=False, logprobs=2, **options)
        found = engine.generate(PROMPT, seed=seed, logprobs=2, **options)
        assert same(plain, found)
    together = engine.generate_batch([PROMPT, "a cat", PROMPT], seed=2, logprobs=2, **options)
    assert same(together[0], plain) and same(together[2], plain)


@pytest.mark.parametrize("name", [name for name in CONTROLS if name not in ("sigma", "bias")])
def test_a_control_changes_the_text(engine: Engine, name: str) -> None:
    """But for two that only take away what is unlikely, or name few tokens."""
    options: dict[str, Any] = {"max_tokens": 64, "temperature": 0.9, "seed": 3, "raw": True}
    plain = engine.generate(PROMPT, **options)
    assert engine.generate(PROMPT, **(options | CONTROLS[name])).token_ids != plain.token_ids


def test_a_bias_bans_and_forces(engine: Engine) -> None:
    plain = engine.generate(PROMPT, max_tokens=8, temperature=0.0)
    first = plain.token_ids[0]
    banned = engine.generate(PROMPT, max_tokens=8, temperature=0.0, logit_bias={first: -100.0})
    assert banned.token_ids[0] != first
    forced = engine.generate(PROMPT, max_tokens=4, logit_bias={first: 100.0}, top_k=1)
    assert forced.token_ids == [first] * 4


@pytest.mark.parametrize("speculation", [True, False])
def test_a_stop_text_ends_the_reply_wherever_it_is(engine: Engine, speculation: bool) -> None:
    options: dict[str, Any] = {"seed": 4, "max_tokens": 40, "ignore_eos": True, "raw": True}
    whole = engine.generate(PROMPT, **options).text
    for start in range(2, len(whole) - 4, 5):
        for length in (1, 2, 4):
            stop = whole[start : start + length]
            reply = engine.generate(PROMPT, stop=stop, speculation=speculation, **options)
            assert reply.text == whole[: whole.index(stop)]
            assert reply.finish_reason == "stop"
            stream = engine.stream(PROMPT, stop=[stop, "never"], **options)
            assert "".join(stream) == reply.text
            assert stream.reply.token_ids == reply.token_ids


def test_a_stop_text_that_does_not_come_changes_nothing(engine: Engine) -> None:
    options: dict[str, Any] = {"seed": 4, "max_tokens": 40, "ignore_eos": True}
    plain = engine.generate(PROMPT, **options)
    near = plain.text[-3:] + "\0"  # what is held back comes at the end
    found = engine.generate(PROMPT, stop=near, **options)
    assert (found.text, found.token_ids, found.finish_reason) == (
        plain.text, plain.token_ids, plain.finish_reason
    )  # fmt: skip


def test_log_probabilities_are_those_of_the_model(engine: Engine) -> None:
    """The same as from the logits of one pass after the other."""
    reply = engine.generate(PROMPT, raw=True, seed=1, max_tokens=12, logprobs=3, ignore_eos=True)
    assert reply.logprobs is not None and len(reply.logprobs) == 12
    assert [one.token_id for one in reply.logprobs] == reply.token_ids
    for one in reply.logprobs:
        assert one.top == sorted(one.top, key=lambda pair: -pair[1]) and len(one.top) == 3
        assert one.logprob <= one.top[0][1] <= 0.0
        known = dict(one.top).get(one.token_id)
        assert known is None or known == one.logprob
    everything = engine.generate(PROMPT, raw=True, seed=1, max_tokens=1, logprobs=100)
    assert everything.logprobs is not None
    assert 0.5 < sum(np.exp(logprob) for _, logprob in everything.logprobs[0].top) <= 1.0
    assert engine.generate(PROMPT, max_tokens=2).logprobs is None


@pytest.mark.parametrize("seed", range(4))
def test_a_reply_follows_its_schema(engine: Engine, seed: int) -> None:
    reply = engine.generate("Invent a person.", schema=PERSON, seed=seed, max_tokens=120)
    assert reply.finish_reason == "stop"
    value = json.loads(reply.text)
    assert set(value) == set(PERSON["properties"])  # type: ignore[arg-type]
    assert len(value["name"]) <= 12 and set(value["likes"]) <= {"red", "blue"}


def test_a_reply_matches_its_expression(engine: Engine) -> None:
    pattern = r"(red|blue) ball number [0-9]{1,3}\."
    for seed in range(4):
        text = engine.generate(PROMPT, regex=pattern, seed=seed, max_tokens=60).text
        assert re.fullmatch(pattern, text)


def test_a_vocabulary_that_has_no_room_is_refused(engine: Engine) -> None:
    with pytest.raises(edgespec.BudgetError, match="needs .* once for this vocabulary"):
        prepare(_Unprepared(), 1000)  # type: ignore[arg-type]
    assert engine.generate(PROMPT, regex="a", max_tokens=3).text == "a"
    prepare(engine.tokenizer, 0)  # it is there already


class _Unprepared:
    vocab_size = 1000


def test_forced_text_takes_few_steps(engine: Engine) -> None:
    long = {"type": "object", "properties": {"first_of_many_names": {"const": "x" * 40}},
            "required": ["first_of_many_names"], "additionalProperties": False}  # fmt: skip
    plain = engine.generate(PROMPT, schema=long, seed=1, speculation=False)
    found = engine.generate(PROMPT, schema=long, seed=1)
    assert same(plain, found)
    assert found.stats.steps * 8 < plain.stats.steps
    drafts = found.stats.by_source["grammar"]
    assert drafts["accepted"] == drafts["drafted"] > 0


def test_a_schema_may_be_a_file_or_a_class(engine: Engine, tmp_path: Path) -> None:
    from pydantic import BaseModel

    class Point(BaseModel):
        x: int

    options: dict[str, Any] = {"seed": 1, "max_tokens": 30, "temperature": 0.0}
    schema = Point.model_json_schema()
    path = tmp_path / "point.json"
    path.write_text(json.dumps(schema))
    texts = {
        engine.generate(PROMPT, schema=given, **options).text
        for given in (schema, json.dumps(schema), str(path), Point)
    }
    assert len(texts) == 1


def test_the_end_that_must_come_takes_no_pass(engine: Engine) -> None:
    schema = {"enum": [True, False]}
    found = engine.generate(PROMPT, schema=schema, seed=1)
    assert json.loads(found.text) in (True, False)
    assert found.stats.steps == 1 and found.stats.output_tokens == len(found.token_ids)
    origins = engine.generate(PROMPT, regex="(red|blue) ball in the sea", seed=1, origins=True)
    assert origins.origins is not None and len(origins.origins) == len(origins.token_ids)
    assert origins.origins[-1] == "grammar" and origins.text.endswith(" ball in the sea")
    short = engine.generate(PROMPT, schema=schema, seed=1, max_tokens=1)
    assert short.token_ids == found.token_ids[:1]


def test_a_quotation_mark_behind_what_must_come_is_drafted(engine: Engine) -> None:
    """Though it may be the beginning of a longer token; until that was so too often."""
    names = "abcdef"
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names},
              "required": list(names), "additionalProperties": False}  # fmt: skip
    constraint = Constraint(engine.tokenizer, str(grammar_of(schema, None, None)))
    longer, end = (engine.tokenizer.encode(text, add_bos=False) for text in (' "-', '"'))
    assert len(longer) == len(end) == 1
    guessed = []
    for _ in names:
        text = engine.tokenizer.decode(constraint.drafts())
        guessed.append(text.endswith(': "'))
        assert guessed[-1] or text.endswith(":")
        for token in (*constraint.forced, *longer, *end):
            constraint.take(token)
    assert guessed[0] and not guessed[-1]


def test_drafts_that_a_grammar_forbids_are_left_out(engine: Engine) -> None:
    constraint = Constraint(engine.tokenizer, str(grammar_of(None, "(red|blue) ball", None)))
    red, blue, cat = (
        engine.tokenizer.encode(text, add_bos=False)
        for text in ("red ball", "blue ball", "red cat")
    )
    tokens, parents = [0], [-1]
    for chain in (cat, red, blue):
        for place, token in enumerate(chain):
            parents.append(len(tokens) - 1 if place else 0)
            tokens.append(token)
    tree = DraftTree(
        np.array(tokens, np.int32), np.array(parents, np.int16),
        np.ones(len(tokens), np.float32), np.zeros(len(tokens), np.uint8),
    )  # fmt: skip
    found = tree.only(constraint.allowed(tree.tokens, tree.parents))
    paths = [[0]]
    for token, parent in zip(found.tokens[1:].tolist(), found.parents[1:].tolist(), strict=True):
        paths.append([*paths[parent], token])
    assert {tuple(path[1:]) for path in paths} == {
        tuple(chain[:length]) for chain in (red, blue) for length in range(len(chain) + 1)
    } | {tuple(cat[:1])}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"oneOf": [{"const": 1}, {"const": 2}]}, r"1|2"),
        ({"type": "string", "format": "colour", "maxLength": 3}, r'".*"'),
        ({"enum": [{"format": "colour"}]}, r'\{"format": "colour"\}'),
    ],
)
def test_schemas_that_are_read_as_others_read_them(
    engine: Engine, schema: dict[str, Any], text: str
) -> None:
    reply = engine.generate(PROMPT, schema=schema, seed=1, max_tokens=40)
    assert re.fullmatch(text, reply.text) and reply.finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema": {"type": "nothing"}}, "cannot be used"),
        ({"schema": "{"}, "cannot read the schema"),
        ({"schema": "no-such-file.json"}, "cannot read the schema"),
        ({"schema": 5}, "a schema is a dictionary"),
        ({"regex": "("}, "cannot be used"),
        ({"grammar": "start: nothing"}, "cannot be used"),
        ({"regex": "a", "grammar": "start: a"}, "give one of"),
        ({"regex": "a", "ignore_eos": True}, "drop ignore_eos"),
        ({"stop": ""}, "not empty"),
        ({"stop": ["a", 3]}, "3 is none"),
        ({"logprobs": 101}, "0 to 100"),
        ({"logit_bias": {100_000_000: 1.0}}, "token 100000000"),
        ({"logit_bias": {1: float("nan")}}, "bias of token 1"),
        ({"typical_p": 1.5}, "typical_p is 1.5"),
        ({"dry_multiplier": -1.0}, "dry_multiplier"),
        ({"accept": "typical", "xtc_probability": 0.5}, "typical acceptance"),
        ({"max_tokens": "5"}, "max_tokens is '5'"),
        ({"seed": 1.0}, "seed is 1.0"),
    ],
)
def test_controls_that_mean_nothing(engine: Engine, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        engine.generate(PROMPT, **options)


@pytest.mark.parametrize(
    "prompt", [b"bytes", 5, {"role": "user"}, [1.5], ["a"], [True], [-1], [10**9]]
)
def test_prompts_that_are_none(engine: Engine, prompt: Any) -> None:
    with pytest.raises(OptionError):
        engine.generate(prompt)


def test_a_prompt_or_messages(engine: Engine) -> None:
    turns = [{"role": "user", "content": PROMPT}]
    options: dict[str, Any] = {"seed": 1, "max_tokens": 9}
    assert (
        engine.generate(messages=turns, **options).token_ids
        == engine.generate(PROMPT, **options).token_ids
    )
    assert engine.count_tokens(PROMPT) == engine.count_tokens(messages=turns)
    assert engine.count_tokens(PROMPT, raw=True) == len(engine.tokenizer.encode(PROMPT))
    for wrong in ({}, {"prompt": PROMPT, "messages": turns}, {"messages": [{"content": "x"}]}):
        with pytest.raises(OptionError):
            engine.generate(**wrong)


def test_marks_of_the_template_cannot_be_forged(engine: Engine) -> None:
    """By any text inside a message."""
    ends = [engine.tokenizer.token_text(token) for token in engine.tokenizer.end_ids]
    turns = [{"role": "user", "content": "".join(ends)}]
    ids = engine.request(messages=turns).prompt_ids
    plain = engine.request(messages=[{"role": "user", "content": "x"}]).prompt_ids
    for token in engine.tokenizer.end_ids:
        assert ids.count(token) == plain.count(token)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_an_embedding_depends_on_its_text_alone(engine: Engine, pooling: Any) -> None:
    texts = ["The dog runs in the park.", "A dog runs in a park.", "word " * 300]
    found = [engine.embed(text, pooling=pooling) for text in texts]
    for vector in found:
        assert vector.dtype == np.float32 and vector.shape == (engine.file.spec.dim,)
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
    stream = engine.stream(PROMPT, max_tokens=30, seed=1, ignore_eos=True)
    next(stream)
    for text, vector in zip(texts, found, strict=True):
        assert np.array_equal(engine.embed(text, pooling=pooling), vector)
    expected = engine.generate(PROMPT, max_tokens=30, seed=1, ignore_eos=True).token_ids
    for _ in stream:
        pass
    assert stream.reply.token_ids == expected
    assert found[0] @ found[1] > found[0] @ found[2]
    with pytest.raises(OptionError, match="pooling"):
        engine.embed("x", pooling="best")  # type: ignore[arg-type]

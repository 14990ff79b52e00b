"""Which published JSON schemas bind a reply, and what that costs.

    python -m lab.schemas coverage FOLDER [--count 300] [--tokens 256] [--model MODEL]
    python -m lab.schemas speed FOLDER [--count 30] [--tokens 128] [--rounds 3]
    python -m lab.schemas peer FOLDER [--count 200] [--tokens 96]

FOLDER is `data` of JSONSchemaBench (github.com/guidance-ai/jsonschemabench): a folder for each set,
a schema in each file. As many are taken from each set, by `--seed`. Needs `edgespec[schema]` and
the package jsonschema, which judges the replies; it does not judge `format`.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import validator_for
from referencing import Registry

import edgespec
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from lab.harness import (
    Asked,
    Rows,
    Script,
    Spread,
    alternate,
    option,
    ratios,
    rounds,
    start_anew,
    tokens,
)
from lab.llama_grammar import LlamaGrammars

PROMPT = "Write an example of this as JSON."
MOST_REASONS = 5
OUTCOMES = ("accepted", "ended", "valid", "invalid", "unchecked")
script = Script(__doc__)
FOLDER = option("folder", type=Path)
MODEL = option("--model", help="a GGUF file or a model's name; the bundled one if left out")
MEMBERS = (
    ("bound", True, True),
    ("bound, plain", True, False),
    ("free", False, True),
    ("free, plain", False, False),
)
"""Name, whether a schema binds, whether drafts are made."""
SEED = option("--seed", type=int, default=0, help="of the choice of schemas, and of the replies")


def chosen(folder: Path, count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """(set, schema) of so many files, as many of each set as there are."""
    sets = sorted(path for path in folder.iterdir() if path.is_dir())
    for place, one in enumerate(sets):
        files = sorted(one.glob("*.json"))
        share = (place + 1) * count // len(sets) - place * count // len(sets)
        for path in random.Random(seed).sample(files, min(share, len(files))):
            yield one.name, json.loads(path.read_text("utf-8"))


@script.command(FOLDER, option("--count", type=int, default=300), tokens(256), MODEL, SEED)
def coverage(asked: Asked) -> Rows:
    """Shares of schemas that are accepted, whose replies end, and whose replies are valid.

    "valid" and "invalid" are of those that ended, by jsonschema; "unchecked" are those that it
    cannot judge, because of references to elsewhere or regular expressions that Python lacks.
    "free" is text of the same lengths that nothing binds; no drafter has seen either before.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    reasons, seconds = Counter[str](), list[float]()
    with edgespec.load(asked.model, context=1024) as engine:
        for name, schema in chosen(asked.folder, asked.count, asked.seed):
            found[name]["schemas"] += 1
            begin = time.perf_counter()
            try:
                request = engine.request(
                    PROMPT, schema=schema, max_tokens=asked.tokens, seed=asked.seed
                )
            except edgespec.EdgeSpecError as error:
                reasons[str(error)[:100]] += 1
                continue
            seconds.append(time.perf_counter() - begin)
            start_anew(engine)
            reply = engine.generate(request)
            found[name].update(_outcome(reply.text, reply.finish_reason == "stop", schema))
            found[name].update(_passes("", reply))
            start_anew(engine)
            length = reply.stats.output_tokens
            free = engine.generate(PROMPT, max_tokens=length, seed=asked.seed, ignore_eos=True)
            found[name].update(_passes("free ", free))
    for reason, count in reasons.most_common(MOST_REASONS):
        script.note(f"refused {count}: {reason}")
    low, high = np.percentile(seconds, (50, 95))
    script.note(f"a request took {low * 1e3:.2f} ms in the median, 95 % at most {high * 1e3:.2f}")
    for name, counts in (*found.items(), ("all", sum(found.values(), Counter()))):
        yield {
            "set": name,
            **{one: counts[one] for one in ("schemas", *OUTCOMES, "tokens", "passes")},
            "a pass": counts["tokens"] / max(counts["passes"], 1),
            "free, a pass": counts["free tokens"] / max(counts["free passes"], 1),
        }


def _passes(kind: str, reply: Reply) -> dict[str, int]:
    return {f"{kind}tokens": reply.stats.output_tokens, f"{kind}passes": reply.stats.steps}


def _outcome(text: str, ended: bool, schema: Any) -> Iterator[str]:
    """What can be said of a reply that this schema bound."""
    yield "accepted"
    if not ended:
        return
    yield "ended"
    try:
        _validate(json.loads(text), schema)
    except (ValidationError, json.JSONDecodeError) as error:
        script.note(f"invalid: {str(error).splitlines()[0][:150]}")
        yield "invalid"
    except Exception:  # noqa: BLE001  # jsonschema raises what the schema makes Python's re raise
        yield "unchecked"
    else:
        yield "valid"


def _validate(value: Any, schema: Any) -> None:
    """Raise ValidationError unless a value follows a schema; nothing is fetched."""
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError("the schema follows no known draft") from error
    kind(schema, registry=Registry()).validate(value)


@script.command(
    FOLDER, option("--count", type=int, default=30), tokens(128), rounds(3), MODEL, SEED
)
def speed(asked: Asked) -> Rows:
    """Tokens per second of decoding, bound by schemas and free, of as many tokens each."""
    with edgespec.load(asked.model, context=1024) as engine:
        schemas = []
        for _, schema in chosen(asked.folder, 3 * asked.count, asked.seed):
            try:
                request = engine.request(
                    PROMPT, schema=schema, seed=asked.seed, max_tokens=asked.tokens
                )
            except edgespec.EdgeSpecError:
                continue
            length = len(engine.generate(request).token_ids)
            if length >= asked.tokens // 4:  # shorter ones time the first step alone
                schemas.append((schema, length))
        schemas = schemas[: asked.count]
        members = {
            f"{kind}{how}": partial(_rate, engine, schemas, bound, speculation, asked.seed)
            for kind, bound in (("bound", True), ("free", False))
            for how, speculation in (("", True), (", plain", False))
        }
        found = alternate(members, asked.rounds)
    yield {
        "schemas": len(schemas),
        **{f"{name}, tokens/s": Spread.of(values) for name, values in found.items()},
        "bound / plain": ratios(found["bound"], found["bound, plain"]),
        "bound / free": ratios(found["bound"], found["free"]),
    }


def _rate(
    engine: Engine, schemas: list[tuple[Any, int]], bound: bool, speculation: bool, seed: int
) -> float:
    """Tokens per second over all schemas, or over free texts of the same lengths."""
    num_tokens, seconds = 0, 0.0
    for schema, length in schemas:
        start_anew(engine)  # no drafter knows the text from the last round
        stats = engine.generate(
            PROMPT,
            schema=schema if bound else None,
            ignore_eos=not bound,
            max_tokens=length,
            seed=seed,
            speculation=speculation,
        ).stats
        num_tokens += stats.output_tokens
        seconds += stats.output_tokens / stats.tokens_per_second
    return num_tokens / seconds


@script.command(
    FOLDER,
    option("--count", type=int, default=200),
    tokens(96),
    option("--threads", type=int, default=1, help="of each; waiting threads take processor time"),
    MODEL,
    SEED,
)
def peer(asked: Asked) -> Rows:
    """The same schemas bound here and by llama.cpp's own grammars, on the same file.

    Times are of whole replies with their prompts, by processor time and by the clock, without
    making a grammar of the schema; "plain" is here without speculation. Each writes texts of its
    own; free ones are as long as the bound.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    with edgespec.load(asked.model, context=1024, threads=asked.threads) as engine:
        llama = LlamaGrammars(engine.file.path, 1024, asked.threads)
        sampling = {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        ours = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": asked.seed}
        prompt = engine.tokenizer.encode(PROMPT)
        for _, schema in chosen(asked.folder, asked.count, asked.seed):
            length = 0
            for name, bound, speculation in MEMBERS:
                start_anew(engine)
                found[name]["schemas"] += 1
                try:
                    request = engine.request(
                        prompt,
                        schema=schema if bound else None,
                        max_tokens=asked.tokens if bound else max(length, 1),
                        ignore_eos=not bound,
                        speculation=speculation,
                        **ours,
                    )
                except edgespec.EdgeSpecError:
                    break
                begun = time.perf_counter(), time.process_time()
                reply = engine.generate(request)
                length = reply.stats.output_tokens
                spent[name][0] += time.process_time() - begun[1]
                spent[name][1] += time.perf_counter() - begun[0]
                found[name].update(_outcome(reply.text, reply.finish_reason == "stop", schema))
                found[name].update(_passes("", reply))
            for name, text in (("llama.cpp, bound", json.dumps(schema)), ("llama.cpp, free", None)):
                found[name]["schemas"] += 1
                length = asked.tokens if text is not None else max(length, 1)
                written = llama.write(prompt, text, length, asked.seed, **sampling)
                if isinstance(written, str):
                    break
                length = written.num_tokens
                found[name].update(_outcome(written.text, written.ended, schema))
                found[name].update({"tokens": written.num_tokens, "passes": written.num_tokens})
                spent[name][0] += written.processor_s
                spent[name][1] += written.wall_s
        llama.close()
    for name, counts in found.items():
        num = max(counts["tokens"], 1)
        yield {
            "": name,
            **{one: counts[one] for one in ("schemas", *OUTCOMES, "tokens", "passes")},
            "processor, ms a token": spent[name][0] / num * 1e3,
            "tokens/s": num / max(spent[name][1], 1e-9),
        }


if __name__ == "__main__":
    script.run()

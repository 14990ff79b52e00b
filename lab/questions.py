"""Spec-Bench's questions, answered by our engine with speculation and without and by llama.cpp.

One question of each category makes a group. In every round each way of writing answers the whole
group, the ways in the other order every other round. llama.cpp's server is started anew for each
round and way, so that none remembers an earlier round's replies; ours is made to forget them.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import edgespec
from edgespec.engine.engine import Engine
from edgespec.models.registry import resolve
from lab import llama_server
from lab.harness import Asked, Records, Row, Rows, Script, Spread, forget, read_lines
from lab.llama_writer import LlamaWriter

OURS, PLAIN, PEER = "ours", "plain", "llama.cpp"
LOOKUP = f"{PEER}, prompt lookup"
DRAFT_MODEL = "draft-simple"
MEAN, CODE, WORST = 2.2, 2.5, 0.98
"""Times plain decoding that are asked of the mean over categories, of code, and of every one."""
Write = Callable[[list[int], float], dict[str, Any]]
"""A reply to a prompt at a temperature: `tokens`, and `speed` in tokens a second of decoding."""
Way = Callable[[], AbstractContextManager[Write]]
Ways = Mapping[str, Way]


class Question(NamedTuple):
    """The first turn of one, in the model's chat template."""

    place: int
    """Among those of its category."""
    category: str
    number: int
    ids: list[int]


class Answers:
    """What each way of writing took for each question, temperature and round."""

    def __init__(self, model: Path, ways: Ways, asked: Asked) -> None:
        self._records, self._model, self.ways, self._asked = Records(asked.out), model, ways, asked

    def collect(self, drawn: Sequence[Question]) -> None:
        """Find what is not known yet, until the time is over."""
        end = time.monotonic() + 60 * (self._asked.minutes or float("inf"))
        for _, same in groupby(drawn, key=lambda one: one.place):
            group = list(same)
            for number in range(self._asked.rounds):
                for name in list(self.ways)[:: 1 if number % 2 else -1]:
                    self._ask(name, number, group, end)

    def _ask(self, name: str, number: int, group: Sequence[Question], end: float) -> None:
        cases = [(one, heat) for one in group for heat in self._asked.temperatures]
        cases = [case for case in cases if self._key(*case, name, number) not in self._records]
        if not cases or time.monotonic() > end:
            return
        with self.ways[name]() as write:
            write(cases[0][0].ids, 0.0)  # what was just started or has waited is slow at first
            for one, heat in cases:
                if time.monotonic() > end:
                    return
                self._records.get(self._key(one, heat, name, number), partial(write, one.ids, heat))

    def _key(self, one: Question, heat: float, name: str, number: int) -> object:
        asked = self._asked
        return str(self._model), one.number, asked.tokens, heat, asked.draft_model, name, number

    def of(self, one: Question, heat: float, name: str) -> list[dict[str, Any]]:
        """A way's replies to a question, as far as they are known, a round each."""
        keys = (self._key(one, heat, name, number) for number in range(self._asked.rounds))
        return [self._records.get(key, dict) for key in keys if key in self._records]

    def is_whole(self, one: Question, heat: float) -> bool:
        return all(len(self.of(one, heat, name)) == self._asked.rounds for name in self.ways)

    def speed(self, one: Question, heat: float, name: str) -> float:
        """The median over the rounds."""
        return float(statistics.median(reply["speed"] for reply in self.of(one, heat, name)))


def measure(asked: Asked, script: Script) -> Rows:
    """A row for each category and temperature, and one for all."""
    options = {"threads": asked.threads, "drafters": asked.drafters, "context": asked.context}
    with ExitStack() as stack:
        engine = stack.enter_context(
            edgespec.load(asked.model, draft_model=asked.draft_model, **options)
        )
        drawn = list(_questions(engine, asked))
        answers = Answers(engine.file.path, _ways(engine, asked, stack), asked)
        answers.collect(drawn)
    for heat in asked.temperatures:
        whole = [one for one in drawn if answers.is_whole(one, heat)]
        if len(whole) < len(drawn):
            script.note(f"temperature {heat}: {len(whole)} of {len(drawn)} questions; run it again")
        yield from _rows(whole, answers, heat, script)


def _questions(engine: Engine, asked: Asked) -> Iterator[Question]:
    """The first of each category, then the second of each, and so on."""
    by_category: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in read_lines(asked.questions):
        by_category[record["category"]].append(record)
    most = engine.plan.context_length - asked.tokens - 1
    for place in range(asked.per_category):
        for category, records in by_category.items():
            if place < len(records):
                record = records[place]
                ids = _fitting(engine, record["turns"][0], most)
                yield Question(place, category, record["question_id"], ids)


def _fitting(engine: Engine, text: str, most: int) -> list[int]:
    """At most so many tokens of a prompt; the middle of a longer text is left out."""
    ids = engine.encode(text)
    while len(ids) > most:
        keep = len(text) * most // len(ids) * 9 // 10
        text = f"{text[: keep // 2]} ... {text[-(keep // 2) :]}"
        ids = engine.encode(text)
    return ids


def _ways(engine: Engine, asked: Asked, stack: ExitStack) -> Ways:
    path, context = engine.file.path, engine.plan.context_length
    ways: dict[str, Way] = {
        OURS: lambda: nullcontext(partial(_ours, engine, asked.tokens, True)),
        PLAIN: lambda: nullcontext(partial(_ours, engine, asked.tokens, False)),
    }
    if asked.no_peer:
        return ways
    if asked.server:
        modes = (*asked.modes, *((DRAFT_MODEL,) if asked.draft_model else ()))
        ways[PEER] = partial(_server, asked, path, context, "plain")
        return ways | {
            f"{PEER}, {mode}": partial(_server, asked, path, context, mode) for mode in modes
        }
    for name, lookup in ((PEER, False), (LOOKUP, True)):
        writer = LlamaWriter(path, context, asked.threads, lookup=lookup)
        ways[name] = partial(_library, stack.enter_context(writer), asked.tokens)
    return ways


def _ours(
    engine: Engine, num_tokens: int, speculation: bool, ids: list[int], heat: float
) -> dict[str, Any]:
    forget(engine)
    options: dict[str, Any] = {"ignore_eos": True, "seed": 1, "speculation": speculation}
    reply = engine.generate(ids, max_tokens=num_tokens, temperature=heat, **options)
    stats = reply.stats
    return {
        "tokens": reply.token_ids,
        "speed": stats.tokens_per_second,
        "per_step": stats.tokens_per_step,
    }


@contextmanager
def _library(writer: LlamaWriter, num_tokens: int) -> Iterator[Write]:
    yield lambda ids, heat: writer.write(ids, num_tokens, heat)


@contextmanager
def _server(asked: Asked, path: Path, context: int, mode: str) -> Iterator[Write]:
    draft = resolve(asked.draft_model) if asked.draft_model else None
    arguments = llama_server.arguments(mode, draft)
    with llama_server.server(asked.server, path, arguments, asked.threads, context) as address:
        yield lambda ids, heat: llama_server.ask(address, ids, asked.tokens, heat)._asdict()


def _rows(whole: Sequence[Question], answers: Answers, heat: float, script: Script) -> Rows:
    by_category: dict[str, list[Question]] = defaultdict(list)
    for one in whole:
        by_category[one.category].append(one)
    rows = [_row(name, some, answers, heat) for name, some in by_category.items()]
    yield from rows
    if not rows:
        return
    yield _row("all", whole, answers, heat)
    changed = sum(_texts(one, answers, heat) > 1 for one in whole)
    script.check(not changed, f"temperature {heat}: {changed} texts changed by speculation")
    gains = {row["category"]: row[f"/ {PLAIN}"].median for row in rows}
    _goal(script, heat, "mean over categories", statistics.mean(gains.values()), MEAN)
    if "coding" in gains:
        _goal(script, heat, "code", gains["coding"], CODE)
    _goal(script, heat, "worst category", min(gains.values()), WORST)
    if len(answers.ways) > 2:
        behind = min(rows, key=lambda row: float(row["/ its best"]))
        told = f"{behind['category']} {behind['/ its best']:.2f} times llama.cpp's best mode"
        claim = f"temperature {heat}: {told}, every category more than 1"
        script.check(behind["/ its best"] > 1, claim)


def _goal(script: Script, heat: float, what: str, found: float, least: float) -> None:
    script.check(
        found >= least, f"temperature {heat}: {what} {found:.2f} times plain, at least {least}"
    )


def _row(name: str, some: Sequence[Question], answers: Answers, heat: float) -> Row:
    """Medians over a category's questions."""
    ours = [answers.speed(one, heat, OURS) for one in some]
    steps = [answers.of(one, heat, OURS)[0]["per_step"] for one in some]
    row: Row = {"category": name, "temperature": heat, "questions": len(some)}
    row |= {"tokens/s": statistics.median(ours), "tokens/step": statistics.mean(steps)}
    others = [way for way in answers.ways if way != OURS]
    for way in others:
        theirs = [answers.speed(one, heat, way) for one in some]
        row[f"/ {way}"] = Spread.of(a / b for a, b in zip(ours, theirs, strict=True))
    if others[1:]:
        row["/ its best"] = min(row[f"/ {way}"].median for way in others[1:])
    return row


def _texts(one: Question, answers: Answers, heat: float) -> int:
    """How many texts ours are: with speculation and without, in all rounds."""
    ours = (reply for way in (OURS, PLAIN) for reply in answers.of(one, heat, way))
    return len({tuple(reply["tokens"]) for reply in ours})

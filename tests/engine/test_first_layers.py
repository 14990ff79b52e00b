"""A prepared model's first layers draft for it on llama.cpp: same text, pages counted once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.drafting.model.small_model import READ_AT_ONCE, FirstLayersDrafter
from edgespec.engine.engine import Engine
from edgespec.errors import OptionError
from edgespec.loading.first_layers import their_alternatives
from edgespec.memory.plan.plan import Alternative
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.splitting import first_layers, split_model
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system import resident_memory
from edgespec.system.resident_memory import resident_bytes
from edgespec.system.shared_pages import beyond_the_largest
from tests.engine.test_draft_model import same_or_tied
from tests.support.equality import Case
from tests.support.gguf_models import write_gguf
from tests.support.targets import missing

WHY = missing("llamacpp")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc/self/smaps")
NONE = "--no-speculation"
EARLY = "suffix-automaton,trigram,early-exit"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model in two files, the first with 2 of 5 layers."""
    return split_model(resolve(), 2, tmp_path_factory.mktemp("prepared") / "bundled")[0]


@pytest.fixture(scope="module")
def engine(prepared: Path) -> Iterator[Engine]:
    with edgespec.load(
        prepared, backend="llamacpp", drafters=EARLY, threads=1, context=512
    ) as opened:
        yield opened


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_they_draft_and_the_text_stays(engine: Engine, temperature: float) -> None:
    case = Case("Once upon a time", temperature, seed=3, max_tokens=60, ignore_eos=True)
    plain = case.plain(engine)
    found = case.speculative(engine, "drafter", None, plain)
    if not temperature:
        assert same_or_tied(engine, plain, found, "Once upon a time")
    asked = found.stats.by_source["early-exit"]
    assert asked["drafted"] >= asked["accepted"] >= 10  # of 60 tokens


def test_the_plan_says_so(engine: Engine, prepared: Path) -> None:
    plan = engine.plan
    assert plan.mapped and plan.backend == "llamacpp"
    assert any("first 2 of 5 layers" in reason for reason in plan.reasons)
    with open_model(prepared, any_engine=True) as file:
        whole = sum(info.size_bytes for info in file.tensors.values())
    assert plan.footprint["weights"] == whole
    plain = edgespec.plan(
        prepared, backend="llamacpp", drafters="suffix-automaton,trigram", threads=1, context=512
    )
    assert not plain.mapped
    assert 0 < plan.footprint["draft model"] < 12 << 20


@LINUX
def test_pages_are_shared_and_count_once(engine: Engine, prepared: Path) -> None:
    found = maps(prepared)
    assert len(found) == 2
    assert all(each["Private_Dirty"] == each["Anonymous"] == 0 for each in found)
    # Nobody else has the file open: a page that both maps show counts half in each.
    whole, small = sorted(found, key=lambda each: each["Pss"] / each["Rss"], reverse=True)
    assert small["Pss"] <= 0.52 * small["Rss"]
    twice = beyond_the_largest(Path("/proc/self/smaps").read_text().splitlines(), str(prepared))
    assert twice == min(whole["Rss"], small["Rss"]) > 0.9 * prepared.stat().st_size
    status = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    assert resident_bytes() == pytest.approx(int(status[0]) * 1024 - twice, abs=1 << 20)


def maps(path: Path) -> list[dict[str, int]]:
    """Bytes by kind of every map of a file."""
    found: list[dict[str, int]] = []
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if not head.endswith(":"):
            ours = rest[-1:] == [str(path)]
            if ours:
                found.append({})
        elif ours and rest[-1:] == ["kB"]:
            found[-1][head[:-1]] = int(rest[0]) * 1024
    return found


@LINUX
def test_nothing_is_taken_off_once_it_is_closed(tmp_path: Path) -> None:
    path = split_model(resolve(), 2, tmp_path / "bundled")[0]
    for _ in range(2):
        with edgespec.load(
            path, backend="llamacpp", drafters=EARLY, threads=1, context=256
        ) as opened:
            opened.generate("Once upon a time", max_tokens=4)
            assert resident_memory._shared_pages.files[path] > 0
        assert path not in resident_memory._shared_pages.files


@pytest.mark.parametrize(("kind", "joins"), [("F16", True), ("Q4_0", False)])
def test_they_join_where_mapped_weights_cost_nothing(
    tmp_path: Path, kind: str, joins: bool
) -> None:
    whole = write_gguf(tmp_path / "m.gguf", layers=3, type=kind, dim=256, ffn=512, vocab=300)
    path = split_model(whole, 1, tmp_path / "m")[0]
    plan = edgespec.plan(path, backend="llamacpp", threads=1)
    repacked = any("repacks" in reason for reason in plan.reasons)
    assert plan.mapped != repacked
    if joins or repacked:  # a build without repacking has nothing to lose with either
        assert plan.mapped == joins
    assert edgespec.plan(path, backend="llamacpp", threads=1, drafters=EARLY).mapped
    assert not edgespec.plan(path, backend="llamacpp", threads=1, drafters="none").mapped
    assert not edgespec.plan(path, backend="llamacpp", threads=1, max_nodes=1).mapped


def test_without_speculation_they_would_not_be_there(engine: Engine) -> None:
    made = replace(
        engine.plan,
        alternatives=(
            Alternative("context", "--context 256", 90, -10),
            Alternative("nodes", NONE, 98, -2),
        ),
    )
    plain = replace(made, alternatives=(Alternative("nodes", NONE, 73, -1), *made.alternatives[:1]))
    context, nodes = their_alternatives(plain, made)
    assert context == made.alternatives[0]
    assert nodes == Alternative("nodes", NONE, 73, 73 - made.planned_bytes)


def test_they_do_not_join_where_there_is_no_room(engine: Engine, prepared: Path) -> None:
    assert engine.plan.mapped  # and all is compiled: a first start needs more than they do
    plan = edgespec.plan(
        prepared, backend="llamacpp", threads=1, drafters="suffix-automaton,trigram"
    )
    tight = edgespec.plan(
        prepared, backend="llamacpp", threads=1, memory=plan.planned_bytes + (1 << 20)
    )
    assert not tight.mapped and tight.planned_bytes <= tight.budget_bytes
    assert any("no room for their KV cache" in reason for reason in tight.reasons)


def test_a_long_prompt_is_read_when_the_reply_is_as_long(engine: Engine) -> None:
    engine.scheduler.target.own.truncate(0)
    drafter = FirstLayersDrafter(engine.scheduler.target.own, engine.file.spec.vocab_size)
    prompt = [5 + number % 50 for number in range(READ_AT_ONCE + 40)]
    drafter.reset(prompt)
    assert len(drafter.propose(4)) == 1 and engine.scheduler.target.own.length == 0
    drafter.extend(prompt[:20])
    assert len(drafter.propose(4)) == 1
    for _ in range(2):
        drafter.extend(prompt[:20])
        tree = drafter.propose(4)
    assert len(tree) > 1 and engine.scheduler.target.own.length > len(prompt)
    drafter.reset(prompt[:-1])  # mostly the same text: there is little to read
    assert len(drafter.propose(4)) > 1
    engine.scheduler.target.own.truncate(0)


def test_a_short_prompt_is_read_before_the_reply_if_that_was_of_use(engine: Engine) -> None:
    engine.scheduler.target.own.truncate(0)
    own = engine.scheduler.target.own
    drafter = FirstLayersDrafter(own, engine.file.spec.vocab_size)
    drafter.reset([*range(10, 40)])
    assert own.length == 29
    drafter.reset([*range(50, 80)])  # nobody asked for a draft of the last text
    assert own.length == 29
    assert len(drafter.propose(4)) > 1 and own.length >= 30
    drafter.reset([*range(10, 40)])
    assert own.length == 29
    drafter.reset([7])
    assert len(drafter.propose(4)) > 1
    engine.scheduler.target.own.truncate(0)


def test_several_texts(prepared: Path) -> None:
    made: dict[str, Any] = {"threads": 1, "context": 256, "sequences": 2, "drafters": EARLY}
    made["backend"] = "llamacpp"
    with edgespec.load(prepared, **made) as opened:
        replies = opened.generate_batch(
            ["Once upon a time", "Tell me of a dog."], max_tokens=16, seed=1, ignore_eos=True
        )
        assert [reply.stats.output_tokens for reply in replies] == [16, 16]
        assert all(reply.stats.by_source["early-exit"]["drafted"] for reply in replies)


def test_what_cannot_be(tmp_path: Path, prepared: Path) -> None:
    with pytest.raises(OptionError, match="edgespec prepare MODEL.gguf"):
        edgespec.plan(backend="llamacpp", drafters=EARLY)
    with pytest.raises(OptionError, match="only one model can draft there"):
        edgespec.plan(prepared, backend="llamacpp", drafters=EARLY, draft_model=resolve())


def test_only_prepared_files_have_first_layers(tmp_path: Path, prepared: Path) -> None:
    assert first_layers(prepared) == 2
    assert first_layers(resolve()) == 0
    assert first_layers(prepared.with_name(prepared.name.replace("00001-of", "00002-of"))) == 0
    with FileSource(prepared) as source:
        raw = source.read(0, source.size_bytes).tobytes()
    cut = tmp_path / "other.gguf"  # split at another place than between two layers
    cut.write_bytes(raw.replace(b"blk.1.ffn_down.weight", b"blk.4.ffn_down.weight"))
    assert first_layers(cut) == 0


SMAPS = """\
10-20 r--s 00000000 08:01 7   /m a.gguf
Size:   4 kB
Rss:    40 kB
30-40 r--s 00000040 08:01 7   /m a.gguf
Rss:    8 kB
50-60 r-xp 00000000 08:01 9   /lib.so
Rss:    900 kB
70-80 r--s 00000000 08:01 7   /m a.gguf
Rss:    30 kB
"""


@pytest.mark.parametrize(("name", "twice"), [("/m a.gguf", 30), ("/lib.so", 0), ("/none", 0)])
def test_pages_beyond_the_largest_map(name: str, twice: int) -> None:
    assert beyond_the_largest(SMAPS.splitlines(), name) == twice * 1024

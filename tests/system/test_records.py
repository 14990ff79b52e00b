"""Records behave as the standard library's data classes do; only when methods are made differs."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from dataclasses import KW_ONLY, asdict, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from edgespec.system import records


def _classes(dataclass: Any) -> dict[str, type]:
    """The same classes, made by one decorator or the other."""

    @dataclass(frozen=True, slots=True)
    class Point:
        """Two numbers and what is made for each."""

        kind: ClassVar[str] = "point"
        x: int
        y: int = 2
        names: list[str] = field(default_factory=list, compare=False)
        _: KW_ONLY
        hidden: str = field(default="h", repr=False)
        later: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

    @dataclass(slots=True)
    class Counter:
        count: int = 0

    @dataclass(slots=True, eq=False)
    class Handle:
        number: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named(Point):
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name == other.name

        def __hash__(self) -> int:
            return 5

    return {one.__name__: one for one in (Point, Counter, Handle, Named)}


DECORATORS = {"ours": records.dataclass, "standard": dataclasses.dataclass}
ACTIONS: dict[str, Any] = {
    "repr": lambda c: repr(c["Point"](1)),
    "positional": lambda c: repr(c["Point"](1, 3, ["a"])),
    "keywords": lambda c: asdict(c["Point"](y=5, x=4, hidden="k")),
    "own lists": lambda c: c["Point"](1).names is c["Point"](1).names,
    "replace": lambda c: repr(replace(c["Point"](1), y=9)),
    "missing": lambda c: c["Point"](),
    "too many": lambda c: c["Point"](1, 2, [], "h"),
    "unknown": lambda c: c["Point"](1, z=2),
    "set later": lambda c: c["Point"](1, later=2),
    "post init": lambda c: c["Point"](-1),
    "frozen": lambda c: setattr(c["Point"](1), "x", 2),
    "frozen delete": lambda c: delattr(c["Point"](1), "x"),
    "no other attribute": lambda c: setattr(c["Counter"](), "other", 2),
    "mutable": lambda c: (one := c["Counter"](), setattr(one, "count", 3), repr(one))[-1],
    "equal": lambda c: (c["Point"](1) == c["Point"](1, names=["b"]), c["Point"](1) == 1),
    "not equal": lambda c: (c["Point"](1) == c["Point"](2), c["Counter"](1) == c["Counter"](2)),
    "hash": lambda c: hash(c["Point"](1)) == hash(c["Point"](1)) == hash((1, 2, "h", 7)),
    "no hash": lambda c: hash(c["Counter"]()),
    "by identity": lambda c: (c["Handle"](1) == c["Handle"](1), hash(c["Handle"](1)) != 1),
    "subclass": lambda c: repr(c["Named"](1, name="n")),
    "subclass equal": lambda c: (
        c["Named"](1, name="n") == c["Named"](2, name="n"),
        hash(c["Named"](1, name="n")),
    ),
    "subclass frozen": lambda c: setattr(c["Named"](1, name="n"), "x", 2),
    "signature": lambda c: {name: str(inspect.signature(one)) for name, one in c.items()},
    "fields": lambda c: [(one.name, one.type, one.kw_only) for one in fields(c["Named"])],
    "match": lambda c: {name: one.__match_args__ for name, one in c.items()},  # type: ignore[attr-defined]
    "slots": lambda c: {name: one.__slots__ for name, one in c.items()},  # type: ignore[attr-defined]
    "copies": lambda c: (
        repr(copy.copy(c["Point"](1))),
        repr(copy.deepcopy(c["Named"](1, name="n")).names),
    ),
    "recursion": lambda c: (one := c["Counter"](), setattr(one, "count", one), repr(one))[-1],
}


@pytest.mark.parametrize("action", ACTIONS)
def test_as_the_standard_library_does(action: str) -> None:
    found = {}
    for name, dataclass in DECORATORS.items():
        try:
            found[name] = ACTIONS[action](_classes(dataclass))
        except (TypeError, ValueError, AttributeError) as error:
            found[name] = (type(error), str(error).replace("super(type, obj)", ""))
    assert found["ours"] == found["standard"]


@records.dataclass(frozen=True, slots=True)
class Kept:
    """At the top of a module, where pickle looks for it."""

    a: int
    b: tuple[int, ...] = ()


def test_pickled_and_back() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))
    assert repr(copy.copy(Kept(3))) == "Kept(a=3, b=())"


def test_nothing_is_compiled_before_the_first_object(monkeypatch: pytest.MonkeyPatch) -> None:
    made, init_of = [], records._init_of
    monkeypatch.setattr(
        records, "_init_of", lambda cls, frozen: (made.append(cls), init_of(cls, frozen))[1]
    )
    point = _classes(records.dataclass)["Point"]
    assert made == []
    assert repr(point(1)) != repr(point(2))
    assert made == [point]


def test_the_package_uses_these() -> None:
    package = Path(records.__file__).parents[1]
    others = [path for path in package.rglob("*.py") if path.name != "records.py"]
    pattern = re.compile(r"^from dataclasses import .*\bdataclass\b", re.MULTILINE)
    assert [path.name for path in others if pattern.search(path.read_text("utf-8"))] == []

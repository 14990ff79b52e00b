"""Writes docs/reference/ from the code of the public API: python docs/generate_reference.py"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.system.option_fields import options_of

FOLDER = Path(__file__).parent / "reference"
NOTE = "Written by `python docs/generate_reference.py` from the code; a test compares the two.\n"
PAGES = {
    "models": ("Models and plans", ("load", "plan", "pull", "LoadOptions", "Plan")),
    "engine": ("The engine", ("Engine",)),
    "options": ("Options of a reply", ("ReplyOptions", "ReplyKeywords", "Request")),
    "replies": (
        "Replies",
        ("Stream", "Piece", "Reply", "Stats", "TokenLogprob", "BatchStream", "Vote"),
    ),
    "chats": ("Chats", ("Chat",)),
    "errors": ("Errors", ()),
}
"""By page: its title, and the names it tells of; errors are all that there are."""
INNER = {
    "untouched", "seen_ids", "restore", "render", "encode", "remember", "checked", "of",
    "with_notes", "without_drafts", "without_thoughts",
}  # fmt: skip
"""Public methods that other parts of the package use, and programs hardly."""


def render() -> dict[Path, str]:
    """The text of every page, by its path."""
    return {FOLDER / f"{page}.md": _page(*of) for page, of in PAGES.items()}


def _page(title: str, names: tuple[str, ...]) -> str:
    parts = [f"# {title}\n", NOTE, *(_section(name) for name in names)]
    return "\n".join(parts if names else [*parts, _errors()])


def _section(name: str) -> str:
    """A function, or a class with its fields and methods."""
    item = getattr(edgespec, name)
    node = _source(item)
    if isinstance(node, ast.FunctionDef):
        return f"## {name}\n\n{_signature(node)}\n\n{_text(node)}\n"
    parts = [f"## {name}\n\n{_text(node)}\n"]
    fields = list(_options(item) if _is_options(item) else _fields(node))
    if name == "ReplyKeywords":
        fields = []
    if fields:
        parts.append("| field | type | default | meaning |\n|---|---|---|---|\n" + "".join(fields))
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and _is_told(method):
            parts.append(f"### {name}.{method.name}\n\n{_signature(method)}\n\n{_text(method)}\n")
    return "\n".join(parts)


def _source(item: Any) -> Any:
    """The syntax tree of a class or function."""
    module = ast.parse(inspect.getsource(sys.modules[item.__module__]))
    return next(node for node in module.body if getattr(node, "name", "") == item.__name__)


def _is_told(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    hidden = method.name.startswith("_") or method.name in INNER
    return not hidden and ast.get_docstring(method) is not None


def _is_options(item: Any) -> bool:
    return hasattr(item, "__dataclass_fields__") and bool(options_of(item))


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """As it is in the source, without what a caller does not give."""
    arguments, of_name = ast.unparse(node.args), node.name
    for own in ("self, /, ", "self, ", "self", "cls, ", "cls"):
        arguments = arguments.removeprefix(own)
    if arguments == "options: LoadOptions":
        arguments = "model=None, *, **options of LoadOptions"
    arguments = arguments.replace("**options: Unpack[ReplyKeywords]", "**options of ReplyOptions")
    is_property = any(getattr(one, "id", "") == "property" for one in node.decorator_list)
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    shown = of_name if is_property else f"{before}{of_name}({arguments})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"```text\n{_wrapped(shown)}{returns}\n```"


def _wrapped(shown: str) -> str:
    """A parameter a line, where one line would be too long."""
    name, bracket, inner = shown.partition("(")
    if len(shown) <= 90:
        return shown
    parts, depth = [""], 0
    for letter in inner[:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return f"{name}{bracket}\n" + "".join(f"    {part.strip()},\n" for part in parts) + ")"


def _text(node: Any) -> str:
    """A docstring; lines of code in it stay lines."""
    return _escaped(inspect.cleandoc(ast.get_docstring(node) or ""))


def _escaped(text: str) -> str:
    return text.replace("[", "\\[").replace("<", "&lt;")


def _options(item: Any) -> Iterator[str]:
    """Rows of options, as the command line tells them."""
    for name, (field, type_, option) in options_of(item).items():
        shown = getattr(type_, "__name__", "") if isinstance(type_, type) else str(type_)
        yield _row(name, shown, repr(field.default), option.help)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Rows of the annotated fields of a class, each with the text right below it."""
    for place, one in enumerate(node.body):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        below = node.body[place + 1] if place + 1 < len(node.body) else None
        told = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            told = " ".join(str(below.value.value).split())
        default = "" if one.value is None else ast.unparse(one.value)
        default = default.removeprefix("field(default=").removesuffix(")" * ("field(" in default))
        yield _row(one.target.id, ast.unparse(one.annotation), default, told)


def _row(name: str, type_: str, default: str, meaning: str) -> str:
    type_ = type_.replace("collections.abc.", "").replace("|", "\\|")
    shown = f"`{default}`" if default else ""
    return f"| `{name}` | `{type_}` | {shown} | {_escaped(meaning)} |\n"


def _errors() -> str:
    """All kinds, below each other as they derive."""
    kinds = [kind for kind in map(edgespec.__dict__.get, edgespec.__all__) if _is_error(kind)]

    def lines(base: type, depth: int) -> Iterator[str]:
        yield f"{'  ' * depth}- `{base.__name__}`: {_escaped(inspect.getdoc(base) or '')}\n"
        for kind in kinds:
            if kind.__bases__[0] is base:
                yield from lines(kind, depth + 1)

    return "".join(lines(edgespec.EdgeSpecError, 0))


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, edgespec.EdgeSpecError)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in render().items():
        path.write_text(text, encoding="utf-8")

"""`edgespec list`: models that are here, and models to start with."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from edgespec.models.hub.kept import find_kept, kept_models
from edgespec.models.hub.names import own_names, recommended
from edgespec.models.hub.reference import parse_reference
from edgespec.models.registry import BUNDLED, DEFAULT, resolve
from edgespec.system.size import format_size
from edgespec.terminal.grid import grid, is_narrow, wide_console
from edgespec.terminal.text_io import printable


def model_rows() -> list[dict[str, Any]]:
    """What `--model` takes without a download: name, size in bytes, path, and what it is."""
    rows = []
    for name in BUNDLED:
        path = resolve(name)
        note = "in the package" + (", the default" if name == DEFAULT else "")
        rows.append({"name": name, "size_bytes": path.stat().st_size, "path": str(path),
                     "note": note})  # fmt: skip
    names = {find_kept(parse_reference(where)): name for name, where in own_names().items()}
    names |= {find_kept(parse_reference(one.reference)): one.name for one in recommended()} | names
    for model in kept_models():
        name = names.get(model.paths[0], str(model.reference))
        note = str(model.reference) if name != str(model.reference) else ""
        rows.append({"name": name, "size_bytes": model.size_bytes, "path": str(model.paths[0]),
                     "note": note})  # fmt: skip
    return rows


def recommended_rows() -> list[dict[str, Any]]:
    """Models to start with, by the memory that they need."""
    return [
        one.as_dict() | {"here": find_kept(parse_reference(one.reference)) is not None}
        for one in recommended()
    ]


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Either list, a line a model."""
    right = {"justify": "right", "no_wrap": True}
    console = wide_console()
    narrow = is_narrow(console)
    table = grid({"no_wrap": not narrow}, right, *([] if narrow else [right]), {"style": "dim"})
    for row in rows:
        if "download" in row:
            mark = "downloaded" if row["here"] else row["download"]
            note = f"{row['why']} ({row['licence']})"
            memory = [] if narrow else [f"{row['memory']} of memory"]
            table.add_row(row["name"], mark, *memory, note)
        else:
            blank = [] if narrow else [""]
            name, said = (Text(printable(row[key]), overflow="fold") for key in ("name", "note"))
            table.add_row(name, format_size(row["size_bytes"]), *blank, said)
    console.print(table)

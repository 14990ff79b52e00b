"""Numba's compiled functions as bytes, read back without pickle: what is read can name no code.

    bytes
    8      magic "EDGECODE"
    3 x 4  little-endian: length of the facts, of the object code, of the bitcode
    then   the facts, as JSON
    then   the object code, which this processor runs
    then   the bitcode, which functions that inline this one link with

Everything that a caller knows is not read: the function, its arguments' types, its options. Numba
keeps the rest of a compiled function as pickled objects; here they are made anew from names.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from typing import Any

from numba.core import environment
from numba.core import types as numba_types
from numba.core.compiler import CompileResult
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.typing.templates import Signature

from edgespec.system.disk_cache import is_object_code

_MAGIC = b"EDGECODE"
_HEAD = struct.Struct("<8s3I")
_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_NAMES = ("modname", "qualname", "unique_name", "mangled_name", "env_name")


types: Any = numba_types  # what it has is not told to type checkers


def packed(result: Any) -> bytes:
    """A compiled function as bytes; raises TypeError for one that cannot be kept so."""
    library, descriptor, _, signature, objectmode, lifted, _, reload_init, environments = (
        result._reduce()
    )
    name, kind, (code, bitcode) = library
    if objectmode or lifted or reload_init or kind != "object" or signature.recvr is not None:
        raise TypeError(f"{descriptor.qualname} needs more than its code")
    facts = {
        "library": name,
        "names": {key: getattr(descriptor, key) for key in _NAMES},
        "args": descriptor.args,
        "inline": bool(descriptor.inline),
        "noalias": bool(descriptor.noalias),
        "abi_tags": descriptor.abi_tags,
        "uid": descriptor.uid,
        "returns": _type_name(descriptor.restype),
        "environments": [_environment_facts(one) for one in (result.environment, *environments)],
    }
    told = json.dumps(facts).encode()
    head = _HEAD.pack(_MAGIC, len(told), len(code), len(bitcode))
    return b"".join((head, told, code, bitcode))


def unpacked(data: bytes, function: Callable[..., Any], argument_types: tuple[Any, ...]) -> Any:
    """What Numba rebuilds a compiled function from; raises ValueError for bytes that are none of
    this one.
    """
    try:
        magic, *sizes = _HEAD.unpack_from(data)
        places = [_HEAD.size]
        for size in sizes:
            places.append(places[-1] + size)
        told, code, bitcode = (data[places[i] : places[i + 1]] for i in range(3))
        if magic != _MAGIC or places[-1] != len(data):
            raise ValueError("another format")
        if not is_object_code(code) or not bitcode.startswith(_BITCODE):
            raise ValueError("no machine code")
        facts = json.loads(told)
        descriptor = _descriptor(facts, function, argument_types)
        own, *others = [_environment(one) for one in facts["environments"]]
        library = (str(facts["library"]), "object", (code, bitcode))
    except (
        struct.error, LookupError, TypeError, AttributeError, ImportError, RecursionError,
    ) as error:  # fmt: skip
        raise ValueError(str(error)) from None
    signature = Signature(descriptor.restype, argument_types, None)
    return library, descriptor, own, signature, False, (), "", (), tuple(others)


def rebuilt(target_context: Any, parts: Any) -> Any:
    """The compiled function, loaded; raises ValueError when LLVM does not take its code."""
    try:
        return CompileResult._rebuild(target_context, *parts)
    except (RuntimeError, KeyError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _descriptor(
    facts: dict[str, Any], function: Callable[..., Any], argument_types: tuple[Any, ...]
) -> Any:
    names = {key: str(facts["names"][key]) for key in _NAMES}
    if (names["modname"], names["qualname"]) != (function.__module__, function.__qualname__):
        raise ValueError("another function's")
    made = PythonFunctionDescriptor.__new__(PythonFunctionDescriptor)
    values = {
        **names,
        "native": True,
        "doc": "",
        "typemap": None,
        "calltypes": None,
        "args": tuple(map(str, facts["args"])),
        "kws": (),
        "restype": _type(facts["returns"]),
        "argtypes": argument_types,
        "global_dict": None,
        "inline": bool(facts["inline"]),
        "noalias": bool(facts["noalias"]),
        "abi_tags": tuple(map(str, facts["abi_tags"])),
        "uid": None if facts["uid"] is None else int(facts["uid"]),
    }
    for key, value in values.items():
        setattr(made, key, value)
    return made


def _scalars() -> dict[str, Any]:
    kinds = (types.none, types.boolean, types.voidptr, *types.integer_domain, *types.real_domain)
    return {str(kind): kind for kind in kinds}


def _type_name(kind: Any) -> Any:
    """A type of results: a scalar's name, {"is": a constant}, or a list of a tuple's."""
    if isinstance(kind, types.Literal) and isinstance(kind.literal_value, bool | int):
        return {"is": kind.literal_value}
    if isinstance(kind, types.BaseTuple) and not isinstance(kind, types.BaseNamedTuple):
        return [_type_name(one) for one in kind]
    if str(kind) not in _scalars():
        raise TypeError(f"a compiled function returns {kind}, which cannot be kept")
    return str(kind)


def _type(name: Any) -> Any:
    if isinstance(name, list):
        return types.BaseTuple.from_types([_type(one) for one in name])
    if isinstance(name, dict):
        if not isinstance(name["is"], bool | int):
            raise ValueError("no constant")
        return types.literal(name["is"])
    return _scalars()[name]


def _environment_facts(one: Any) -> list[Any]:
    if any(not isinstance(const, str | int | float | None) for const in one.consts):
        raise TypeError(f"{one.env_name} holds objects")
    return [one.globals.get("__name__"), list(one.consts), one.env_name]


def _environment(facts: Any) -> Any:
    """Of a module of ours or Numba's, or one that is loaded already: no other is imported."""
    module, consts, name = facts
    if module not in sys.modules and str(module).partition(".")[0] not in ("edgespec", "numba"):
        raise ValueError(f"code of {module}")
    return environment._rebuild_env(module, consts, str(name))

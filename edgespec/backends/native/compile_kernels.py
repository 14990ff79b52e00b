"""Compile the kernels, or load them from the cache, before any weight is in memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import numpy as np

from edgespec.backends.native.code_parts import CodePart, Compiled
from edgespec.backends.native.kernels import early_nodes, table, whole_pass
from edgespec.backends.native.kernels.attention import grouped_query
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.kv import places
from edgespec.backends.native.kernels.matmul.pack import packer
from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.native.kernels.matmul.unpack import unpack_rows
from edgespec.backends.native.kernels.stages import (
    angles,
    attend,
    gated,
    multiply,
    norm,
    project,
    streamed,
)
from edgespec.backends.native.team import Team
from edgespec.system.addresses import AddressTable, address_of
from edgespec.system.resident_memory import release_free_memory


def warm_up(kinds: Iterable[Compiled], kv_type: str = "f16") -> None:
    """Call every compiled function once on nothing: no layers, no rows, no columns."""
    nodes, extra = np.zeros((2, table.NODE_COLUMNS), np.int32), np.zeros(1, np.int32)
    root, parts = np.zeros(1, np.int32), np.zeros((2, table.PART_COLUMNS), np.int64)
    empty, alone = np.zeros(table.NUM_ENTRIES, np.int64), np.full(1, -1, np.int16)
    empty[table.NUM_KV_HEADS] = 1
    addresses = np.zeros(1, np.int64)
    grouped_query.describe_part(empty, alone, root, root, 0, 0, addresses, nodes, extra, parts)
    release_free_memory()  # the first function wakes up LLVM, whose tables are read once
    empty[:] = 0
    name = isa.chosen()
    for interleaved in (False, True):
        isa.row_addresses(name, interleaved)
    isa.attention_addresses(name, kv_type)
    with closing(Team(empty, 2)) as team:
        team.run((0, 0, 0, 0), 0, 0, 1)
    for entry in (
        *(norm.norm, multiply.multiply, multiply.logits, gated.gated, angles.angles),
        *(project.project, attend.attend, attend.finish, streamed.take, streamed.give),
        *(whole_pass.forward, whole_pass.commit),
    ):
        address_of(entry)
    nowhere = AddressTable(whole_pass.NUM_WORDS)
    whole_pass.compute(address_of(whole_pass.commit), nowhere.address, 0, 0)
    places.move_kv(empty, 0, 0, 0, 0)
    early_nodes.match_nodes(
        root, np.full(1, -1, np.int16), np.zeros((3, 1), np.int32), 0, root, root
    )
    for kind in kinds:
        if isinstance(kind, CodePart):
            from edgespec.backends.native.compile_parts import COMPILE

            COMPILE[kind]()
        elif kind in FORMATS:
            packer(kind)
            rows, out = np.zeros(0, np.int32), np.zeros((0, 0), np.float32)
            unpack_rows(tuple(FORMATS[kind].layout), (0, 0, 0, 0), rows, out)
            for size in FORMATS[kind].sizes:
                isa.tile_address(name, kind, size)

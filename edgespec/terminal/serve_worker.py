"""`edgespec worker`: this machine's memory and processor for models that run on another."""

from __future__ import annotations

import sys

from edgespec.backends.llamacpp import library
from edgespec.backends.llamacpp.remote.address import check_listening
from edgespec.backends.llamacpp.remote.key import Key
from edgespec.errors import BackendError, OptionError
from edgespec.memory.plan.budget import Budget
from edgespec.system.hardware import hardware, snapshot
from edgespec.system.size import format_size


def make_key(path: str) -> None:
    """Write a new key file; raises OptionError, BackendError."""
    made = Key.new(path)
    print(f"wrote {made.path}; copy it to the other machine in a way that nobody else can read")


def run_worker(
    host: str, port: int, memory: str, threads: int | None, key_file: str | None
) -> None:
    """Serve until interrupted; raises what keeps it from beginning."""
    if not 0 <= port <= 65535:
        raise OptionError(f"cannot use port {port}; ports are 1 to 65535, or 0 for any free one")
    cpu = hardware()
    if threads is not None and not 1 <= threads <= cpu.allowed_logical:
        raise OptionError(
            f"cannot use {threads} threads: this process may use 1 to {cpu.allowed_logical}"
        )
    key = Key(key_file) if key_file else None
    check_listening(host, key)
    why = library.missing() or library.missing_rpc()
    if why:
        raise BackendError(f"a worker needs llama.cpp's RPC backend: {why}")
    from edgespec.backends.llamacpp.remote.front import Front
    from edgespec.backends.llamacpp.remote.server import RpcServer

    budget = Budget.parse(memory, snapshot())
    count = threads or cpu.usable_threads()
    server = RpcServer(library.shared_folder(), count)
    front = Front(host, port, budget.size_bytes, server, _say, key)
    if key is None:
        _say(
            "warning: without --key-file every user of this machine can use this worker and read "
            "what is sent"
        )
    offer = f"{format_size(front.offer_bytes)} of a budget of {format_size(budget.size_bytes)}"
    shown = f"[{host}]" if ":" in host else host
    print(
        f"listening on {shown}:{front.port}, offering {offer}, {count} "
        f"thread{'' if count == 1 else 's'}; stop with Ctrl-C",
        flush=True,
    )
    try:
        front.serve()
    finally:
        server.stop()


def _say(text: str) -> None:
    print(f"edgespec worker: {text}", file=sys.stderr, flush=True)

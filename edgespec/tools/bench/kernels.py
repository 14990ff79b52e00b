"""`edgespec bench kernels`: what the kernels reach of what this machine can do."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

from edgespec.backends.native.kernels.codegen import isa
from edgespec.errors import OptionError
from edgespec.memory.plan.settings import MOST_NODES
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.child_process import PeerError
from edgespec.system.energy import EnergyMeter
from edgespec.system.hardware import snapshot
from edgespec.system.records import dataclass
from edgespec.tools.bench.curve import OpenModel
from edgespec.tools.bench.kernel_report import KernelReport, Model, PeerCurve, RoofRates
from edgespec.tools.bench.loops import multiply_of
from edgespec.tools.bench.machine import Machine, Others
from edgespec.tools.bench.peers import PEERS, OpenPeer, choose
from edgespec.tools.bench.roofs import Roofs
from edgespec.tools.bench.spread import Spread
from edgespec.tools.bench.turns import Ask, gauged, take_turns

MOST_SIZES = 32
"""Numbers of nodes in one run."""
_OURS = "edgespec"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What is to be measured, checked against the model before anything is loaded."""

    model: str | None
    threads: int | None
    context: int
    """Tokens in the cache when passes are timed."""
    nodes: tuple[int, ...]
    """Numbers of tokens of a pass, ascending from 1."""
    rounds: int
    peers: tuple[str, ...]

    @classmethod
    def parse(
        cls,
        model: str | None,
        threads: int | None,
        context: int,
        nodes: str,
        rounds: int,
        peers: str,
    ) -> Self:
        """From the words of a command line; raises OptionError, PeerError, ModelFileError."""
        if rounds < 1:
            raise OptionError(f"{rounds} rounds were asked for; a median needs 1 or more")
        sizes = parse_nodes(nodes)
        chosen = choose(peers)
        if context < 0:
            raise OptionError(f"--context is a number of tokens, 0 or more, and got {context}")
        with open_model(resolve(model)) as file:
            room = file.spec.context_length
        if context + sizes[-1] > room:
            raise OptionError(
                f"passes of {sizes[-1]} tokens on top of {context} need {context + sizes[-1]} "
                f"positions and this model has {room}; choose a smaller --context or --nodes"
            )
        return cls(model, threads, context, sizes, rounds, chosen)


def parse_nodes(text: str) -> tuple[int, ...]:
    """Ascending numbers of nodes, 1 always among them: "2,4" is 1, 2, 4; raises OptionError."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(
            f"--nodes takes whole numbers by commas, as in 1,2,4,8,16, and got {text!r}"
        ) from None
    if any(after <= before for before, after in zip([0, *sizes], sizes, strict=False)):
        raise OptionError(f"--nodes must ascend from 1 or more, as in 1,2,4,8,16, and got {text}")
    if sizes[-1] > MOST_NODES or len(sizes) > MOST_SIZES:
        raise OptionError(
            f"--nodes takes up to {MOST_SIZES} numbers, none above {MOST_NODES}, and got "
            f"{len(sizes)}, the last {sizes[-1]}"
        )
    return tuple(sizes) if sizes[0] == 1 else (1, *sizes)


def measure(options: KernelOptions, progress: Progress) -> KernelReport:
    """Open everything, measure in turns, close everything.

    Raises BudgetError and ModelFileError where the model cannot be opened; a peer that fails is
    told in the report.
    """
    machine = Machine.here()
    with ExitStack() as stack:
        opened = OpenModel(
            options.model,
            threads=options.threads,
            context=options.context,
            max_nodes=options.nodes[-1],
            progress=progress,
        )
        model = stack.enter_context(opened)
        used = isa.chosen()
        multiply = multiply_of(used, floats=model.work.floats)
        free_bytes = snapshot().free_bytes
        roofs = stack.enter_context(
            Roofs(model.work.read_bytes, free_bytes, model.plan.threads, multiply)
        )
        progress("peers", 0, 1)
        peers, failed = _open_peers(options.peers, model, stack)
        progress("peers", 1, 1)
        others, watts = Others(), _Watts()
        found, lost = take_turns(
            _questions(options.nodes, roofs, model, peers, watts),
            options.rounds,
            partial(progress, "measure"),
        )
        failed |= lost
        return KernelReport(
            machine=machine,
            others_processors=others.processors(),
            model=Model.of(model.file, model.plan, model.work),
            threads=model.plan.threads,
            isa=used,
            context=options.context,
            rounds=options.rounds,
            roofs=RoofRates(
                read=Spread.of(found["read"]["read"]),
                copy=Spread.of(found["copy"]["copy"]),
                multiply=Spread.of(found["multiply"]["multiply"]),
                buffer_bytes=roofs.buffer_bytes,
                instruction=multiply.name,
            ),
            curve={n: Spread.of(found[n][_OURS]) for n in options.nodes},
            watts=watts.of(_OURS),
            peers=tuple(
                PeerCurve(
                    name,
                    PEERS[name].title,
                    PEERS[name].version,
                    peers[name].what if name in peers else "",
                    peers[name].read_bytes if name in peers else 0,
                    {} if name in failed else {n: Spread.of(found[n][name]) for n in options.nodes},
                    failed.get(name, ""),
                    {} if name in failed else watts.of(name),
                )
                for name in options.peers
            ),
        )


def _open_peers(
    names: Sequence[str], model: OpenModel, stack: ExitStack
) -> tuple[dict[str, OpenPeer], dict[str, str]]:
    """The peers that could be opened, and why the others could not."""
    opened: dict[str, OpenPeer] = {}
    failed: dict[str, str] = {}
    for name in names:
        if not PEERS[name].installed:
            failed[name] = PEERS[name].missing
            continue
        try:
            opened[name] = PEERS[name].open(model)
        except PeerError as error:
            failed[name] = str(error)
        else:
            stack.enter_context(opened[name].process)
    return opened, failed


def _questions(
    nodes: Sequence[int],
    roofs: Roofs,
    model: OpenModel,
    peers: dict[str, OpenPeer],
    watts: _Watts,
) -> dict[str | int, dict[str, Ask]]:
    """The roofs, each a group of its own, then for each n everyone who computes."""
    groups: dict[str | int, dict[str, Ask]] = {
        "read": {"read": roofs.read},
        "copy": {"copy": roofs.copy},
        "multiply": {"multiply": roofs.multiply},
    }
    for n in nodes:
        engines: dict[str, Callable[[int], Sequence[float]]] = {_OURS: model.seconds}
        engines |= {name: peer.forward for name, peer in peers.items()}
        groups[n] = {
            name: gauged(partial(ask, n), watts.meter, watts.found[name][n])
            for name, ask in engines.items()
        }
    return groups


class _Watts:
    """What the machine used while an engine computed passes over n tokens."""

    def __init__(self) -> None:
        self.meter = EnergyMeter()
        self.found: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def of(self, name: str) -> dict[int, float]:
        """Medians by n; nothing where the machine does not tell."""
        return {n: statistics.median(found) for n, found in self.found[name].items() if found}

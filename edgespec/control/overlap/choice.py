"""Whether to draft while the target verifies: tried where it can pay, kept where it does.

A thread that drafts takes a core, memory bandwidth and cache from the target, and what it writes
ahead is lost where a verdict was not foreseen. So `auto` first looks at what serial drafting takes,
and how often all of a step's drafts were right: if that would not pay for what overlap takes,
nothing is tried. Else blocks of steps take turns, and what a token took decides; tokens are counted
as the drafts' chances promise, which scatters less than what came. Trials come less often while
they decide as before, and the more seldom, the more the last one lost.
"""

from __future__ import annotations

from dataclasses import field

from edgespec.system.records import dataclass

OPTIONS = ("auto", "on", "off")
FIRST, BLOCK, LEAD_IN = 32, 8, 2
"""Steps before the first trial; steps of each of a trial's blocks, and those that do not count."""
BLOCKS = (False, True, False, True)
"""The blocks of a trial: whether they overlap."""
WORTH = 1.05
"""A trial is made where overlap is expected to be so many times as fast."""
BETTER = 1.03
"""Overlap is kept where it was measured to be so many times as fast."""
HOPELESS = 1.15
"""A trial ends as soon as overlap takes so many times as long."""
PATIENCE, MOST_PATIENCE = 128, 2048
"""Steps to the next trial; four times as many after each that decided as the one before."""
LOSS = 0.005
"""The part of the time that trials may lose, where they fail."""
_RATE = 0.05


@dataclass(slots=True)
class _Cost:
    seconds: float = 0.0
    tokens: float = 0.0

    @property
    def token_s(self) -> float:
        return self.seconds / self.tokens if self.tokens else 0.0


@dataclass(slots=True)
class Choice:
    """Decides for each step; learns from those that were asked for drafts."""

    option: str
    slowdown: float = 1.0
    """How many times as long the target takes with the cores that overlap leaves it."""
    hold_up: float = 0.0
    """By what part of its own time a draft holds up the target that computes beside it."""
    reason: str = "as requested"
    """Why it is on or off for good, where `option` says so."""
    overlapped: bool = field(init=False)
    gain: float = field(default=0.0, init=False)
    """How many times as fast overlap was in the last trial; 0 where none was made."""
    _draft_s: float = field(default=0.0, init=False)
    _step_s: float = field(default=0.0, init=False)
    """What drafting takes of a serial step, and what all of it does."""
    _foreseen: float = field(default=1.0, init=False)
    _num_serial: int = field(default=0, init=False)
    """How often all drafts of a serial step were right, and how many steps that was learnt from."""
    _left: int = field(default=FIRST, init=False)
    _patience: int = field(default=PATIENCE, init=False)
    _blocks: list[bool] = field(default_factory=list, init=False)
    _before: bool = field(default=False, init=False)
    _costs: tuple[_Cost, _Cost] = field(default_factory=lambda: (_Cost(), _Cost()), init=False)

    def __post_init__(self) -> None:
        self.overlapped = self.option == "on"

    @property
    def expected(self) -> float:
        """How many times as fast as serial steps overlapped ones would be: their drafts hold the
        target up, and are written once more, with the target waiting, where one of the drafts
        before was wrong.
        """
        if not self._step_s:
            return 0.0
        ahead_s = self._draft_s * (self.hold_up + 1.0 - self._foreseen)
        return self._step_s / ((self._step_s - self._draft_s) * self.slowdown + ahead_s)

    def observe(self, seconds: float, tokens: float, draft_s: float, *, right: bool = True) -> None:
        """A step took `seconds`, `draft_s` of them for drafting, and promised `tokens`; `right`:
        the text went on where its drafts ended.
        """
        if self.option != "auto":
            return
        if not self.overlapped:
            rate = max(_RATE, 1.0 / (self._num_serial + 1))
            self._num_serial += 1
            self._draft_s += rate * (draft_s - self._draft_s)
            self._step_s += rate * (seconds - self._step_s)
            self._foreseen += rate * (right - self._foreseen)
        self._left -= 1
        if self._blocks and self._left < BLOCK - LEAD_IN:
            cost = self._costs[self.overlapped]
            cost.seconds, cost.tokens = cost.seconds + seconds, cost.tokens + tokens
            if self.overlapped and self._left <= BLOCK - LEAD_IN - 2 and self._is_hopeless:
                self._decide()
        if self._left <= 0:
            self._turn()

    @property
    def _is_hopeless(self) -> bool:
        """Whether a trial need not go on."""
        serial, overlapped = (cost.token_s for cost in self._costs)
        return bool(serial) and overlapped > HOPELESS * serial

    def _turn(self) -> None:
        """Go on to the next block, or decide, or begin a trial."""
        if self._blocks:
            self._blocks.pop()
            if not self._blocks:
                self._decide()
                return
        elif self.overlapped or self.expected >= WORTH:
            self._before, self._blocks = self.overlapped, list(BLOCKS)
            self._costs = (_Cost(), _Cost())
        else:
            self._left = FIRST
            return
        self.overlapped, self._left = self._blocks[-1], BLOCK

    def _decide(self) -> None:
        serial, overlapped = (cost.token_s for cost in self._costs)
        self.gain = serial / overlapped if overlapped else 0.0
        self.overlapped = self.gain >= BETTER
        same = self.overlapped == self._before
        self._patience = min(4 * self._patience, MOST_PATIENCE) if same else PATIENCE
        if not self.overlapped and self._step_s:
            cost = self._costs[True]
            lost_s = cost.seconds - serial * cost.tokens
            self._patience = max(self._patience, int(lost_s / (LOSS * self._step_s)))
        self._blocks = []
        self._left = self._patience

    @property
    def why(self) -> str:
        """One clause: what was chosen, and by which measurement."""
        state = "on" if self.overlapped else "off"
        if self.option != "auto":
            return f"{state}: {self.reason}"
        if self.gain:
            return f"{state}: {self.gain:.2f} times the speed of drafting in turn, as measured"
        if self._step_s:
            return f"{state}: {self.expected:.2f} times the speed of drafting in turn expected"
        return f"{state}: nothing was drafted yet"

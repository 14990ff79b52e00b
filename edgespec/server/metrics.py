"""What the server did, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from edgespec.engine.reply import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Seconds, counted by how many there were up to each of some bounds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*_BUCKETS_S, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum_s:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts since the start."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        self._first_token, self._reply = Histogram(), Histogram()

    def request(self, path: str, status: int) -> None:
        """A request was answered."""
        self._requests[path, status] += 1

    def reply(self, stats: Stats, num_written: int, finish_reason: str, seconds: float) -> None:
        """A reply has ended, `seconds` after it was asked for."""
        self._ends[finish_reason] += 1
        self._tokens["prompt"] += stats.prompt_tokens
        self._tokens["cached"] += stats.cached_tokens
        self._tokens["completion"] += num_written
        self._tokens["drafted"] += stats.drafted
        self._tokens["accepted"] += stats.accepted
        self._reply.add(seconds)
        if stats.time_to_first_token_s:
            self._first_token.add(stats.time_to_first_token_s)

    def text(self, gauges: Mapping[str, float]) -> str:
        """All of it, and what has a value now."""
        lines = ["# TYPE edgespec_requests_total counter"]
        lines += [
            f'edgespec_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self._requests.items())
        ]
        lines.append("# TYPE edgespec_tokens_total counter")
        lines += [
            f'edgespec_tokens_total{{kind="{kind}"}} {count}'
            for kind, count in sorted(self._tokens.items())
        ]
        lines.append("# TYPE edgespec_replies_total counter")
        lines += [
            f'edgespec_replies_total{{finish_reason="{reason}"}} {count}'
            for reason, count in sorted(self._ends.items())
        ]
        for name, histogram in (
            ("edgespec_time_to_first_token_seconds", self._first_token),
            ("edgespec_reply_seconds", self._reply),
        ):
            lines += [f"# TYPE {name} histogram", *histogram.lines(name)]
        for name, value in gauges.items():
            lines += [f"# TYPE edgespec_{name} gauge", f"edgespec_{name} {value:g}"]
        return "\n".join(lines) + "\n"

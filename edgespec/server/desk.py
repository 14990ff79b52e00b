"""Whose turn it is: as many replies at once as the engine has room for, client after client."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class DeskFullError(Exception):
    """More requests wait than the server lets wait."""


class Desk:
    """Hands out turns; clients that wait get them in a circle, however much each of them asks for.

    Belongs to one event loop.
    """

    def __init__(self, num_turns: int, most_waiting: int) -> None:
        self._free, self._most_waiting = num_turns, most_waiting
        self._clients: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Those that wait, whose turn is next first."""

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._clients.values()))

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it; raises DeskFullError when too many wait already."""
        await self._take(client)
        try:
            yield
        finally:
            self._give()

    async def _take(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        if self.num_waiting >= self._most_waiting:
            raise DeskFullError
        ticket = asyncio.get_running_loop().create_future()
        self._clients.setdefault(client, deque()).append(ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.cancelled():
                self._leave(client, ticket)
            else:  # the turn came at the same moment
                self._give()
            raise

    def _leave(self, client: str, ticket: asyncio.Future[None]) -> None:
        tickets = self._clients.get(client)
        if tickets is not None and ticket in tickets:
            tickets.remove(ticket)
            if not tickets:
                del self._clients[client]

    def _give(self) -> None:
        while self._clients:
            client, tickets = self._clients.popitem(last=False)
            ticket = tickets.popleft()
            if tickets:
                self._clients[client] = tickets  # at the end of the circle
            if not ticket.done():
                ticket.set_result(None)
                return
        self._free += 1

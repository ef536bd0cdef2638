"""An independent second opinion on prices: schedules played message by message on a fabric.

No step ends for all ranks together. A message starts when both its ranks have finished what earlier steps
asked of them and have handled what they send or take before it in the step; after the latency of its way it
takes a max-min fair share of every link on it. Slow and plain, for some ten ranks.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Fabric

TOGETHER = 1e-12
"""Seconds within which events count as simultaneous."""


@dataclass(eq=False)
class Message:
    """One flow of one step; ``left`` bytes are still to go. place: how many its ranks handle before it."""

    source: int
    target: int
    left: float
    step: int
    links: list[int]
    place: int


@dataclass(eq=False)
class Rank:
    """steps: step -> messages not yet finished, in order."""

    steps: dict[int, int] = field(default_factory=dict)


class Replay:
    """Events in order of time: messages that have come to the end of their way's latency."""

    def __init__(
        self,
        schedule: Schedule,
        fabric: Fabric,
        size_bytes: float,
        sender: float,
        message: float = 0.0,
    ):
        self.fabric, self.sender, self.message, self.now = fabric, sender, message, 0.0
        self.ranks = [Rank() for _ in range(schedule.ranks)]
        self.waiting: list[Message] = []
        self.flowing: list[Message] = []
        self.events: list[tuple[float, int, Message]] = []
        for step in schedule.expanded():
            columns = step.source.tolist(), step.target.tolist(), step.phase.width.tolist()
            routes = fabric.route(step.source, step.target).tolist()
            # Of each rank how far its messages of this step go: both ends handle the shortest first.
            sent, taken = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
            for source, target, _ in zip(*columns, strict=True):
                for far in (sent[source], taken[target]) if source != target else ():
                    far.add((target - source) % schedule.ranks)
            for source, target, width, ids in zip(*columns, routes, strict=True):
                if source == target:
                    continue
                size = width * size_bytes / schedule.pieces
                links = [link for link in ids if link >= 0]
                own = (target - source) % schedule.ranks
                place = max(
                    sum(one < own for one in far) for far in (sent[source], taken[target])
                )
                self.waiting.append(Message(source, target, size, step.index, links, place))
                for rank in (self.ranks[source], self.ranks[target]):
                    rank.steps[step.index] = rank.steps.get(step.index, 0) + 1

    def start(self) -> None:
        """Sends off every message whose two ranks have come to its step."""
        turn = [next(iter(rank.steps), -1) for rank in self.ranks]
        ready = [
            one for one in self.waiting if turn[one.source] == turn[one.target] == one.step
        ]
        self.waiting = [
            one for one in self.waiting if not turn[one.source] == turn[one.target] == one.step
        ]
        for message in ready:
            latency = float(self.fabric.link_latency_seconds[message.links].sum())
            begin = self.now + self.sender + message.place * self.message
            heapq.heappush(self.events, (begin + latency, id(message), message))

    def rates(self) -> list[float]:
        """Max-min fair shares: the tightest link is filled first, then the next."""
        flow = np.repeat(np.arange(len(self.flowing)), [len(m.links) for m in self.flowing])
        link = np.array([link for message in self.flowing for link in message.links])
        room = self.fabric.link_bytes_per_second.copy()
        rates = np.full(len(self.flowing), np.nan)
        while len(flow):
            users = np.bincount(link, minlength=len(room))
            share = np.where(users > 0, np.maximum(room, 0) / np.maximum(users, 1), np.inf)
            fixed = np.unique(flow[share[link] <= share.min() * (1 + 1e-9)])
            rates[fixed] = share.min()
            settled = np.isin(flow, fixed)
            np.subtract.at(room, link[settled], share.min())
            flow, link = flow[~settled], link[~settled]
        return [float(rate) for rate in rates]

    def arrived(self, message: Message) -> None:
        for rank in (self.ranks[message.source], self.ranks[message.target]):
            rank.steps[message.step] -= 1
            if not rank.steps[message.step]:
                del rank.steps[message.step]

    def run(self) -> float:
        self.start()
        while self.events or self.flowing:
            flows = list(zip(self.flowing, self.rates() if self.flowing else [], strict=True))
            before, ends = self.now, [message.left / rate for message, rate in flows]
            self.now = min(
                [before + min(ends, default=np.inf), *(event[0] for event in self.events[:1])]
            )
            for message, rate in flows:
                message.left -= rate * (self.now - before)
                if message.left <= rate * TOGETHER:
                    self.arrived(message)
            self.flowing = [
                message for message, rate in flows if message.left > rate * TOGETHER
            ]
            while self.events and self.events[0][0] <= self.now + TOGETHER:
                _, _, message = heapq.heappop(self.events)
                self.flowing.append(message) if message.left > 0 else self.arrived(message)
            self.start()
        return self.now

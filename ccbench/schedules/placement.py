"""Every version gets a place in memory: in the output buffer where that is safe, else in work space.

Safe means that nobody but the version itself still needs what lies there. Which versions of a slot go to
the output buffer is chosen from the last one backwards, so that the last one lands there by itself
wherever possible (recursive doubling then alternates between work space and output).
"""

from __future__ import annotations

from ccbench.schedules.layout import Layout, Place, Space
from ccbench.schedules.versions import Key, Value, Versions

ALIGNMENT_ELEMENTS = 64
"""Work places start at multiples of this, so that vector loads are aligned for every dtype."""


class Placement:
    """Assigns places in step order; ``occupants`` are the values that a place held, oldest first."""

    def __init__(self, layout: Layout, versions: Versions) -> None:
        self._layout = layout
        self._versions = versions
        self.occupants: dict[Place, list[Value]] = {}
        self.work_elements = [0] * layout.schedule.ranks
        self._work_places: dict[tuple[int, int], list[Place]] = {}

    def assign(self) -> None:
        """Give every value a place and append the copies that bring stray results home."""
        wanted = self._wanted_places()
        for value in self._versions.values:
            if value.place is None:
                place = wanted.get(value.number)
                value.place = place if place and self._is_free(place, value) else self._work_place(value)
            self.occupants.setdefault(value.place, []).append(value)
        self._bring_home()

    def _wanted_places(self) -> dict[int, Place]:
        wanted: dict[int, Place] = {}
        for key, chain in self._versions.chains.items():
            home = self._layout.output_place(*key)
            if home is None:
                continue
            at_home = True
            following: Value | None = None
            for value in reversed(chain):
                if following is not None and value.last_read_step(following.number) >= following.step:
                    at_home = not at_home
                if at_home:
                    wanted[value.number] = home
                following = value
        return wanted

    def _is_free(self, place: Place, value: Value) -> bool:
        if place.elements == 0:
            return True
        return all(
            not held.is_output
            and held.step < value.step
            and held.last_read_step(value.number) < value.step
            and (value.number not in (read.reader for read in held.reads) or self._is_own(held, value))
            for held in self.occupants.get(place, ())
        )

    @staticmethod
    def _is_own(held: Value, value: Value) -> bool:
        # Overwriting an operand is fine only for the accumulator, which the first operation reads.
        return bool(value.operands) and value.reduces and held.number == value.operands[0]

    def _work_place(self, value: Value) -> Place:
        rank = value.key[0]
        pool = self._work_places.setdefault((rank, value.elements), [])
        for place in pool:
            if self._is_free(place, value):
                return place
        place = Place(rank, Space.WORK, self.work_elements[rank], value.elements)
        padded = -(-value.elements // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        self.work_elements[rank] += padded
        pool.append(place)
        return place

    def _bring_home(self) -> None:
        step = self._versions.last_step + 1
        stray: list[tuple[Key, Place]] = []
        for key, chain in self._versions.chains.items():
            home = self._layout.output_place(*key)
            if home is not None and chain[-1].place != home:
                stray.append((key, home))
        for key, home in stray:
            last = self._versions.chains[key][-1]
            copy = self._versions.add(key, last.elements, step, key[0])
            self._versions.read(copy, (last.number,))
            copy.place = home
            copy.is_output = True
            self.occupants.setdefault(home, []).append(copy)
        if stray:
            self._versions.last_step = step

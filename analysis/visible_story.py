"""How timelines and diagrams are checked, told and coloured: one rule for the screen and for files. NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from analysis.figure_data import HEAD_COLOURS
from analysis.figure_lab import Diagram, DiagramArrow, Timeline, TimelineEntry

BREAK = 4
"""Years without an entry from which on the axis is broken."""


# Timelines ----------------------------------------------------------------------------------------------------------


def theme_colour(view: Timeline, theme: str) -> str:
    """Colour of a theme: its place among all themes in the palette."""
    return HEAD_COLOURS[[key for key, _ in view.themes].index(theme) % len(HEAD_COLOURS)]


def lanes(view: Timeline) -> tuple[tuple[str, str], ...]:
    """(key, name) of the themes that have an entry, in their order."""
    found = {entry.theme for entry in view.entries}
    return tuple((key, name) for key, name in view.themes if key in found)


def years(view: Timeline) -> tuple[tuple[int, tuple[TimelineEntry, ...]], ...]:
    """Years that have entries, with these."""
    found: dict[int, list[TimelineEntry]] = {}
    for entry in view.entries:
        found.setdefault(entry.year, []).append(entry)
    return tuple((year, tuple(entries)) for year, entries in found.items())


def check_timeline(view: Timeline, function: str) -> None:
    """Raise unless the parts of a timeline belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for no entries, years that fall, a key that comes twice, an unknown theme, or a choice that there
            is not.
    """
    if not view.entries:
        raise ValueError(f"{function}: entries must be at least one but there are none; pass some.")
    found = [entry.year for entry in view.entries]
    if found != sorted(found):
        raise ValueError(f"{function}: entries must stand by ascending year but do not; sort them.")
    keys = [entry.key for entry in view.entries]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(
            f"{function}: entries must have a key each but {twice[0]!r} comes twice; rename one."
        )
    themes = [key for key, _ in view.themes]
    for entry in view.entries:
        if entry.theme not in themes:
            raise ValueError(
                f"{function}: theme of {entry.key!r} must be one of {', '.join(themes)} but is {entry.theme!r}."
            )
    if view.selected and view.selected not in keys:
        raise ValueError(
            f"{function}: selected must be the key of an entry but is {view.selected!r}; use '' for none."
        )


def timeline_in_words(view: Timeline) -> str:
    """What stands under an exported timeline; the notes are in it."""
    count = len(view.entries)
    sentences = [
        f"{count} {'work' if count == 1 else 'works'}, {view.entries[0].year} to {view.entries[-1].year}.",
        "A full dot: the mechanism runs in AttnScope; a ring: one that is like it.",
    ]
    if view.selected:
        entry = next(entry for entry in view.entries if entry.key == view.selected)
        sentences.append(f"Opened: {entry.authors} ({entry.year}), {entry.title}.")
    return " ".join([*sentences, *view.notes])


def texts_of_timeline(view: Timeline) -> tuple[str, ...]:
    """Every text of a timeline besides its title and notes."""
    return tuple(_timeline_texts(view))


def _timeline_texts(view: Timeline) -> Iterator[str]:
    yield from (name for _, name in view.themes)
    for entry in view.entries:
        yield from (entry.name, entry.title, entry.authors, entry.added, entry.source, entry.here)


# Diagrams -----------------------------------------------------------------------------------------------------------

FORK = 0.72
"""Where in a gap the labels of a fork stand, whose trunk is in the middle."""

Corner = tuple[float, float]
"""(across, down) in a grid of boxes: box c runs from 2c to 2c + 1, the gap behind it to 2c + 2."""


@dataclass(frozen=True)
class Way:
    """How an arrow runs.

    Attributes:
        corners: from its start to its tip.
        label: where its label stands; ``side``: above, below, right of this point, or on it.
    """

    corners: tuple[Corner, ...]
    label: Corner
    side: Literal["above", "below", "right", "on"]


def arrow_ways(view: Diagram) -> tuple[Way, ...]:
    """The ways of all arrows, round what stands between their ends."""
    taken = {stage.place for stage in view.stages}
    return tuple(_way(view, arrow, taken) for arrow in view.arrows)


def _way(view: Diagram, arrow: DiagramArrow, taken: set[tuple[int, int]]) -> Way:
    (column, row), (to_column, to_row) = view.stages[arrow.start].place, view.stages[arrow.stop].place
    x, y, to_x, to_y = (2 * place + 0.5 for place in (column, row, to_column, to_row))  # middles
    down = 0.5 if to_row > row else -0.5
    if column == to_column:
        ends = y + down, to_y - down
        return Way(((x, ends[0]), (x, ends[1])), (x, sum(ends) / 2), "right")
    forth = 0.5 if to_column > column else -0.5
    if row == to_row:
        between = range(min(column, to_column) + 1, max(column, to_column))
        if any((place, row) in taken for place in between):
            low = y + 0.9
            return Way(((x, y + 0.5), (x, low), (to_x, low), (to_x, y + 0.5)), ((x + to_x) / 2, low), "on")
        ends = x + forth, to_x - forth
        forks = any(other.start == arrow.start and _turns_in_gap(view, other, taken) for other in view.arrows)
        share = FORK if forks else 0.5
        return Way(((ends[0], y), (ends[1], y)), (ends[0] + share * (ends[1] - ends[0]), y), "above")
    if abs(to_column - column) > 1:  # down to the gap above the end
        gap = to_y - 2 * down
        return Way(((x, y + down), (x, gap), (to_x, gap), (to_x, to_y - down)), ((x + to_x) / 2, gap), "on")
    if _turns_in_gap(view, arrow, taken):
        gap = x + 2 * forth
        corners = ((x + forth, y), (gap, y), (gap, to_y), (to_x - forth, to_y))
        return Way(corners, (gap + 2 * forth * (FORK - 0.5), to_y), "above")
    end = to_y - down
    return Way(((x + forth, y), (to_x, y), (to_x, end)), (to_x, (y + end) / 2), "right")


def _turns_in_gap(view: Diagram, arrow: DiagramArrow, taken: set[tuple[int, int]]) -> bool:
    """Whether an arrow goes to the next column's other row through the gap, since a box stands in its row."""
    (column, row), (to_column, to_row) = view.stages[arrow.start].place, view.stages[arrow.stop].place
    return abs(to_column - column) == 1 and to_row != row and (to_column, row) in taken


def check_diagram(view: Diagram, function: str) -> None:
    """Raise unless the parts of a diagram belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for no stages, two at one place, numbers that are no matrix, an arrow from or to what there is
            not, or a choice that there is not.
    """
    count = len(view.stages)
    if not count:
        raise ValueError(f"{function}: stages must be at least one but there are none; pass some.")
    places = [stage.place for stage in view.stages]
    if len(set(places)) < count or min(map(min, places)) < 0:
        raise ValueError(f"{function}: stages must have a place each, (column, row) from 0; move one.")
    for stage in view.stages:
        shape = stage.values.values.shape
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"{function}: values of {stage.name!r} must be (rows, columns) but are {shape}.")
        if stage.row is not None and not 0 <= stage.row < shape[0]:
            raise ValueError(
                f"{function}: row of {stage.name!r} must be one of {shape[0]}, counted from 0, but is {stage.row}."
            )
    for arrow in view.arrows:
        if arrow.start == arrow.stop or not (0 <= arrow.start < count and 0 <= arrow.stop < count):
            raise ValueError(
                f"{function}: arrows must lead from one of the {count} stages to another but one leads from "
                f"{arrow.start} to {arrow.stop}."
            )
    if view.selected is not None and not 0 <= view.selected < count:
        raise ValueError(
            f"{function}: selected must be one of the {count} stages, counted from 0, but is {view.selected}; "
            "use None for none."
        )


def diagram_in_words(view: Diagram) -> str:
    """What stands under an exported diagram; the notes are in it."""
    sentences = [
        f"{len(view.stages)} stages; red is above 0, blue below, each with its own end of colours.",
    ]
    if view.selected is not None:
        stage = view.stages[view.selected]
        named = f" ({stage.parameter})" if stage.parameter else ""
        sentences.append(f"Marked: {stage.name}, {stage.symbol} = {stage.formula}{named}.")
    return " ".join([*sentences, *view.notes])


def texts_of_diagram(view: Diagram) -> tuple[str, ...]:
    """Every text of a diagram besides its title and notes."""
    return (
        *(text for stage in view.stages for text in (stage.name, stage.symbol, stage.shape, stage.axes)),
        *(arrow.label for arrow in view.arrows),
    )

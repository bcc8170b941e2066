"""Trained models by distance of predictions and of attention, on paper."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np

from analysis.drawing import INK, MUTED, Fonts, Sheet
from analysis.figure_data import TradeOff, TradeOffGroup
from analysis.plates.axes import Axes
from analysis.plates.frame import MARGIN, SMALL_SIZE, TINY_SIZE, TOP, Words, new_sheet
from analysis.visible_checks import LARGEST_JSD, TRADE_OFF_GROUPS, trade_off_end

WIDTH, HEIGHT, LEFT = 6.2, 3.2, 0.62  # inches
HIGHEST = 0.75
"""Nats."""


def draw_trade_off(view: TradeOff, words: Words, fonts: Fonts) -> Sheet:
    """A mark a model with its intervals, below ln 2; adversaries are joined, one λ after the other."""
    sheet = new_sheet(WIDTH, HEIGHT + 1.1, words, fonts)
    end = trade_off_end(view)
    place = (MARGIN + LEFT, TOP + 0.35, WIDTH - 2 * MARGIN - LEFT, HEIGHT)
    axes = Axes(sheet, *place, across=(0.0, end), up=(0.0, HIGHEST))
    axes.frame(
        "",
        "TVD of predictions from the base model",
        "JSD of attention (nats)",
        across_ticks=[end * share for share in (0, 0.25, 0.5, 0.75, 1)],
        up_ticks=(0, 0.2, 0.4, 0.6),
    )
    axes.line((0.0, LARGEST_JSD), (end, LARGEST_JSD), INK, dashed=True)
    x, y = axes.place(end, LARGEST_JSD)
    sheet.text(x, y - 0.07, "ln 2", size=TINY_SIZE, colour=INK, align="right")
    left = MARGIN + LEFT
    for group in get_args(TradeOffGroup):
        members = [point for point in view.points if point.group == group]
        if not members:
            continue
        title, colour, mark = TRADE_OFF_GROUPS[group]
        if group == "adversary":
            for before, after in itertools.pairwise(members):
                axes.line((before.tvd, before.jsd), (after.tvd, after.jsd), colour, dashed=True)
        for point in members:
            if point.tvd_interval:
                axes.line((point.tvd_interval[0], point.jsd), (point.tvd_interval[1], point.jsd), colour)
            if point.jsd_interval:
                axes.line((point.tvd, point.jsd_interval[0]), (point.tvd, point.jsd_interval[1]), colour)
            x, y = axes.place(point.tvd, point.jsd)
            sheet.text(x + 0.07, y + 0.1, point.label, size=TINY_SIZE, colour=MUTED)
        tvd, jsd = (np.array([getattr(point, name) for point in members]) for name in ("tvd", "jsd"))
        axes.dots(tvd, jsd, colour, size=0.1, shape=mark)
        sheet.dots(np.array([[left, TOP + 0.12]]), colour, size=0.1, shape=mark)
        sheet.text(left + 0.1, TOP + 0.12, title, size=SMALL_SIZE)
        left += 0.1 + fonts.width(title, SMALL_SIZE) + 0.28
    return sheet

"""The Text page: every head of a text model on a sentence, a pair, or a file."""

from __future__ import annotations

from functools import partial

from analysis.samples import TEXT_SAMPLES
from dashboard.boundary import page_boundary
from dashboard.frame import empty_view
from dashboard.selection import TextInput, choose, current
from dashboard.views.text_workspace import workspace
from dashboard.waiting import ask_to_load, when_ready

choices = current().text
pair = choices.input.pair

with page_boundary("This page could not be shown"):
    if choices.model.asked:
        ask_to_load("text", choices.model)
    elif not choices.input.text.strip() or (pair is not None and not pair.strip()):
        missing = "a sentence" if not choices.input.text.strip() else "the second sentence"
        fitting = [sample for sample in TEXT_SAMPLES if (sample.pair is None) == (pair is None)][:3]
        empty_view(
            f"Type {missing} on the left, or start from an example.",
            [
                (
                    sample.id,
                    sample.title,
                    partial(choose, "text", input=TextInput(sample.text, sample.pair, "sample", sample.id)),
                )
                for sample in fitting
            ],
            key="text",
        )
    else:
        when_ready("text", choices.model, workspace)

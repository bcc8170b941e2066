"""The Image page: every head of a vision transformer on a photograph."""

from __future__ import annotations

from dashboard.boundary import page_boundary
from dashboard.selection import current
from dashboard.views.image_workspace import workspace
from dashboard.waiting import ask_to_load, when_ready

choices = current().image

with page_boundary("This page could not be shown"):
    if choices.model.asked:
        ask_to_load("image", choices.model)
    else:
        when_ready("image", choices.model, workspace)

"""The Lab: every mechanism of attention, live, to be touched; one section is open at a time."""

from __future__ import annotations

from dashboard.boundary import page_boundary
from dashboard.views.lab_workspace import workspace

with page_boundary("This page could not be shown"):
    workspace()

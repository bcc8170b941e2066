"""The Scale page: time and memory of attention against n, measured on this machine while the reader watches."""

from __future__ import annotations

from dashboard.boundary import page_boundary
from dashboard.views.scale_workspace import workspace

with page_boundary("This page could not be shown"):
    workspace()

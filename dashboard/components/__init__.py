"""Our own components: raw bytes in, checked choices out. One folder each with its script and styles."""

from dashboard.components.evidence_views import (
    checked_evidence,
    evidence_maps,
    evidence_state,
    evidence_words,
)
from dashboard.components.head_views import checked_head_grid, head_grid, head_grid_state
from dashboard.components.map_views import (
    checked_matrix_view,
    checked_patch_map,
    checked_token_strip,
    matrix_view,
    matrix_view_state,
    patch_map,
    patch_map_state,
    token_strip,
)
from dashboard.components.mount import ComponentFiles, component_files
from dashboard.components.page_link import page_link
from dashboard.components.text_views import (
    checked_head_view,
    checked_model_view,
    head_view,
    head_view_state,
    model_view,
)

__all__ = [
    "head_view",
    "model_view",
    "head_grid",
    "matrix_view",
    "patch_map",
    "token_strip",
    "evidence_maps",
    "evidence_words",
    "page_link",
    "head_view_state",
    "head_grid_state",
    "checked_head_grid",
    "checked_head_view",
    "checked_model_view",
    "matrix_view_state",
    "patch_map_state",
    "checked_matrix_view",
    "checked_patch_map",
    "checked_token_strip",
    "evidence_state",
    "checked_evidence",
    "component_files",
    "ComponentFiles",
]

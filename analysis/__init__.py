"""Analysis of attention: models, inputs, captured attention, rollout, export. Imports ``attn_core``.

The public functions live in their modules (``analysis.models.load_model``, ``analysis.inputs.encode_text``,
``analysis.trace.trace`` ...). This file imports nothing, so that the first page is painted before torch is there.
"""

from __future__ import annotations

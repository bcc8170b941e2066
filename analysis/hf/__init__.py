"""The only room that imports transformers and the Hub's client."""

from __future__ import annotations

"""The places where a tree of tensors can lie. Nothing here knows what a tensordict is: tensors and JSON only."""

from __future__ import annotations

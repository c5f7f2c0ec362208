"""What is done with several tensordicts, under the module name that programs import it from."""

from __future__ import annotations

from tensordict.roof.collate import collate
from tensordict.roof.functions import (
    dense_stack_tds,
    group_by,
    make_tensordict,
    merge_tensordicts,
    pad,
    pad_sequence,
    unpad_sequence,
)

__all__ = [
    "collate",
    "dense_stack_tds",
    "group_by",
    "make_tensordict",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
    "unpad_sequence",
]

"""A tensorclass is a dataclass to type checkers: its fields, and the arguments that every constructor takes."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from typing_extensions import assert_type

from tensordict import TensorClass


class Frame(TensorClass):
    image: Tensor
    label: str = "none"
    scale: float = dataclasses.field(default=1.0)


def check() -> None:
    frame = Frame(torch.zeros(2, 3), "cat", batch_size=[2], device="cpu", names=["time"], lock=False)
    assert_type(Frame(image=torch.zeros(2)), Frame)
    assert_type(frame.image, Tensor)
    assert_type(frame.label, str)
    assert_type(frame.scale, float)
    assert_type(frame.batch_size, torch.Size)
    assert_type(frame.device, torch.device | None)
    assert_type(frame.names, list[str | None])
    assert_type(frame.exp().image, Tensor)
    assert_type(frame[0].image, Tensor)
    assert_type((frame.sum(dim=0) + 1).image, Tensor)

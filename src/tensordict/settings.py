"""Switches that change what a few words do, each a context manager, a decorator and a setter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Switch:
    """Set a switch: at once by `set`, for a block by ``with``, or for each call of a function it decorates.

    Args:
        mode: on or off.
    """

    value: ClassVar[Any] = None
    usual: ClassVar[bool]

    def __init__(self, mode: bool = True) -> None:
        if not isinstance(mode, bool):
            raise TypeError(f"{type(self).__name__} takes True or False, got {mode!r}")
        self.mode = mode
        self._before: list[Any] = []

    def set(self) -> None:
        """Set the switch until it is set again."""
        type(self).value = self.mode

    def __enter__(self) -> Self:
        self._before.append(self.value)
        self.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        type(self).value = self._before.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return decorated

    @classmethod
    def state(cls, allow_none: bool = False) -> bool | None:
        """Return how the switch stands; None if nobody has set it, where that is allowed."""
        usual = None if allow_none else cls.usual
        return usual if cls.value is None else bool(cls.value)


class set_lazy_legacy(Switch):
    """Make `stack` give lazy stacks (off by default).

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, set_lazy_legacy
        >>> with set_lazy_legacy(True):
        ...     type(torch.stack([TensorDict({"x": 1})])).__name__
        'LazyStackedTensorDict'
    """

    usual = False


class set_list_to_stack(Switch):
    """Make a list that is set as a value one value a row (on by default); off, it is one value for all rows.

    Examples:
        >>> from tensordict import TensorDict, set_list_to_stack
        >>> with set_list_to_stack(False):
        ...     TensorDict({"x": ["a", "b"]}, [3])[0]["x"]
        ['a', 'b']
    """

    usual = True


class set_capture_non_tensor_stack(Switch):
    """Make a stack of non-tensors that are all the same one value for all rows (off by default).

    Examples:
        >>> import torch
        >>> from tensordict import NonTensorData, set_capture_non_tensor_stack
        >>> with set_capture_non_tensor_stack(True):
        ...     type(torch.stack([NonTensorData("a"), NonTensorData("a")])).__name__
        'NonTensorData'
    """

    usual = False


class _GetDefaultsToNone(Switch):
    usual = True


def set_get_defaults_to_none(set_to_none: bool = True) -> None:
    """Make `get` return None for a missing key (on by default), or raise KeyError, until it is set again.

    Args:
        set_to_none: False to raise.

    Examples:
        >>> from tensordict import TensorDict, set_get_defaults_to_none
        >>> set_get_defaults_to_none(False)
        >>> TensorDict({}).get("x")
        Traceback (most recent call last):
        ...
        tensordict.errors.MissingKey: key 'x' not found in TensorDict with keys []
        >>> set_get_defaults_to_none(True)
    """
    _GetDefaultsToNone(set_to_none).set()


_SHOWN = {
    "show_batch_size": True,
    "show_device": True,
    "show_shape": True,
    "show_dtype": True,
    "show_field_device": True,
    "show_grad": False,
    "show_is_contiguous": False,
    "show_is_view": False,
    "show_storage_size": False,
    "sort_keys": "insertion",
}


class set_printoptions(Switch):
    """Say what the repr of a tensordict shows: at once by `set`, for a ``with`` block, or for a decorated function.

    Args:
        verbose: False shows batch sizes and shapes only, beside what the other options ask for.
        **kwargs: options as `get_printoptions` names them; those that are not named stay as they are.

    Raises:
        TypeError: for an option that there is not.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, set_printoptions
        >>> with set_printoptions(show_grad=True):
        ...     TensorDict({"x": torch.ones(2)}, [2])
        TensorDict(batch_size=[2], fields={x: f32[] requires_grad=False})
    """

    value = _SHOWN

    def __init__(self, *, verbose: bool = True, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(_SHOWN))
        if unknown:
            raise TypeError(f"there are no print options {unknown}; known are {list(_SHOWN)}")
        super().__init__(verbose)
        few = {name: name in ("show_batch_size", "show_shape") for name in _SHOWN if name != "sort_keys"}
        self._options = kwargs if verbose else {**few, **kwargs}

    def set(self) -> None:
        """Set the options until they are set again."""
        set_printoptions.value = {**set_printoptions.value, **self._options}


def get_printoptions() -> dict[str, Any]:
    """Return what the repr of a tensordict shows; see `set_printoptions`.

    The options that begin with ``show_field_`` or name a property of tensors are about leaves; ``show_field_device``
    marks those on another device than the tensordict. ``sort_keys`` is "insertion" or "alphabetical".

    Examples:
        >>> from tensordict import get_printoptions
        >>> get_printoptions()["sort_keys"]
        'insertion'
    """
    return dict(set_printoptions.value)


def lazy_legacy(allow_none: bool = False) -> bool | None:
    """Tell whether `stack` gives lazy stacks; see `set_lazy_legacy`.

    Args:
        allow_none: return None when it was never set.

    Examples:
        >>> from tensordict import lazy_legacy
        >>> lazy_legacy()
        False
    """
    return set_lazy_legacy.state(allow_none)


def list_to_stack(allow_none: bool = False) -> bool | None:
    """Tell whether a list is one value a row; see `set_list_to_stack`.

    Args:
        allow_none: return None when it was never set.

    Examples:
        >>> from tensordict import list_to_stack
        >>> list_to_stack()
        True
    """
    return set_list_to_stack.state(allow_none)


def capture_non_tensor_stack(allow_none: bool = False) -> bool | None:
    """Tell whether a stack of equal non-tensors is one value; see `set_capture_non_tensor_stack`.

    Args:
        allow_none: return None when it was never set.

    Examples:
        >>> from tensordict import capture_non_tensor_stack
        >>> capture_non_tensor_stack()
        False
    """
    return set_capture_non_tensor_stack.state(allow_none)


def get_defaults_to_none() -> bool:
    """Tell whether `get` returns None for a missing key; see `set_get_defaults_to_none`.

    Examples:
        >>> from tensordict import get_defaults_to_none
        >>> get_defaults_to_none()
        True
    """
    return bool(_GetDefaultsToNone.state())

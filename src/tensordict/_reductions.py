"""What pickles of the published package call, by the names that they call it by.

pickle --its state--> `_make_td` --> the container; of typed and non-tensor classes, `__setstate__` takes that state.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from torch import Tensor
from torch.serialization import add_safe_globals

from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.kinds.nontensor import MetaData, NonTensorData, NonTensorStack
from tensordict.kinds.unbatched import UnbatchedTensor
from tensordict.ops.join import lazy_stack
from tensordict.roof.functions import from_consolidated


def _make_td(cls: Any, state: dict[str, Any]) -> Any:
    if "tensordicts" in state:
        node: Any = lazy_stack(state["tensordicts"], state["stack_dim"])
    else:
        names = state.get("_td_dim_names")
        node = TensorDict(
            state["_tensordict"],
            state["_batch_size"],
            state["_device"],
            names=names if any(name is not None for name in names or ()) else None,
        )
    return node.lock_() if state.get("_is_locked") else node


def _rebuild_tensordict_files_consolidated(metadata: dict[str, Any], storage: Tensor) -> Any:
    text = json.dumps(metadata).encode()
    with tempfile.TemporaryDirectory() as folder:  # what is pickled is such a file in two parts
        path = os.path.join(folder, "data")
        with open(path, "wb") as file:
            file.write(b"".join((storage.cpu().numpy().tobytes(), text, len(text).to_bytes(8, "little"))))
        node = from_consolidated(path, mode="r").clone()
    return node.lock_() if metadata["cls_metadata"].get("is_locked") else node


# none of these runs anything but what is in this package
_CALLED = {
    "_reductions": (_make_td, _rebuild_tensordict_files_consolidated),
    "_td": (TensorDict,),
    "_lazy": (LazyStackedTensorDict,),
    "_unbatched": (UnbatchedTensor,),
    "tensorclass": (NonTensorData, NonTensorStack, MetaData),
}
add_safe_globals([(one, f"tensordict.{module}.{one.__name__}") for module, called in _CALLED.items() for one in called])
add_safe_globals([(tuple, "tensordict.utils._LockedSchema")])

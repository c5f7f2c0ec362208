"""One line for each name at the top of the package: the type that mypy and pyright give it.

`tests/test_typing.py` runs every line too, and says which names have none.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import assert_type

from tensordict import (
    KEY_SEPARATOR,
    NO_DEFAULT,
    LazyStackedTensorDict,
    MemoryMappedTensor,
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorStack,
    PackLayout,
    PersistentTensorDict,
    RayExecutor,
    TensorAttrs,
    TensorClass,
    TensorCollection,
    TensorDict,
    TensorDictBase,
    TypedTensorDict,
    UnbatchedTensor,
    WorkerError,
    __version__,
    append_memmap,
    assert_allclose_td,
    assert_close,
    capture_non_tensor_stack,
    cat,
    collate,
    default_is_leaf,
    dense_stack_tds,
    from_any,
    from_consolidated,
    from_dataclass,
    from_dict,
    from_h5,
    from_namedtuple,
    from_pytree,
    from_tuple,
    from_zarr,
    fromkeys,
    get_defaults_to_none,
    get_printoptions,
    group_by,
    is_bool,
    is_floating,
    is_inexact,
    is_integer,
    is_leaf_nontensor,
    is_memmap_archive,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
    lazy_legacy,
    lazy_stack,
    list_to_stack,
    load,
    load_memmap,
    make_tensordict,
    maybe_dense_stack,
    memmap,
    merge_tensordicts,
    pack_memmap,
    pad,
    pad_sequence,
    parse_tensor_dict_string,
    refresh_archive_checksums,
    save,
    set_capture_non_tensor_stack,
    set_get_defaults_to_none,
    set_lazy_legacy,
    set_list_to_stack,
    set_printoptions,
    stack,
    tensorclass,
    unpack_memmap,
    unpad_sequence,
    unravel_key,
    unravel_key_list,
    unravel_key_to_tuple,
)
from tensordict.data import Blocks, Loader, Permutation, Stats

Point = namedtuple("Point", "x")
Row = make_dataclass("Row", ["x"])


class Sample:
    x: Tensor


def check(td: TensorDict, mask: Tensor, folder: str) -> None:
    assert_type(str(KEY_SEPARATOR), str)
    assert_type(str(NO_DEFAULT), str)
    assert_type(LazyStackedTensorDict(td), LazyStackedTensorDict)
    assert_type(append_memmap(td.memmap(folder).saved_path, td), None)
    assert_type(MemoryMappedTensor([1.0]), MemoryMappedTensor)
    assert_type(MetaData("a"), MetaData)
    assert_type(NonTensorData("a"), NonTensorData)
    assert_type(isinstance(td, NonTensorDataBase), bool)
    assert_type(NonTensorStack("a", "b"), NonTensorStack)
    assert_type(PackLayout(("x",), (torch.Size([2]),)), PackLayout)
    assert_type(TensorAttrs(batch_size=[]), TensorAttrs)
    assert_type(PersistentTensorDict(filename=folder + ".new", mode="w"), PersistentTensorDict)
    assert_type(PersistentTensorDict.from_dict({"x": [1]}, folder + ".one"), PersistentTensorDict)
    assert_type(PersistentTensorDict.from_dict({"x": [1]}, folder + ".two").flush(), PersistentTensorDict)
    assert_type(PersistentTensorDict.from_dict({"x": [1]}, folder + ".three").kwargs, dict[str, Any])
    assert_type(PersistentTensorDict.from_dict({"x": [1]}, folder + ".four").memmap_refresh_(), PersistentTensorDict)
    assert_type(PersistentTensorDict.from_dict({"x": [1]}, folder + ".five").close(), None)
    assert_type(PersistentTensorDict.LOCKING, bool | str | None)
    assert_type(isinstance(td, TensorClass), bool)
    assert_type(isinstance(td, TypedTensorDict), bool)
    assert_type(isinstance(td, TensorCollection), bool)
    assert_type(TensorDict({"x": 1}), TensorDict)
    assert_type(isinstance(td, TensorDictBase), bool)
    assert_type(UnbatchedTensor([1.0]), UnbatchedTensor)
    assert_type(WorkerError(), WorkerError)
    assert_type(RayExecutor(num_cpus=1), RayExecutor)
    assert_type(Loader(TensorDict({"x": torch.zeros(2)}, [2]), 2, shuffle=Blocks(2)), Loader)
    assert_type(Loader(TensorDict({"x": torch.zeros(2)}, [2]), 2).stats, Stats)
    assert_type(Permutation(3).size, int)
    assert_type(str(__version__), str)
    assert_type(assert_allclose_td(td, td), bool)
    assert_type(assert_close(td, td), bool)
    assert_type(capture_non_tensor_stack(), bool | None)
    assert_type(cat([td, td]), TensorDict)
    assert_type(collate([td, td]), Any)
    assert_type(default_is_leaf(Tensor), bool)
    assert_type(dense_stack_tds([td, td], 0), Any)
    assert_type(from_any({"x": 1}), Any)
    assert_type(from_dataclass(Row(1)), Any)
    assert_type(from_dict({"x": 1}), TensorDict)
    assert_type(from_h5(td.to_h5(folder + ".h5").saved_path), Any)
    assert_type(from_namedtuple(Point(1)), TensorDict)
    assert_type(from_pytree([1]), Any)
    assert_type(from_tuple((1,)), TensorDict)
    assert_type(from_zarr(td.to_zarr(folder + ".zarr").saved_path), Any)
    assert_type(fromkeys(["x"]), TensorDict)
    assert_type(get_defaults_to_none(), bool)
    assert_type(get_printoptions(), dict[str, Any])
    assert_type(group_by(TensorDict({"k": [0, 1]}, [2]), "k"), tuple[Tensor, tuple[TensorDict, ...]])
    assert_type(is_bool(td), bool)
    assert_type(is_floating(td), bool)
    assert_type(is_inexact(td), bool)
    assert_type(is_integer(td), bool)
    assert_type(is_leaf_nontensor(Tensor), bool)
    assert_type(is_non_tensor(td), bool)
    assert_type(is_tensor_collection(td), bool)
    assert_type(is_tensorclass(td), bool)
    assert_type(from_consolidated(td.consolidate(folder + "1").saved_path), TensorDict)
    assert_type(is_memmap_archive(folder), bool)
    assert_type(pack_memmap(td.memmap(folder + "2").saved_path, folder + "3"), Path)
    assert_type(refresh_archive_checksums(pack_memmap(td.memmap(folder + "7").saved_path, folder + "8")), None)
    assert_type(unpack_memmap(pack_memmap(td.memmap(folder + "5").saved_path, folder + "6"), folder + "4"), Path)
    assert_type(lazy_legacy(), bool | None)
    assert_type(lazy_stack([td, td]), Any)
    assert_type(list_to_stack(), bool | None)
    assert_type(load(td.memmap(folder).saved_path), TensorDict)
    assert_type(load_memmap(td.memmap(folder).saved_path), TensorDict)
    assert_type(make_tensordict(x=1), TensorDict)
    assert_type(maybe_dense_stack([td, td]), Any)
    assert_type(memmap(td), TensorDict)
    assert_type(save(td, folder + "9"), TensorDict)
    assert_type(merge_tensordicts(td, td), TensorDict)
    assert_type(pad(td, [1, 0]), TensorDict)
    assert_type(pad_sequence([td, td]), Any)
    assert_type(parse_tensor_dict_string("TensorDict(batch_size=[], fields={x: f32[]})"), TensorDict)
    assert_type(set_capture_non_tensor_stack(True), set_capture_non_tensor_stack)
    assert_type(set_get_defaults_to_none(True), None)
    assert_type(set_lazy_legacy(False), set_lazy_legacy)
    assert_type(set_list_to_stack(True), set_list_to_stack)
    assert_type(set_printoptions(show_grad=True), set_printoptions)
    assert_type(stack([td, td]), TensorDict)
    assert_type(tensorclass(Sample), type[Sample])
    assert_type(unpad_sequence(pad_sequence([td, td], return_mask=True)), Any)
    assert_type(unravel_key("a"), str | tuple[str, ...])
    assert_type(unravel_key_list(["a"]), list[str | tuple[str, ...]])
    assert_type(unravel_key_to_tuple("a"), tuple[str, ...])

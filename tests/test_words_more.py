"""Words on attributes, packing, linked lists, print options and switches."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tensordict
import tensordict.utils
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    PackLayout,
    TensorAttrs,
    TensorClass,
    TensorDict,
    assert_close,
    capture_non_tensor_stack,
    get_defaults_to_none,
    get_printoptions,
    is_bool,
    is_floating,
    is_inexact,
    is_integer,
    lazy_legacy,
    lazy_stack,
    list_to_stack,
    parse_tensor_dict_string,
    set_get_defaults_to_none,
    set_lazy_legacy,
    set_printoptions,
)


class Row(TensorClass):
    x: torch.Tensor
    y: TensorDict = None


def small() -> TensorDict:
    return TensorDict({"x": torch.arange(6.0).view(2, 3), "n": {"y": torch.arange(8.0).view(2, 2, 2)}}, [2])


def kinds() -> dict[str, Any]:
    td = small()
    return {
        "dense": td,
        "lazy": lazy_stack([row.clone() for row in td.unbind(0)]),
        "nested lazy": TensorDict({"x": td["x"], "n": lazy_stack(list(td["n"].unbind(0)))}, [2]),
        "tensorclass": Row(x=td["x"], y={"z": td["n", "y"]}, batch_size=[2]),
        "nested tensorclass": TensorDict({"row": Row(x=td["x"], y=td["n"], batch_size=[2])}, [2]),
        "wide": TensorDict({"w": TensorDict({"y": td["n", "y"]}, [2, 2]), "e": {}}, [2]),
        "no leaves": TensorDict({}, [2]),
    }


# ---- pack


@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("kind", kinds())
def test_a_packed_tensordict_unpacks_to_itself(kind: str, dim: int) -> None:
    td = kinds()[kind]
    flat, layout = td.pack(dim)
    assert flat.is_contiguous()
    assert flat.movedim(dim, -1).shape == (2, layout.numel)
    again = layout.unpack(flat)
    assert type(again) is (TensorDict if kind == "lazy" else type(td))
    assert set(again.keys(True)) == set(td.keys(True))
    assert all(torch.equal(again.get(key), value) for key, value in td.items(True, True))
    nodes = [key for key in td.keys(True) if tensordict.is_tensor_collection(td.get(key))]
    assert [again.get(key).batch_size for key in nodes] == [td.get(key).batch_size for key in nodes]
    assert all(value.untyped_storage().data_ptr() == flat.data_ptr() for value in again.values(True, True))


def test_columns_are_the_leaves_in_alphabetical_order() -> None:
    flat, layout = small().pack()
    assert layout.keys == (("n", "y"), "x")
    assert layout.offsets == (0, 4)
    assert flat[1].tolist() == [4.0, 5.0, 6.0, 7.0, 3.0, 4.0, 5.0]
    assert layout.unpack(flat.expand(5, 2, 7)).batch_size == (5, 2)
    assert layout.unpack(flat[0]).batch_size == ()


def test_a_layout_is_a_value_and_is_followed() -> None:
    layout = small().pack()[1]
    assert layout == small().pack()[1]
    assert hash(layout) == hash(small().pack()[1])
    assert layout == pickle.loads(pickle.dumps(layout))
    turned = PackLayout(("x", ("n", "y")), ((3,), [2, 2]))
    flat, used = small().pack(layout=turned)
    assert used is turned
    assert flat[0].tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0]
    assert torch.equal(turned.unpack(flat)["n", "y"], small()["n", "y"])
    with pytest.raises(AttributeError, match="cannot assign"):
        layout.dim = 0  # type: ignore[misc]


def test_what_cannot_be_packed_is_refused() -> None:
    td, layout = small(), small().pack()[1]
    with pytest.raises(TypeError, match="non-tensor at key 's'"):
        td.copy().set("s", "text").pack()
    with pytest.raises(TypeError, match="different dtypes"):
        td.copy().set("i", torch.zeros(2, dtype=torch.int)).pack()
    with pytest.raises(IndexError, match="dim 2 is out of range"):
        td.pack(2)
    with pytest.raises(KeyError, match=r"keys \[\('n', 'y'\)\] by a layout with keys"):
        td.exclude("x").pack(layout=layout)
    with pytest.raises(ValueError, match="by a layout of"):
        td.copy().set("x", torch.zeros(2, 4)).pack(layout=layout)
    with pytest.raises(ValueError, match=r"along dim 0 by a layout of .* along -1"):
        td.pack(0, layout=layout)
    with pytest.raises(ValueError, match=r"expected 7 columns along dim -1, got a tensor of shape \[2, 5\]"):
        layout.unpack(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="one shape for each key"):
        PackLayout(("a",), ())


# ---- attrs


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "no leaves"])
def test_attributes_stand_where_the_leaves_do(kind: str) -> None:
    td = kinds()[kind]
    attrs = td.attrs()
    assert attrs.batch_size == ()
    assert attrs.device is None
    for key, leaf in td.items(True, True):
        assert type(attrs.get(key)) is TensorAttrs
        assert (attrs.get(key).tgt_dtype, attrs.get(key).tgt_device) == (leaf.dtype, leaf.device)
        assert attrs.get(key).tgt_shape == leaf.shape
    made = td.int().to(attrs)
    assert type(made) is type(td)
    assert all(
        torch.equal(made.get(key), leaf) and made.get(key).dtype == leaf.dtype for key, leaf in td.items(True, True)
    )


def test_only_named_leaves_and_attributes_change() -> None:
    like = TensorDict({"a": torch.zeros(3, dtype=torch.int8), "b": torch.zeros(3, device="meta")}, [3])
    td = TensorDict({"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2), "s": "text"}, [2], device="cpu")
    made = td.to(like.attrs())
    assert (made["a"].dtype, made["b"].device.type, made["c"].dtype) == (torch.int8, "meta", torch.float32)
    assert made["s"] == "text"
    assert made.device is None
    assert td.to(like.attrs(fields=["dtype"]))["b"].device.type == "cpu"
    assert td.to(like.attrs(fields=["dtype"])).device == torch.device("cpu")
    assert like.attrs(fields=["shape"])["a"].tgt_dtype is None
    assert td.to(TensorAttrs(tgt_dtype=torch.float64))["c"].dtype == torch.float64
    with pytest.raises(ValueError, match=r"got the fields \['layout'\]"):
        td.attrs(fields=["layout"])


# ---- casts and dtypes


@pytest.mark.parametrize("name", ["qint8", "qint32", "quint8", "quint4x2"])
def test_quantized_casts_say_what_torch_says(name: str) -> None:
    with pytest.raises(RuntimeError) as wanted:
        torch.ones(2).type(getattr(torch, name))
    with pytest.raises(RuntimeError) as got:
        getattr(small(), name)()
    assert str(got.value) == str(wanted.value)
    assert getattr(TensorDict({}, [2]), name)().batch_size == (2,)


def test_kinds_of_numbers() -> None:
    td, mixed = small(), TensorDict({"a": 1.0, "n": {"b": 1}})
    complex_, stack = TensorDict({"z": 1j}), lazy_stack([TensorDict({"x": torch.ones(n)}) for n in (1, 2)])
    assert [is_floating(one) for one in (td, mixed, complex_, stack, td.bool())] == [True, False, False, True, False]
    assert [is_inexact(one) for one in (td, mixed, complex_, stack, td.int())] == [True, False, True, True, False]
    assert [
        is_integer(one) for one in (td.int(), mixed, td.bool(), td.byte() if hasattr(td, "byte") else td.uint8())
    ] == [
        True,
        False,
        False,
        True,
    ]
    assert [is_bool(one) for one in (td.bool(), td, torch.tensor(True))] == [True, False, True]
    assert not is_floating(td, td.int())
    with pytest.raises(TypeError, match="got 'x'"):
        is_bool(td, "x")
    with pytest.raises(TypeError, match="none"):
        is_bool()


# ---- lists


def test_rows_of_a_linked_list_are_written_through() -> None:
    td = TensorDict({"a": torch.arange(6).view(3, 2), "n": {"b": torch.zeros(3, 2)}}, [3, 2])
    for source in (td, lazy_stack([row.clone() for row in td.unbind(0)])):
        rows = source.tolist(as_linked_list=True, convert_tensors=True)
        rows[1][0] = {"a": 7, "n": {"b": 8.0}}
        rows[2] = {"a": torch.tensor([9, 9]), "n": {"b": torch.ones(2)}}
        assert source["a"].tolist() == [[0, 1], [7, 3], [9, 9]]
        assert source["n", "b"].tolist() == [[0, 0], [8, 0], [1, 1]]
        assert rows[1][0] == {"a": 7, "n": {"b": 8.0}}
    assert isinstance(rows, tensordict.utils.LinkedList)


def test_a_linked_list_refuses_what_its_tensordict_cannot_follow() -> None:
    rows = TensorDict({"a": torch.zeros(3)}, [3]).tolist(as_linked_list=True)
    for change in (lambda: rows.append({}), lambda: rows.pop(), lambda: rows.sort(), lambda: rows.__delitem__(0)):
        with pytest.raises(TypeError, match="keeps the rows of its tensordict"):
            change()
    with pytest.raises(TypeError, match="one row of a linked list at a time"):
        rows[:2] = [{}, {}]
    with pytest.raises(RuntimeError, match=r"expected a value of shape \[\]"):
        rows[0] = {"a": torch.ones(4)}
    assert [row["a"].item() for row in rows] == [0, 0, 0]
    assert type(rows.tolist()) is list
    assert type(pickle.loads(pickle.dumps(rows))) is list
    assert type(copy.deepcopy(rows)) is list


# ---- batch sizes, new tensors, locks, messages


def test_nested_batch_sizes_that_fit_are_kept_when_asked() -> None:
    def made(batch: list[int], inner: list[int]) -> TensorDict:
        node = TensorDict({"c": torch.ones(3, 4, 5)}, inner)
        return TensorDict({"a": torch.ones(3, 4), "b": node}, batch)

    kept = made([3], [3, 4]).auto_batch_size_(1, keep_compliant_size=True)
    assert (kept.batch_size, kept["b"].batch_size) == ((3,), (3, 4))
    fitted = made([3], [3]).auto_batch_size_(2, keep_compliant_size=True)
    assert (fitted.batch_size, fitted["b"].batch_size) == ((3, 4), (3, 4))
    plain = made([3], [3, 4]).auto_batch_size_(1)
    assert (plain.batch_size, plain["b"].batch_size) == ((3,), (3,))


def test_new_tensors_have_my_dtypes_and_the_options_asked_for() -> None:
    td = TensorDict({"x": torch.zeros(2), "n": {"i": torch.zeros(2, dtype=torch.int)}, "s": "text"}, [2])
    made = td.new_tensor([1, 2, 3])
    assert made.batch_size == (3,)
    assert (made["x"].dtype, made["n", "i"].dtype, made["n", "i"].tolist()) == (torch.float32, torch.int32, [1, 2, 3])
    source = torch.ones(3, requires_grad=True)
    copied = td.new_tensor({"x": source}, requires_grad=True)["x"]
    assert copied.requires_grad
    assert copied.grad_fn is None
    assert copied.data_ptr() != source.data_ptr()
    assert td.new_tensor(td)["s"] == "text"
    assert td.new_tensor({"x": [1.0]}, dtype=torch.float64, requires_grad=True)["x"].requires_grad


def test_forgetting_where_a_view_came_from() -> None:
    td = TensorDict({"x": torch.zeros(4), "n": {}}, [4])
    view = td.view(2, 2).clear_refs_for_compile_()
    with pytest.raises(TypeError, match="context manager only right after"), view:
        pass
    assert td.lock_().clear_refs_for_compile_().is_locked


def test_a_prefix_stands_before_the_keys_of_a_comparison() -> None:
    with pytest.raises(AssertionError, match=r"values at key \('p', 'q', 'n', 'y'\)"):
        assert_close(small(), small() + 1, prefix=("p", "q"))


# ---- switches


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    switches = [set_printoptions, *(tensordict.settings.Switch.__subclasses__())]
    before = [switch.value for switch in switches]
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.value = value


@pytest.mark.parametrize("read", [lazy_legacy, list_to_stack, capture_non_tensor_stack])
def test_a_switch_that_nobody_set_has_no_value(read: Any) -> None:
    usual = read()
    assert isinstance(usual, bool)
    assert read(allow_none=True) is None
    with getattr(tensordict, f"set_{read.__name__}")(usual):
        assert read(allow_none=True) is usual
    assert read(allow_none=True) is None


def test_missing_keys_give_none_or_raise_from_the_call_on() -> None:
    set_get_defaults_to_none(False)
    assert not get_defaults_to_none()
    with pytest.raises(KeyError):
        TensorDict({}).get("x")
    set_get_defaults_to_none()
    assert TensorDict({}).get("x") is None


def test_a_switch_for_the_calls_of_a_function() -> None:
    @set_lazy_legacy(True)
    def stacked(depth: int) -> Any:
        return stacked(depth - 1) if depth else torch.stack([TensorDict({})])

    assert type(stacked(2)) is LazyStackedTensorDict
    assert type(torch.stack([TensorDict({})])) is TensorDict


# ---- print options


def test_what_the_repr_shows() -> None:
    td = TensorDict({"z": torch.ones(2, 3, requires_grad=True), "a": torch.ones(2)[:1].expand(2)}, [2], device="cpu")
    assert repr(td) == "TensorDict(batch_size=[2], device=cpu, fields={z: f32[3], a: f32[]})"
    shown = {
        "show_batch_size=False": "TensorDict(device=cpu, fields={z: f32[3], a: f32[]})",
        "show_device=False": "TensorDict(batch_size=[2], fields={z: f32[3], a: f32[]})",
        "show_shape=False": "TensorDict(batch_size=[2], device=cpu, fields={z: f32, a: f32})",
        "show_dtype=False": "TensorDict(batch_size=[2], device=cpu, fields={z: [3], a: []})",
        "sort_keys='alphabetical'": "TensorDict(batch_size=[2], device=cpu, fields={a: f32[], z: f32[3]})",
        "show_grad=True": "{z: f32[3] requires_grad=True, a: f32[] requires_grad=False}",
        "show_is_contiguous=True": "{z: f32[3] is_contiguous=True, a: f32[] is_contiguous=False}",
        "show_is_view=True": "{z: f32[3] is_view=False, a: f32[] is_view=True}",
        "show_storage_size=True": "{z: f32[3] storage_size=24, a: f32[] storage_size=8}",
        "verbose=False": "TensorDict(batch_size=[2], fields={z: [3], a: []})",
        "verbose=False, show_dtype=True": "TensorDict(batch_size=[2], fields={z: f32[3], a: f32[]})",
    }
    for options, text in shown.items():
        with eval(f"set_printoptions({options})"):
            assert text in repr(td), options
    with pytest.raises(TypeError, match=r"no print options \['foo'\]"):
        set_printoptions(foo=1)
    before = get_printoptions()
    set_printoptions(show_grad=True).set()
    assert get_printoptions() == {**before, "show_grad": True}


def test_a_leaf_on_another_device_is_marked() -> None:
    td = TensorDict({"x": torch.zeros(2, device="meta"), "y": torch.zeros(2)}, [2])
    assert repr(td) == "TensorDict(batch_size=[2], fields={x: f32[]@meta, y: f32[]})"
    assert "@" not in repr(td.to("meta"))
    with set_printoptions(show_field_device=False):
        assert "@" not in repr(td)


LONG = """TensorDict(
    fields={
        a: Tensor(shape=torch.Size([2, 3]), device=cpu, dtype=torch.float32, is_shared=False),
        b: TensorDict(
            fields={
                c: Tensor(shape=torch.Size([2, 4]), device=meta, dtype=torch.int64, is_shared=False)},
            batch_size=torch.Size([2, 4]),
            device=None,
            is_shared=False)},
    batch_size=torch.Size([2]),
    device=None,
    is_shared=False)"""


def test_a_repr_is_read_back() -> None:
    source = small().to("meta", torch.bfloat16)
    source["wide"] = TensorDict({"i": torch.zeros(2, 4, 1, dtype=torch.int8, device="meta")}, [2, 4])
    source.names = ["time"]
    for td in (
        source,
        TensorDict({"cpu": torch.zeros(2, dtype=torch.bool), "td": source.clone().clear_device_()}, [2]),
        TensorDict({}, [3]),
    ):
        again = parse_tensor_dict_string(repr(td))
        assert (again.batch_size, again.names, again.device) == (td.batch_size, td.names, td.device)
        assert list(again.keys(True)) == list(td.keys(True))
        for key, leaf in td.items(True, True):
            assert (again[key].shape, again[key].dtype, again[key].device) == (leaf.shape, leaf.dtype, leaf.device), key
        assert repr(again) == repr(td)


def test_the_long_form_is_read_too() -> None:
    td = parse_tensor_dict_string(LONG)
    assert (td.batch_size, td["b"].batch_size, td["a"].shape) == ((2,), (2, 4), (2, 3))
    assert (td["b", "c"].dtype, td["b", "c"].device.type, td["a"].any().item()) == (torch.int64, "meta", False)
    assert parse_tensor_dict_string(repr(lazy_stack([small(), small()]))).batch_size == (2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "TensorDict(fields={x: f32[]})",
        "TensorDict(batch_size=[2], fields={s: str})",
        "TensorDict(batch_size=[2], fields={x: zz[3]})",
        "TensorDict(batch_size=[2], fields={x: f32[-1]})",
        LONG.replace("torch.int64", "__import__('os').system('false')"),
        "TensorDict(batch_size=[2], names=print(), fields={})",
    ],
)
def test_what_is_no_repr_is_refused_and_nothing_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"expected the repr|cannot read|malformed"):
        parse_tensor_dict_string(text)
    assert not capsys.readouterr().out


def test_auto_batch_size_counts_the_rows_of_columns_and_no_single_values() -> None:
    words, one = NonTensorStack("a", "b"), NonTensorData("x")
    assert TensorDict({"s": words}).auto_batch_size_().batch_size == (2,)
    assert TensorDict({"s": words, "x": torch.zeros(2, 3)}).auto_batch_size_().batch_size == (2,)
    assert TensorDict({"s": words, "x": torch.zeros(3)}).auto_batch_size_().batch_size == ()
    assert TensorDict({"s": one, "x": torch.zeros(3)}).auto_batch_size_().batch_size == (3,)
    nested = TensorDict({"n": {"s": words, "x": torch.zeros(2, 5)}, "x": torch.zeros(2, 5)}).auto_batch_size_()
    assert (nested.batch_size, nested["n"].batch_size) == ((2,), (2,))
    assert TensorDict.from_any({"rows": [{"b": 1}, {"b": 2}]}, auto_batch_size=True).batch_size == (2,)


def test_from_any_reads_a_list_as_a_key_would() -> None:
    assert torch.equal(TensorDict.from_any([1, 2]), torch.tensor([1, 2]))
    assert TensorDict.from_any(["a", "b"]).tolist() == ["a", "b"]
    assert TensorDict.from_any([{"b": 1}, {"b": 2}]).tolist() == [{"b": 1}, {"b": 2}]
    assert TensorDict.from_any([TensorDict({"x": 1}), TensorDict({"x": 2})]).batch_size == (2,)


def test_apply_named_is_named_apply() -> None:
    td = TensorDict({"a": torch.zeros(2), "n": {"b": torch.ones(2)}}, [2])
    seen: list[object] = []
    made = td.apply(lambda key, x: (seen.append(key), x + 1)[1], named=True, nested_keys=True)
    assert seen == ["a", ("n", "b")] and made["n", "b"].tolist() == [2.0, 2.0]
    seen.clear()
    td.apply(lambda key, x: seen.append(key), named=True)
    assert seen == ["a", "b"]

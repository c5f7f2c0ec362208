"""A dataset in an object store: an S3 server on this machine, for which zarr asks through obstore."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import boto3
import obstore.store
import pytest
import torch
import zarr
from moto.server import ThreadedMotoServer
from torch.utils.data import DataLoader

from tensordict import NonTensorStack, TensorDict

SECRETS = {"access_key_id": "someone", "secret_access_key": "something", "region": "us-east-1"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """A function that returns a zarr store at a prefix of a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": SECRETS["access_key_id"], "aws_secret_access_key": SECRETS["secret_access_key"]}
    client = boto3.client("s3", endpoint_url=endpoint, region_name=SECRETS["region"], **keys)
    client.create_bucket(Bucket="data")

    def at(prefix: str) -> Any:
        options: Any = {"endpoint": endpoint, "client_options": {"allow_http": True}, **SECRETS}
        return zarr.storage.ObjectStore(obstore.store.S3Store("data", prefix=prefix, **options))

    yield at
    client.close()
    server.stop()


def sample() -> TensorDict:
    return TensorDict(
        {
            "x": torch.arange(20.0).view(10, 2),
            "n": {"y": torch.arange(10)},
            "w": NonTensorStack(*"abcdefghij"),
            "s": "t",
        },
        [10],
        names=["time"],
    )


def test_a_dataset_lies_in_a_bucket(bucket: Any) -> None:
    stored = sample().to_zarr(bucket("one"), chunks=(3,))
    stored[4] = TensorDict({"x": torch.zeros(2), "w": "new", "n": {"y": torch.tensor(-1)}})
    stored[[0, 9]].set_("x", torch.ones(2, 2))
    stored["n"]["z"] = torch.ones(10)
    back = TensorDict.from_zarr(bucket("one"))
    assert (back.batch_size, back.names, back["s"]) == ((10,), ["time"], "t")
    assert back[[9, 4, 4, 0]]["x"].tolist() == [[1, 1], [0, 0], [0, 0], [1, 1]]
    assert back[3:6]["w"] == ["d", "new", "f"]
    assert back["n", "y"].tolist() == [0, 1, 2, 3, -1, 5, 6, 7, 8, 9]
    assert back["n", "z"].sum() == 10
    with pytest.raises(PermissionError, match="mode='r'"):
        back.zero_()
    with pytest.raises(FileNotFoundError, match="no zarr group"):
        TensorDict.from_zarr(bucket("none"))


def test_saving_again_replaces_all_of_it(bucket: Any) -> None:
    sample().to_zarr(bucket("two"))
    assert list(TensorDict({"only": torch.ones(2)}, [2]).to_zarr(bucket("two")).keys()) == ["only"]
    assert list(TensorDict.from_zarr(bucket("two")).keys()) == ["only"]


def test_workers_read_from_a_bucket(bucket: Any) -> None:
    sample().to_zarr(bucket("three"), chunks=(4,))
    stored = TensorDict.from_zarr(bucket("three"))
    assert pickle.loads(pickle.dumps(stored))["n", "y"].tolist() == list(range(10))
    for batch in DataLoader(stored, batch_size=5, num_workers=2, multiprocessing_context="spawn"):
        assert type(batch) is TensorDict
        assert torch.equal(batch["x"], sample()["x"][batch["n", "y"]])

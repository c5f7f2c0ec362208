"""Loading together with others: torch's samplers, torchdata, Lightning, and a process that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tensordict import TensorDict
from tensordict.data import Loader


def table(size: int = 24) -> TensorDict:
    rows = torch.arange(size)
    return TensorDict({"row": rows, "x": rows[:, None].float() / size}, [size])


def keep(batch: Any) -> Any:
    return batch


def rows_of(loader: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in loader]


def test_a_distributed_sampler_shares_the_rows() -> None:
    data: Any = table(10)
    parts = []
    for rank in range(2):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=True, seed=3)
        sampler.set_epoch(1)
        parts.append(rows_of(DataLoader(data, batch_size=2, sampler=sampler, collate_fn=keep)))
    assert [list(map(len, part)) for part in parts] == [[2, 2, 1]] * 2
    assert sorted(row for part in parts for batch in part for row in batch) == list(range(10))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_of_torchdata_resumes(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        generator = torch.Generator().manual_seed(2)
        method = "fork" if workers else None
        return stateful.StatefulDataLoader(
            table(),
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            collate_fn=keep,
            generator=generator,
            multiprocessing_context=method,
        )

    whole = rows_of(make())
    assert sorted(row for batch in whole for row in batch) == list(range(24))
    first = make()
    passing = iter(first)
    got = [next(passing)["row"].tolist() for _ in range(2)]
    state = first.state_dict()
    del passing
    second = make()
    second.load_state_dict(state)
    assert got + rows_of(second) == whole


@pytest.mark.parametrize("kind", ["Loader", "Loader in a process", "DataLoader"])
def test_lightning_trains_and_resumes(kind: str, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    seen: list[list[int]] = []

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            seen.append(batch["row"].tolist())
            return (self.linear(batch["x"]) - batch["x"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def loader() -> Any:
        if kind == "DataLoader":
            return DataLoader(table(), batch_size=4, collate_fn=keep)  # type: ignore[arg-type]
        return Loader(table(), 4, shuffle=True, workers=1 if kind == "Loader" else "fork")

    def trainer(*callbacks: Any) -> Any:
        return lightning.Trainer(
            accelerator="cpu",
            logger=False,
            max_epochs=2,
            callbacks=list(callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=bool(callbacks),
            default_root_dir=tmp_path,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=8, save_top_k=-1)
        trainer(save).fit(Model(), loader())
        whole = list(seen)
        assert [sorted(row for batch in whole[at : at + 6] for row in batch) for at in (0, 6)] == [list(range(24))] * 2
        if kind == "DataLoader":
            return
        assert whole[:6] != whole[6:]
        seen.clear()
        trainer().fit(Model(), loader(), ckpt_path=tmp_path / "step=8.ckpt")
    assert seen == whole[8:]


TRAINING = """
import json, sys, torch
from tensordict import TensorDict
from tensordict.data import Loader

if __name__ == "__main__":
    workers, state = json.loads(sys.argv[1])
    loader = Loader(TensorDict({"row": torch.arange(500)}, [500]), 5, shuffle=True, seed=9, workers=workers)
    if state:
        loader.load_state_dict(state)
    for _ in range(2 - loader.state_dict()["epoch"]):
        for batch in loader:
            print(json.dumps([batch["row"].tolist(), loader.state_dict()]), flush=True)
"""


def training(script: Path, workers: Any, state: Any, stop: int | None = None) -> Iterator[Any]:
    """Yield what a training process prints; kill it after some lines."""
    command = [sys.executable, str(script), json.dumps([workers, state])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            yield json.loads(line)
            if number + 1 == stop:
                os.kill(process.pid, signal.SIGKILL)
                break


def test_a_killed_training_goes_on_where_it_was(tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    loader = Loader(TensorDict({"row": torch.arange(500)}, [500]), 5, shuffle=True, seed=9)
    want = rows_of(loader) + rows_of(loader)
    got: list[list[int]] = []
    state = None
    for workers, stop in ((2, 37), ("fork", 90), (0, None)):
        lines = list(training(script, workers, state, stop))
        got += [rows for rows, _ in lines]
        state = lines[-1][1]
    assert got == want

"""The demo does the main job, and says what is wrong when it cannot."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
import torch

from tensordict import TensorDict, demo

pytest.importorskip("sklearn")


def test_the_demo_ends_well_and_keeps_its_data(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "data"
    command = [
        sys.executable,
        "-W",
        "error",
        "-W",
        "ignore::DeprecationWarning",
        "-m",
        "tensordict.demo",
        "--path",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    shown = re.search(r"([\d.]+)% of the 359 held-out digits", done.stdout)
    assert shown is not None
    assert float(shown[1]) >= 95
    assert len(re.findall(r"rows/s", done.stdout)) == 4
    assert str(folder) in done.stdout
    images, labels = demo.scans()
    data = TensorDict.load_memmap(folder / "digits", mode="r")
    assert torch.equal(data["image"], images)
    assert torch.equal(data["label"], labels)
    features = TensorDict.load_memmap(folder / "features", mode="r")
    torch.testing.assert_close(torch.as_tensor(features["ink"]), images.float().mean((1, 2, 3)) / 16)


def test_the_features_are_those_of_a_known_scan() -> None:
    image = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    image[0, 0, 2, 5] = 16
    image[1] = 8
    features = demo.ink(TensorDict({"image": image}, batch_size=[2]))
    assert features["ink"].tolist() == [1 / 64, 0.5]
    assert features["centre"].tolist() == [[2, 5], [3.5, 3.5]]


def test_a_folder_that_holds_something_is_left_alone(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert demo.main(["--path", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_missing_scikit_learn_is_said_clearly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.scans.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert demo.main([]) == 1
    assert "pip install scikit-learn" in capsys.readouterr().err


def test_no_workers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--workers", "0"])
    assert "at least 1, got 0" in capsys.readouterr().err

"""Real networks with their real weights down the whole line, against onnxruntime.

The files are put into the cache by `python benchmarks/wheel_models.py --fetch-only`; without them the tests skip.
"""

from __future__ import annotations

import hashlib
import subprocess
import zipfile

import pytest

from benchmarks import wheel_models
from benchmarks.wheel_models import MODELS, STRATEGIES, cached, fetch, rows_of
from memopt.errors import LoadError, OptionError


def need_file(name):
    if not cached(name).exists():
        pytest.skip(f"{cached(name).name} is not in the cache: run python benchmarks/wheel_models.py --fetch-only")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_onnxruntime_and_is_small(name):
    need_file(name)
    rows = {row.strategy: row for row in rows_of(name)}
    for row in rows.values():
        print(f"{name} {row.strategy}: height {row.height_bytes} B, scratch {row.scratch_bytes} B")
        assert row.max_rel_error < 1e-3
        assert row.num_host_calls == 0
        assert row.height_bytes == row.lower_bound_bytes
        assert row.scratch_bytes <= 1 << 20
    assert rows["share"].height_bytes <= MODELS[name].most_bytes
    assert all(rows[strategy].height_bytes <= rows["none"].height_bytes for strategy in STRATEGIES)
    assert rows["fuse"].height_bytes <= rows["best"].height_bytes <= rows["share"].height_bytes


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMOPT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def pretend(monkeypatch, members, status=0):
    """Let pip make a wheel with these members instead of downloading one."""

    def run(command, **options):
        folder = command[command.index("--dest") + 1]
        assert "--no-deps" in command
        if status == 0:
            with zipfile.ZipFile(f"{folder}/a.whl", "w") as archive:
                for name, data in members.items():
                    archive.writestr(name, data)
        return subprocess.CompletedProcess(command, status, "", "WARNING: retrying\nERROR: No matching distribution\n")

    monkeypatch.setattr(wheel_models.subprocess, "run", run)


def test_without_a_network_the_error_says_what_to_do(empty_cache, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # which main sets
    pretend(monkeypatch, {}, status=1)
    with pytest.raises(LoadError, match=r"magika==1\.0\.3") as error:
        fetch("magika")
    assert "No matching distribution" in str(error.value)
    assert "network" in str(error.value)
    assert str(cached("magika")) in str(error.value)
    assert wheel_models.main(["magika", "--fetch-only"]) == 2


def test_a_file_is_unpacked_once_and_checked(empty_cache, monkeypatch):
    member, data = MODELS["magika"].file, b"not really a model"
    pretend(monkeypatch, {member: data, "other.onnx": b""})
    with pytest.raises(LoadError, match="digest"):
        fetch("magika")
    assert not cached("magika").exists()
    fields = {field: getattr(MODELS["magika"], field) for field in ("package", "version", "file", "dims", "most_bytes")}
    known = wheel_models.WheelModel(**fields, sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(MODELS, "magika", known)
    assert fetch("magika").read_bytes() == data
    assert cached("magika").is_relative_to(empty_cache)
    pretend(monkeypatch, {}, status=1)
    assert fetch("magika") == cached("magika")  # from the cache
    assert [path.name for path in cached("magika").parent.iterdir()] == ["magika-1.0.3.onnx"]


def test_a_wheel_without_the_file(empty_cache, monkeypatch):
    pretend(monkeypatch, {"other.onnx": b""})
    with pytest.raises(LoadError, match=r"a\.whl holds no magika"):
        fetch("magika")


def test_an_unknown_model():
    with pytest.raises(OptionError, match="ppocr_det"):
        fetch("resnet9000")

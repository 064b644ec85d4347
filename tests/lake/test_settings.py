"""Settings: what a home and the command line say about memory and workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.settings import Settings, load_settings, size_bytes


def _home(tmp_path: Path, text: str | None = None) -> Home:
    if text is not None:
        (tmp_path / "settings.toml").write_text(text)
    return Home(tmp_path)


def test_without_a_file_all_cores_work(tmp_path: Path) -> None:
    """Workers are the cores, building takes a gigabyte each, spilling goes to staging."""
    assert load_settings(_home(tmp_path)) == Settings(
        workers=os.cpu_count() or 1, memory_limit="1GB", spill=None
    )


def test_the_command_line_overrides_the_home(tmp_path: Path) -> None:
    """settings.toml holds for every command; options hold for one."""
    home = _home(tmp_path, 'workers = 3\nmemory_limit = "2GB"\nspill = "scratch"\n')
    assert load_settings(home) == Settings(3, "2GB", tmp_path / "scratch")
    assert load_settings(home, workers=1, memory_limit="500MB") == Settings(1, "500MB", tmp_path / "scratch")


def test_an_absolute_spill_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    """A fast disk elsewhere."""
    assert load_settings(_home(tmp_path, 'spill = "/scratch/me"')).spill == Path("/scratch/me")


def test_a_relative_homes_spill_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a cluster has another current folder."""
    _home(tmp_path, 'spill = "scratch"')
    monkeypatch.chdir(tmp_path)
    assert load_settings(Home(Path())).spill == tmp_path / "scratch"


@pytest.mark.parametrize(
    "text",
    ["workers = 0", "workers = true", 'memory_limit = "lots"', "memory_limit = 3", "colour = 1", "workers ="],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, text: str) -> None:
    """The file, the key and what may stand there."""
    with pytest.raises(UsageError, match=r"settings\.toml|is not a size"):
        load_settings(_home(tmp_path, text))


def test_reading_takes_no_more_than_it_needs() -> None:
    """The limit of a worker bounds reading only where it is smaller than what reading takes."""
    assert Settings(1, "4GB").read_memory == "256MB"
    assert Settings(1, "100MB").read_memory == "100MB"


def test_threads_are_the_cores_shared_by_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores: two workers of four threads, or sixteen of one."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert (Settings(2).threads, Settings(16).threads) == (4, 1)


@pytest.mark.parametrize(("text", "size"), [("1MB", 1e6), ("1.5GB", 1.5e9), ("2 GiB", 2 * 2**30)])
def test_sizes_are_read_as_people_write_them(text: str, size: float) -> None:
    """Decimal and binary units."""
    assert size_bytes(text) == size

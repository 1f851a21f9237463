"""Fixtures that several test files use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Tiny models gain nothing from a second thread, and two test processes on two cores would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # where there is no network, the hub's client asks again for a minute


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the published data (`LNLI_SHARED`, by default `../shared` beside the repository)."""
    path = Path(os.environ.get("LNLI_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (path / "data").is_dir():
        pytest.skip(f"the published data are not at {path}; set LNLI_SHARED")
    return path

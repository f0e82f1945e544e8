"""Options and fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--recordings",
        default=str(ROOT.parent / "shared" / "data"),
        help="folder with recordings of real robots; tests that need it are skipped where it is absent",
    )


@pytest.fixture(scope="session")
def recordings(request: pytest.FixtureRequest) -> Path:
    """The folder of real recordings."""
    folder = Path(request.config.getoption("--recordings"))
    if not folder.is_dir():
        pytest.skip(f"no recordings of real robots at {folder}; give their folder with --recordings DIR")
    return folder


@pytest.fixture(scope="session")
def models(recordings: Path) -> Path:
    """The folder of robot descriptions that lies beside the recordings."""
    folder = recordings.parent / "models"
    if not folder.is_dir():
        pytest.skip(f"no robot descriptions at {folder}")
    return folder

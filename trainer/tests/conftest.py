# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fixtures of several test files: a small data set, and a whole run over it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from trainer.data.tokens import prepare
from trainer.tests.hub import Hub
from trainer.tests.runs import train

HUB = pytest.StashKey[Hub]()


def pytest_configure(config: pytest.Config) -> None:
    """A hub in place of the real one: transformers and datasets read its address once, when the first test file imports them."""
    server = config.stash[HUB] = Hub(Path(tempfile.mkdtemp(prefix="muster-hub-")))
    os.environ |= {"HF_ENDPOINT": server.url, "HF_HOME": str(server.folder / "home")}
    os.environ.pop("HF_TOKEN", None)


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash[HUB]
    server.shutdown()
    server.server_close()
    shutil.rmtree(server.folder)


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare(folder, 100_000, 1, 256)
    return folder


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Path:
    """A whole run of 20 steps on 2 ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = train(2, folder, tokens, 20, "--checkpoint_freq", "5", "--keep_checkpoints", "0")
    assert job.end() == [0, 0], job.output()
    return folder

# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Faults of a second controller, a database elsewhere and slurmrestd."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import services as logic

ONE, TWO = ["controller-1"], ["controller-1", "controller-2"]
SHARED = {"statesavelocation": "/fsx/slurm/state"}
PASSWORD = "Zq8-not-to-be-seen"


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """A database elsewhere, its password in a file beside."""
    (tmp_path / "slurm_database_password").write_text(PASSWORD + "\n")
    (tmp_path / "ca.pem").write_text("certificate")
    return {"host": "db-1", "ca": str(tmp_path / "ca.pem")}


def refused(tmp_path: Path, controllers=ONE, config=(), *, database=(), rest=()) -> list[str]:
    return logic.faults(controllers, dict(config), dict(database), dict(rest), secrets=tmp_path, environ={})


def test_nothing_is_refused_where_nothing_is_asked_for(tmp_path):
    assert refused(tmp_path) == []
    assert refused(tmp_path, []) == []


def test_two_controllers_need_one_state_folder(tmp_path):
    [said] = refused(tmp_path, TWO)
    assert said.startswith(
        "The controllers controller-1 and controller-2 need one folder for their state; name one that all of them mount:"
    )
    assert refused(tmp_path, TWO, SHARED) == []


def test_a_second_slurmdbd_needs_a_database_that_it_reaches(tmp_path, site):
    backup = {**SHARED, "AccountingStorageBackupHost": "controller-2"}
    [said] = refused(tmp_path, TWO, backup)
    assert "AccountingStorageBackupHost controller-2 could not reach the database, which listens on controller-1 alone" in said
    assert refused(tmp_path, TWO, backup, database=site) == []


@pytest.mark.parametrize("listen", ["unix:/run/slurmrestd/slurmrestd.socket", "127.0.0.1:6820", "[::1]:6820", "controller-1:6820"])
def test_slurmrestd_listens(tmp_path, listen):
    assert refused(tmp_path, rest={"listen": listen}) == []


@pytest.mark.parametrize("listen", ["", "6820", "unix:slurm", "/run/slurm", "a b:1", ":6820"])
def test_slurmrestd_cannot_listen(tmp_path, listen):
    assert refused(tmp_path, rest={"listen": listen, "more": 1})[0].startswith(f"slurm_rest.listen is {listen!r}; give unix:/run/")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"host": ""}, "slurm_database has no host"),
        ({"ca": None}, "wants TLS to db-1 without a CA to know it by; name its file in slurm_database.ca, or say tls: false."),
        ({"ca": "/nowhere/ca.pem"}, "The file /nowhere/ca.pem of slurm_database.ca is not there"),
        ({"cert": "/c"}, "only one of cert and key"),
        ({"password_env": "DB_PASSWORD"}, "but the environment variable DB_PASSWORD holds no password; write it there."),
    ],
)
def test_a_database_elsewhere_that_cannot_be(tmp_path, site, change, sentence):
    [said] = refused(tmp_path, database={**site, **change})
    assert sentence in said


def test_no_password(tmp_path, site):
    (tmp_path / "slurm_database_password").unlink()
    [said] = refused(tmp_path, database=site)
    assert said == (
        f"slurm_database names the host db-1, but {tmp_path}/slurm_database_password holds no password; write it there with mode 0600, "
        "or name a variable in slurm_database.password_env."
    )


@pytest.mark.parametrize("found", ["two words", "a#b", 'a"b', "a=b", "a\\b"])
def test_a_password_that_the_file_cannot_hold_is_not_repeated(tmp_path, site, found):
    (tmp_path / "slurm_database_password").write_text(found)
    [said] = refused(tmp_path, database=site)
    assert "has a character that slurmdbd.conf cannot hold" in said
    assert found not in said

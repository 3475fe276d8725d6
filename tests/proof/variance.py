# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: `make site` on one machine as different people have it: a private umask, other locales, a dead proxy, a full disk, a second run
at the same time, a path with a space and an umlaut, another Python as controller, a user with sudo.

Run by hand: `pytest --engine tests/proof/variance.py`; about fifteen minutes on two cores.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_fleet import ROOT, Fleet

pytestmark = pytest.mark.engine

NAME = "variance"
USER = "muster-sudo"


@pytest.fixture(scope="module")
def fleet(artifacts) -> Fleet:
    """A fleet whose first run had umask 077, without make, which sets its own."""
    made = Fleet(artifacts.folder(NAME), NAME, ROOT / "inventory/local")
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    before = os.umask(0o077)
    try:
        made.first = made.run("site.yml")
    finally:
        os.umask(before)
    return made


def site(fleet: Fleet, folder: Path = ROOT, user: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """`make site` of a checkout, as root or a user, with these variables as well."""
    argv = ["make", "site", f"FLEET={fleet.name}"]
    environment = {**fleet.env, **env}
    if user:
        environment |= {"HOME": pwd.getpwnam(user).pw_dir, "USER": user, "LOGNAME": user}
        argv = ["runuser", "-u", user, "--", *argv]
    return subprocess.run(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, timeout=900,
    )  # fmt: skip


def passed(done: subprocess.CompletedProcess[str], name: str = NAME) -> None:
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"fleet {name}: passed in " in done.stdout


def test_a_private_umask(fleet: Fleet) -> None:
    passed(fleet.first)
    # Users of the nodes read what Muster made.
    assert fleet.ansible("compute-1", "cat", "/etc/hosts", user="muster").count("compute-") == 2
    assert "output.txt" in fleet.ansible("compute-1", "sh", "-c", "ls /fsx/muster/jobs/*", user="muster")


@pytest.mark.parametrize("locale", ["POSIX", "de_DE.UTF-8", "tr_TR"])
def test_a_locale(fleet: Fleet, locale: str) -> None:
    passed(site(fleet, LC_ALL=locale, LANG=locale, LANGUAGE=locale))


def test_a_dead_proxy_keeps_nobody_from_a_fleet_that_has_everything(fleet: Fleet) -> None:
    dead = "http://127.0.0.1:9"
    passed(site(fleet, http_proxy=dead, https_proxy=dead, HTTP_PROXY=dead, HTTPS_PROXY=dead, no_proxy=""))


def test_two_runs_at_once(fleet: Fleet) -> None:
    first = fleet.begin("site.yml")
    fleet.wait_for("the lock", lambda: (fleet.state_dir / "run.lock").read_text().count(f'"pid": {first.pid},'))
    second = fleet.run("playbooks/provision.yml")
    assert second.returncode != 0
    assert f"Fleet {NAME} is being changed by ansible-playbook site.yml of root (process {first.pid} on " in second.stdout
    down = fleet.run("playbooks/local_down.yml")
    assert f"Fleet {NAME} is being changed by" in down.stdout and down.returncode != 0
    passed(fleet.finish(first))


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk that is full."""
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(fleet: Fleet, full: Path) -> None:
    other = Fleet(fleet.folder, "variance-full", ROOT / "inventory/local")
    other.env["XDG_CACHE_HOME"] = str(full)
    try:
        done = other.run("site.yml")
    finally:
        assert other.run("playbooks/local_down.yml").returncode == 0
    assert done.returncode != 0
    summary = done.stdout.split("SUMMARY")[1]
    assert re.search(r"controller-1: .* needs 6500 MiB and \d MiB are free on its disk; free some", summary), summary
    for node in ("compute-1", "compute-2"):
        assert re.search(
            f"FAILED {node}: .*: controller-1 makes the environment .* for this host, and that failed; mend it there", summary
        ), summary
    assert "Traceback" not in done.stdout
    assert not [each for each in full.rglob("*.part*")]


@pytest.fixture(scope="module")
def elsewhere(artifacts) -> Path:
    """A checkout in a folder whose name has a space and an umlaut."""
    folder = artifacts.folder("elsewhere") / "Träger 1" / "muster"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def newest_python() -> str:
    """A Python 3.13, or "" where there is none."""
    versions = sorted((Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob("3.13.*/bin/python"))
    return str(versions[-1]) if versions else shutil.which("python3.13") or ""


def test_python_3_13_in_a_folder_with_a_space_and_an_umlaut(fleet: Fleet, elsewhere: Path) -> None:
    if not newest_python():
        pytest.skip("not_run: no Python 3.13 is here")
    passed(site(fleet, elsewhere, PYTHON=newest_python()))
    version = subprocess.run([elsewhere / ".venv/bin/python", "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("Python 3.13.")


@pytest.fixture
def sudoer(artifacts) -> Iterator[Fleet]:
    """A user who may become root by sudo, and the user's fleet."""
    if os.geteuid() != 0 or not shutil.which("sudo"):
        pytest.skip("not_run: only root can make a user with sudo, and sudo must be installed")
    home = artifacts.folder("sudo") / "home"
    rights = Path(f"/etc/sudoers.d/{USER}")
    made = Fleet(home / "Träger 1" / "muster", "variance-sudo", ROOT / "inventory/local")
    made.env = {name: value for name, value in made.env.items() if not name.startswith("XDG_")} | {"PWD": str(made.folder)}
    try:
        subprocess.run(["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", USER], check=True)
        rights.write_text(f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
        rights.chmod(0o440)
        for folder in home.parents:
            if folder != Path("/"):
                folder.chmod(folder.stat().st_mode | 0o011)
        # Git does not let the user read root's checkout.
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(made.folder)], check=True)
        subprocess.run(["chown", "--recursive", f"{USER}:", str(home)], check=True)
        yield made
    finally:
        down = ["runuser", "-u", USER, "--", "make", "down", f"FLEET={made.name}"]
        if made.folder.is_dir():
            subprocess.run(down, cwd=made.folder, env={**made.env, "HOME": str(home)}, stdin=subprocess.DEVNULL, check=False)
        rights.unlink(missing_ok=True)
        # A process of podman outlives its commands and keeps the user.
        subprocess.run(["pkill", "--signal", "KILL", "--uid", USER], check=False)
        subprocess.run(["userdel", "--remove", USER], check=False, capture_output=True)


def test_a_user_with_sudo(sudoer: Fleet) -> None:
    passed(site(sudoer, sudoer.folder, USER), sudoer.name)

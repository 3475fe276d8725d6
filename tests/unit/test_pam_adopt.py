# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""sshd's PAM stack with pam_slurm_adopt: where its lines stand, that they can be removed without a trace, and that they lock nobody out.

tests/proof/slurm_config.py really logs in by ssh.
"""

from __future__ import annotations

import importlib.util
import pwd
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "roles/slurm/files/pam-adopt.py"
SSHD = """\
@include common-auth
account    required     pam_nologin.so

@include common-account

session    required     pam_loginuid.so
@include common-session

session    required     pam_limits.so
@include common-password
"""
COMMON = """\
# here are the per-package modules (the "Primary" block)
session\t[default=1]\t\t\tpam_permit.so
session\trequisite\t\t\tpam_deny.so
session\trequired\t\t\tpam_permit.so
session\trequired\tpam_unix.so 
session\toptional\tpam_systemd.so 
"""
PERMIT = ["optional pam_permit.so"]
MODULE, OPTIONS = "/opt/pam_slurm_adopt.so", "action_no_jobs=deny"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pam_adopt", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stack(text: str, kind: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith(kind)]


def test_the_lines_stand_before_those_of_common_account(script: ModuleType) -> None:
    made = script.with_adoption(SSHD, COMMON, MODULE, OPTIONS, ["sudo", "adm"])
    assert stack(made, "account") == [
        "required     pam_nologin.so",
        "[success=2 default=ignore] pam_succeed_if.so quiet uid eq 0",
        "[success=1 default=ignore] pam_succeed_if.so quiet user ingroup sudo:adm",
        f"required {MODULE} {OPTIONS}",
        *PERMIT * 2,
    ]
    lines = made.splitlines()
    assert lines.index(f"account required {MODULE} {OPTIONS}") < lines.index("@include common-account")


def test_without_admins_root_comes_in(script: ModuleType) -> None:
    made = script.with_adoption(SSHD, COMMON, MODULE, OPTIONS, [])
    root = "[success=1 default=ignore] pam_succeed_if.so quiet uid eq 0"
    assert stack(made, "account")[1:] == [root, f"required {MODULE} {OPTIONS}", *PERMIT]


@pytest.mark.parametrize("taken", [("ingroup",), (MODULE,), ("ingroup", MODULE)])
def test_root_comes_in_when_somebody_takes_lines_out(script: ModuleType, taken: tuple[str, ...]) -> None:
    """Each jump ends in the role's lines, and not in those of common-account, which end with pam_deny."""
    made = script.with_adoption(SSHD, COMMON, MODULE, OPTIONS, ["sudo"])
    left = [line for line in stack(made, "account")[1:] if not any(word in line for word in taken)]
    jumps = [(place, int(line[9])) for place, line in enumerate(left) if line.startswith("[success=")]
    assert jumps
    assert all(place + jump < len(left) for place, jump in jumps)


def test_the_session_is_the_common_one_without_systemd(script: ModuleType) -> None:
    made = script.with_adoption(SSHD, COMMON, MODULE, OPTIONS, [])
    assert "@include common-session" not in made
    ours = [line.removeprefix("session").strip() for line in COMMON.splitlines() if line.startswith("session") and "systemd" not in line]
    assert [line.strip() for line in stack(made, "session")] == ["required     pam_loginuid.so", *ours, "required     pam_limits.so"]


def test_it_goes_without_a_trace(script: ModuleType) -> None:
    made = script.with_adoption(SSHD, COMMON, MODULE, OPTIONS, ["sudo"])
    assert script.without(made) == SSHD
    assert script.without(SSHD) == SSHD


def test_twice_is_once_and_what_changed_elsewhere_is_taken_over(script: ModuleType) -> None:
    made = script.with_adoption(SSHD, COMMON, MODULE, OPTIONS, ["sudo"])
    assert script.with_adoption(made, COMMON, MODULE, OPTIONS, ["sudo"]) == made
    newer = COMMON + "session optional pam_sss.so\n"
    assert script.with_adoption(made, newer, MODULE, OPTIONS, []) == script.with_adoption(SSHD, newer, MODULE, OPTIONS, [])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SSHD.replace("@include common-account\n", ""), "it does not include common-account, so pam_slurm_adopt cannot be added to it; "),
        (SSHD + "-session optional pam_systemd.so\n", "it names pam_systemd, which would move the shell of a job's user out of the job; "),
    ],
)
def test_a_stack_of_somebody_else(script: ModuleType, text: str, sentence: str) -> None:
    with pytest.raises(SystemExit, match=sentence):
        script.with_adoption(text, COMMON, MODULE, OPTIONS, [])


def process(proc: Path, number: int, parent: int, name: str, uid: int) -> None:
    (proc / str(number)).mkdir()
    (proc / str(number) / "status").write_text(f"Name:\t{name}\nState:\tS (sleeping)\nPPid:\t{parent}\nUid:\t{uid}\t0\t0\t0\n")


@pytest.mark.parametrize(
    ("chain", "user"),
    [
        # python3 <- sudo <- sh <- sshd of the user <- sshd
        ([("python3", 0), ("sudo", 0), ("sh", 1000), ("sshd-session", 1000), ("sshd-session", 0), ("sshd", 0)], 1000),
        # su to another user on the way
        ([("python3", 0), ("sudo", 0), ("bash", 1001), ("su", 0), ("sh", 1000), ("sshd", 1000), ("sshd", 0)], 1000),
        ([("python3", 0), ("sh", 0), ("sshd-session", 0), ("sshd", 0)], 0),
        ([("python3", 0), ("sudo", 0), ("ansible", 1000), ("bash", 1000)], None),
    ],
)
def test_who_ansible_came_as(script: ModuleType, tmp_path: Path, chain: list, user: int | None) -> None:
    for number, (name, uid) in enumerate(chain, start=1):
        process(tmp_path, number, number + 1 if number < len(chain) else 0, name, uid)
    assert script.connected_as(str(tmp_path), 1) == user


def test_the_user_of_ansible_is_not_locked_out(script: ModuleType) -> None:
    nobody = pwd.getpwnam("nobody")
    group = subprocess.run(["id", "-gn", "nobody"], capture_output=True, text=True, check=True).stdout.strip()
    script.refuse_a_lock_out(nobody.pw_uid, ["sudo", group])
    script.refuse_a_lock_out(0, [])
    script.refuse_a_lock_out(None, [])
    with pytest.raises(
        SystemExit, match=rf"comes to this node as nobody, .*one of the user's groups \({group}\) to slurm_pam_adopt.admins"
    ):
        script.refuse_a_lock_out(nobody.pw_uid, ["sudo"])


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("echo usepam yes; echo kbdinteractiveauthentication no", ""),
        ("echo usepam no", r"sshd does not ask PAM \(UsePAM no\); set UsePAM yes"),
        ("echo Missing privilege separation directory >&2; exit 255", r"sshd does not ask PAM \(Missing privilege separation directory\)"),
        ("echo usepam yes; echo kbdinteractiveauthentication yes", "set KbdInteractiveAuthentication no"),
    ],
)
def test_another_way_in(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, sentence: str) -> None:
    (tmp_path / "sshd").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "sshd").chmod(0o755)
    monkeypatch.setattr(script, "SSHD", str(tmp_path / "sshd"))
    if not sentence:
        script.refuse_another_way_in()
        return
    with pytest.raises(SystemExit, match=sentence):
        script.refuse_another_way_in()

# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What accounting holds against what it should hold: equal in any spelling, and only the commands that make up a difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import accounting as logic
from ansible_collections.muster.fleet.plugins.modules import slurm_accounting as module

# Recorded from Slurm 24.11.5, see the README there.
RECORDED = (Path(__file__).parents[1] / "fixtures/slurm/sacctmgr.txt").read_text()

# The inventory that says what the recorded cluster has, in other spellings.
QOS = [
    {
        "name": "high",
        "params": {
            "Priority": 100,
            "Flags": ["nodecay", "DenyOnLimit"],
            "preempt": "normal",
            "MaxWall": "24:00:00",
            "MaxTRESPerUser": {"gres/gpu": 2, "cpu": 8},
            "GrpTRES": "mem=102400M",
            "UsageFactor": 1,
            "GraceTime": 0,
        },
    }
]
ACCOUNTS = [
    {"name": "lab", "parent": "physics", "params": {"QOS": "normal,high"}},
    {"name": "muster"},
    {
        "name": "physics",
        "description": "Foo",
        "organization": "Bar",
        "params": {"Fairshare": 10, "GrpJobs": 6, "MaxJobs": "7", "MaxWall": 100, "QOS": ["high", "normal"], "DefaultQOS": "high"},
    },
]
USERS = [
    {
        "name": "muster",
        "account": "muster",
        "admin_level": "None",
        "associations": [{"account": "lab", "partition": "main", "params": {"MaxJobs": 4, "DefaultQOS": "high"}}],
    }
]


def recorded(text: str = RECORDED) -> dict[str, str]:
    """Entity -> (fields, what was printed)."""
    shown = {}
    for part in text.split("# ")[1:]:
        command, _newline, out = part.partition("\n")
        words = command.split()
        shown[words[4]] = (words[-1].removeprefix("format=").split(","), out)
    return shown


@pytest.fixture
def have() -> dict:
    shown = recorded()
    found = {name: logic.rows(out, fields) for name, (fields, out) in shown.items()}
    return {
        "clusters": shown["cluster"][1].split(),
        "qos": found["qos"],
        "accounts": found["account"],
        "associations": found["associations"],
        "users": found["user"],
    }


def commands(have: dict, qos: list | None = None, accounts: list | None = None, users: list | None = None) -> list[str]:
    lists = [given if given is not None else same for given, same in ((qos, QOS), (accounts, ACCOUNTS), (users, USERS))]
    return [" ".join(argv).removeprefix("sacctmgr --immediate ") for argv in logic.plan("conf", *lists, have).commands]


def test_what_is_there_already_needs_nothing(have):
    assert commands(have) == []
    assert logic.left_alone(QOS, ACCOUNTS, USERS, have) == []


def test_an_empty_database(have):
    nothing = {name: [] for name in have}
    users = [{"name": "ada", "account": "lab", "admin_level": "Operator", "params": {"MaxJobs": 2}}]
    qos = [{"name": "high", "params": {"Priority": 5}}]
    assert commands(nothing, qos=qos, users=users) == [
        "add cluster conf",
        "add qos high",
        "modify qos where name=high set Priority=5",
        "add account physics cluster=conf parent=root Description=Foo Organization=Bar Fairshare=10 GrpJobs=6 MaxJobs=7 MaxWall=100"
        " QOS=high,normal DefaultQOS=high",
        "add account lab cluster=conf parent=physics QOS=normal,high",
        "add account muster cluster=conf parent=root",
        "add user ada account=lab cluster=conf AdminLevel=Operator MaxJobs=2",
    ]


@pytest.mark.parametrize(
    ("params", "sets"),
    [
        ({"Priority": 200}, "Priority=200"),
        ({"MaxWall": "2-00:00:00"}, "MaxWall=2-00:00:00"),
        # sacctmgr keeps the parts of an old value that a new one does not name.
        ({"MaxTRESPerUser": "cpu=8"}, "MaxTRESPerUser=cpu=8,gres/gpu=-1"),
        ({"GrpTRES": -1}, "GrpTRES=mem=-1"),
        ({"GrpTRES": {"mem": "1T"}}, "GrpTRES=mem=1T"),
        ({"Flags": []}, "Flags=-1"),
        ({"Preempt": []}, "Preempt="),
        ({"MaxWall": None}, "MaxWall=-1"),
        ({"MaxJobsPerUser": 3}, "MaxJobsPerUser=3"),
    ],
)
def test_only_the_option_that_differs_is_set(have, params, sets):
    assert commands(have, qos=[{"name": "high", "params": params}]) == [f"modify qos where name=high set {sets}"]


def test_an_account_moves_and_a_user_changes(have):
    accounts = [ACCOUNTS[0] | {"parent": "root"}, *ACCOUNTS[1:]]
    users = [USERS[0] | {"account": "lab", "associations": []}]
    assert commands(have, accounts=accounts, users=users) == [
        "modify account where name=lab cluster=conf set Parent=root",
        "add user muster account=lab cluster=conf",
        "modify user where name=muster cluster=conf set DefaultAccount=lab",
    ]


def test_the_diff_names_the_option(have):
    todo = logic.plan("conf", [{"name": "high", "params": {"Priority": 1, "UsageFactor": 1}}], [], [], have)
    assert (todo.before, todo.after) == (["qos high Priority=100"], ["qos high Priority=1"])


def test_what_nobody_names_is_left_alone_and_told(have):
    todo = logic.plan("conf", [], [ACCOUNTS[1]], [{"name": "muster", "account": "muster"}], have)
    assert todo.commands == []
    alone = logic.left_alone([], [ACCOUNTS[1]], [{"name": "muster", "account": "muster"}], have)
    assert alone == ["qos high", "account physics", "account lab", "user muster in account lab and partition main"]


def test_a_circle_of_parents():
    circle = [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]
    with pytest.raises(logic.SlurmAccountingError, match="The account a is its own parent"):
        logic.order(circle)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1440", "86400"),
        ("10:30", "630"),
        ("01:40:00", "6000"),
        ("1-00:00:00", "86400"),
        ("2-3", "183600"),
        ("1-0:30", "88200"),
        ("x", "x"),
    ],
)
def test_times(text, seconds):
    assert logic.minutes(text) == seconds


@pytest.fixture
def sacctmgr(tmp_path, monkeypatch) -> Path:
    """A sacctmgr that prints recorded output and writes its arguments to a file; return that file."""
    told = tmp_path / "told"
    cases = "".join(f"  {name}) cat <<'EOF' | cut -d'|' -f1-$n\n{out}EOF\n;;\n" for name, (_fields, out) in recorded().items())
    script = tmp_path / "sacctmgr"
    count = "for last; do :; done; n=$(echo $last | tr , '\\n' | wc -l)"
    script.write_text(f'#!/bin/sh\n{count}\nif [ "$3" = show ]; then case "$4" in\n{cases}esac; else echo "$@" >>{told}; fi\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return told


def test_the_module_reads_and_writes_only_the_difference(call, sacctmgr):
    # The module asks for the fields that are named, which here has to be in the recorded order.
    lists = {"cluster": "conf", "accounts": [ACCOUNTS[2], *ACCOUNTS[:2]], "users": USERS}
    same = call(module, qos=QOS, **lists)
    assert (same["changed"], same["left_alone"], same["diff"]) == (False, [], {})
    different = [QOS[0] | {"params": QOS[0]["params"] | {"Priority": 7}}]
    dry = call(module, check_mode=True, qos=different, **lists)
    assert (dry["changed"], sacctmgr.exists()) == (True, False)
    assert dry["diff"] == {"before": "qos high Priority=100\n", "after": "qos high Priority=7\n"}
    assert call(module, qos=different, **lists)["changed"]
    assert sacctmgr.read_text() == "--immediate modify qos where name=high set Priority=7\n"


def test_the_module_with_names_alone(call, sacctmgr):
    """A site without limits: sacctmgr prints one field, without a separator."""
    assert not call(module, cluster="conf", qos=[{"name": "normal"}], accounts=[ACCOUNTS[1]])["changed"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "echo \"Unknown field 'maxfoo'\" >&2; exit 1",
            "The accounting of this Slurm does not have an option of cluster: Unknown field 'maxfoo'.",
        ),
        ("echo 'Connection refused' >&2; exit 1", "sacctmgr failed: Connection refused; look at slurmdbd: systemctl status slurmdbd"),
        ('[ "$3" = show ] || { echo Bad MaxWall; exit 1; }', "sacctmgr --immediate add cluster conf was refused: Bad MaxWall"),
    ],
)
def test_the_module_says_what_is_wrong(call, tmp_path, monkeypatch, script, says):
    (tmp_path / "sacctmgr").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert call(module, cluster="conf", wait=0)["msg"] == says

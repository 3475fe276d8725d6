# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Variables that no role knows, and values of another type, refused before anything runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.plugin_utils.check_vars import find_unknown, known_options, other_shape, owner, sentence

ROOT = Path(__file__).parents[2]
SPECS: dict[str, dict[str, Any]] = {
    "nccl": {
        "main": {"options": {"nccl_version": {"type": "str"}, "nccl_nodes": {"type": "int", "required": True}}},
        "configure": {"options": {"nccl_debug": {"type": "bool"}, "muster_hooks": {"type": "dict"}}},
    },
    "nccl_tests": {"main": {"options": {"nccl_tests_sizes": {"type": "list", "elements": "int"}}}},
    "docker": {"main": {"options": {"docker_token": {"choices": ["x"], "no_log": True}, "docker_level": {"choices": ["a", "b"]}}}},
    "empty": {"main": {}},
}
KNOWN = known_options({role: {"argument_specs": spec} for role, spec in SPECS.items()})


def test_entry_points_are_united_and_fleet_options_belong_to_the_fleet() -> None:
    assert set(KNOWN["nccl"]) == {"nccl_version", "nccl_nodes", "nccl_debug"}
    assert set(KNOWN["muster"]) == {"muster_hooks"}
    assert KNOWN["empty"] == {}


@pytest.mark.parametrize(
    ("name", "role"),
    [("nccl_x", "nccl"), ("nccl_tests_x", "nccl_tests"), ("nccl", None), ("__nccl_x", None), ("ncclx_y", None), ("muster_x", "muster")],
)
def test_the_longest_role_owns(name: str, role: str | None) -> None:
    assert owner(name, KNOWN) == role


def test_unknown_names_the_nearest() -> None:
    names = ["nccl_versoin", "nccl_tests_version", "empty_x", "muster_hook", "nccl_version", "other", "__nccl_x"]
    assert find_unknown(names, KNOWN) == {
        "nccl_versoin": "is not an option of role nccl; the nearest is nccl_version",
        "nccl_tests_version": "is not an option of role nccl_tests; the nearest is nccl_tests_sizes",
        "empty_x": "is not an option of role empty",
        "muster_hook": "is not an option of the fleet; the nearest is muster_hooks",
    }


USERS: dict[str, Any] = {
    "type": "list",
    "elements": "dict",
    "options": {"name": {"type": "str"}, "groups": {"type": "list", "elements": "str"}},
}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([{"name": "a", "groups": ["b"]}], ""),
        (None, ""),
        ([{"name": "a", "groups": None}], ""),
        ([{"nmae": "a"}], "each item of it has the unknown key nmae; the nearest is name"),
        ([{1: "a"}], "each item of it has the unknown key 1"),
        ("a,b", "it must be a list"),
        ({"name": "a"}, "it must be a list"),
        (["a=b"], "each item of it must be a mapping"),
        ([{"name": "a"}, {"groups": "b"}], "groups must be a list"),
        ([{"name": ["a"]}], "name must be text"),
        ([{"name": 1, "groups": [{}]}], "each item of groups must be text"),
    ],
)
def test_text_is_no_list_and_no_mapping(value: Any, fault: str) -> None:
    assert other_shape(value, USERS) == fault


def test_sentence_names_three_hosts() -> None:
    assert sentence("x", ["a", "b", "c", "d", "e"], 6, "is odd") == "Variable x (a, b, c and 2 more) is odd."
    assert sentence("x", ["a"], 1, "is odd") == "Variable x (all hosts) is odd."


@pytest.fixture
def play(tmp_path: Path) -> Any:
    """Run the real plugin over an inventory with these variables of group gpu, of host b and of the command line."""
    for role, spec in SPECS.items():
        (tmp_path / f"roles/{role}/meta").mkdir(parents=True)
        (tmp_path / f"roles/{role}/meta/argument_specs.yml").write_text(yaml.safe_dump({"argument_specs": spec}))

    def run(group: dict[str, Any], host: dict[str, Any], extra: dict[str, Any], **options: Any) -> dict[str, Any]:
        task = {"name": "Check", "muster.fleet.check_vars": {"roles_path": str(tmp_path / "roles"), **options}}
        whole = {"name": "Check", "hosts": "localhost", "gather_facts": False, "tasks": [task]}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([whole]))
        inventory = {"all": {"hosts": {"c": {}}, "children": {"gpu": {"hosts": {"a": {}, "b": host}, "vars": group}}}}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yml", "play.yml", "-e", json.dumps(extra)]
        env = os.environ | {"ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        ended = subprocess.run([*command, "-v"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert "Traceback" not in ended.stdout + ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout[ended.stdout.index("=> {") + 3 :].split("\n\n")[0])
        return found | {"rc": ended.returncode}

    return run


def test_good_variables_pass_and_templates_are_left_alone(play: Any) -> None:
    group = {"nccl_version": "{{ undefined_anywhere }}", "nccl_nodes": "2", "docker_level": "a", "nccl_tests_sizes": ["{{ x }}", 1]}
    found = play(group, {"nccl_debug": "yes", "unrelated": 1}, {"__nccl_x": 1})
    assert (found["rc"], found["checked"]) == (0, 5)


def test_bad_variables_are_each_one_sentence(play: Any) -> None:
    group = {"nccl_nodes": "many", "docker_token": "secret", "nccl_tests_sizes": "1,2"}
    found = play(group, {"nccl_versoin": "{{ undefined_anywhere }}", "docker_level": "c"}, {"muster_local_computes": 3})
    assert found["rc"] != 0
    assert found["msg"].split(". ") == [
        "Variable muster_local_computes (all hosts) is not an option of the fleet; the nearest is muster_local_compute",
        "Variable nccl_versoin (b) is not an option of role nccl; the nearest is nccl_version",
        "Variable docker_level (b) is refused: value of docker_level must be one of: a, b, got: c",
        "Variable docker_token (a, b) is secret and not what its role asks for",
        "Variable nccl_nodes (a, b) must be of type int",
        "Variable nccl_tests_sizes (a, b) is refused: it must be a list.",
    ]


def test_what_templates_give_is_checked_for_the_roles_of_each_host(play: Any) -> None:
    group = {
        "nccl_nodes": "{{ count }}",
        "docker_token": "{{ 'sec' ~ 'ret' }}",
        "docker_level": "{{ (1 / 0) | string }}",
        "nccl_debug": "{{ known_later }}",
        "nccl_version": "{{ ansible_play_name if groups['gpu'] == ['a', 'b'] and hostvars['a'] else [] }}",
        "nccl_tests_sizes": "{{ sizes }}",
        "count": "many",
        "sizes": "1,2",
    }
    found = play(group, {"count": 3, "sizes": [1]}, {}, roles={"a": ["nccl", "docker"], "b": ["nccl", "nccl_tests"]})
    assert found["rc"] != 0
    assert found["checked"] == 6
    assert found["msg"].startswith("Variable docker_level (a) cannot be computed: ")
    assert found["msg"].endswith(
        "Variable docker_token (a) is secret and not what its role asks for. Variable nccl_nodes (a) must be of type int."
    )
    assert "sec" not in found["msg"].replace("secret", "")


def test_names_are_not_checked_again(play: Any) -> None:
    """Roles may set more variables than their options, and the first task of a run has checked what the user gave."""
    found = play({"nccl_nodes": "many", "nccl_found": 1, "docker_level": "c"}, {}, {}, roles={"a": ["nccl"]})
    assert (found["checked"], found["msg"]) == (1, "Variable nccl_nodes (all hosts) must be of type int.")


def run_playbook(folder: Path, playbook: str, inventory: dict[str, Any], wanted: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a playbook of ours over hosts that do not exist; its state and runs are in the folder."""
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": inventory}))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", str(folder / "hosts.yml"), f"playbooks/{playbook}", "-e", json.dumps(wanted)]
    env = os.environ | {"PWD": str(folder), "XDG_STATE_HOME": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("value", ["{{ 'ma' ~ 'ny' }}", "many"])
def test_the_stack_playbook_refuses_a_wrong_value_before_any_role(tmp_path: Path, value: str) -> None:
    """No task before it asks the node, which does not exist."""
    host = {"ansible_host": "192.0.2.1", "common_nofile": value}
    wanted = {"muster_phases": ["install"], "muster_components": ["common"]}
    ended = run_playbook(tmp_path, "stack.yml", {"hosts": {"a": host}}, wanted)
    assert ended.returncode == 2
    assert "Variable common_nofile (all hosts) must be of type int." in ended.stdout
    assert "unreachable=0" in ended.stdout


@pytest.mark.parametrize("value", ["{{ 'ma' ~ 'ny' }}", "{{ 4000 + 96 }}"])
def test_reimage_checks_the_values_of_all_nodes_before_anything_changes(tmp_path: Path, value: Any) -> None:
    """Later each node goes on alone (strategy free), where no task can check all hosts at once. begin.yml leaves templates alone."""
    node = {"ansible_host": "192.0.2.1", "instance_id": "i-1"}
    groups = {"muster_controller": {"hosts": {"c": node}}, "muster_compute": {"hosts": {"a": {**node, "common_nofile": value}, "b": node}}}
    asked = {"muster_reimage": {"ami": "ami-0123456789abcdef0", "region": "us-east-1"}, "muster_components": ["common"]}
    ended = run_playbook(tmp_path, "reimage.yml", {"children": groups}, asked)
    assert ended.returncode != 0
    refused = "Variable common_nofile (a) must be of type int." in ended.stdout
    assert refused == ("ny" in value), ended.stdout[-3000:]
    assert ("Install the program that slurmctld will call" in ended.stdout) != refused


def test_what_the_first_playbook_of_a_command_found_out_is_no_variable_of_the_user(tmp_path: Path) -> None:
    """`ansible-playbook playbooks/validate.yml playbooks/train.yml`: each playbook begins, and the first one has left facts."""
    begin = {"import_playbook": str(ROOT / "playbooks/begin.yml"), "vars": {"begin_changes": False, "begin_fleet": False}}
    facts = {"ansible.builtin.set_fact": {"muster_proven_hosts": ["a"], "trainer_job": {}}}
    (tmp_path / "first.yml").write_text(yaml.safe_dump([begin, {"hosts": "localhost", "gather_facts": False, "tasks": [facts]}]))
    (tmp_path / "second.yml").write_text(yaml.safe_dump([begin]))
    env = {**os.environ, "PWD": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    for more, code in ((), 0), (("-e", "muster_fleat=x"), 2):
        argv = [
            Path(sys.executable).parent / "ansible-playbook",
            "-i",
            "a,",
            tmp_path / "first.yml",
            tmp_path / "second.yml",
            *more,
        ]
        ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stdout[-3000:]
    assert "the nearest is muster_fleet" in ended.stdout


def test_no_host_that_goes_on_alone_runs_a_task_for_all_hosts() -> None:
    """Ansible refuses an action with BYPASS_HOST_LOOP in a play with the strategy free, but only when a host comes to it."""
    for_all = [path.stem for path in (ROOT / "plugins/action").glob("*.py") if "BYPASS_HOST_LOOP = True" in path.read_text()]
    assert "check_vars" in for_all
    plays = [
        each
        for path in (ROOT / "playbooks").glob("*.yml")
        for each in yaml.safe_load(path.read_text())
        if "free" in str(each.get("strategy"))
    ]
    assert plays
    for each in plays:
        text = yaml.safe_dump(each) + (ROOT / "playbooks/tasks/configure_alone.yml").read_text()
        assert "tasks/stack.yml" not in text
        assert not [name for name in for_all if f"muster.fleet.{name}:" in text]

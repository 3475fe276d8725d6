# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""One sentence that names the fault and its remedy refuses invalid input, before anything is made, started or run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from e2e_fleet import one_sentence
from typed import ROOT, typed

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine, free_disk_mib

pytestmark = pytest.mark.engine

NAME = "bad-input"
PLAYBOOK = (".venv/bin/ansible-playbook", "site.yml")
SPECS = {path.parents[1].name: yaml.safe_load(path.read_text())["argument_specs"] for path in ROOT.glob("roles/*/meta/argument_specs.yml")}
COLLECTIVES = ROOT / "tests/fixtures/run/local/20261121T105130Z/jobs/collectives/output.txt"

Refuse = Callable[..., str]


@pytest.fixture(scope="module")
def refuse(artifacts) -> Refuse:
    """Run a command that must be refused and leave nothing; return the sentence, or with whole=True all that it printed, on one line."""
    folder = artifacts.folder(NAME)
    # make sets PWD for itself.
    artifacts.leave(f"runs/{NAME}", lambda: shutil.rmtree(ROOT / "runs" / NAME, ignore_errors=True))
    engine = find_engine()
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PWD": str(folder)}
    down = [".venv/bin/ansible-playbook", "playbooks/local_down.yml", "-e", f"muster_fleet={NAME}"]
    artifacts.leave(f"fleet {NAME}", lambda: subprocess.run(down, cwd=ROOT, env=environment, check=True, capture_output=True))

    def made() -> list[object]:
        return [
            engine.ask("ps", "--all", "--quiet", "--filter", f"label=muster.fleet={NAME}"),
            engine.networks(f"muster.fleet={NAME}"),
            list((folder / "state").rglob("*")),
        ]

    def run(*argv: str, whole: bool = False) -> str:
        ended = typed(list(argv), environment, timeout=60)
        assert made() == ["", [], []], ended.stdout
        said = one_sentence(ended)
        return " ".join(ended.stdout.split()) if whole else said

    return run


def extra(**variables: object) -> tuple[str, str]:
    return "-e", json.dumps({"muster_fleet": NAME, **variables})


@pytest.fixture
def inventory(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Arguments for an inventory with one controller and these compute nodes, or for a local fleet with these options."""

    def write(*compute: str, **options: object) -> tuple[str, str]:
        path = tmp_path / "local_fleet.yml" if options else tmp_path / "hosts.yml"
        hosts = {"muster_controller": ["controller-1"], "muster_compute": compute}
        children = {group: {"hosts": {name: {} for name in names}} for group, names in hosts.items()}
        static = {"all": {"vars": {"muster_fleet": NAME}, "children": children}}
        path.write_text(yaml.safe_dump({"plugin": "muster.fleet.local_fleet", "fleet": NAME, **options} if options else static))
        return "-i", str(path)

    return write


def options_of_roles() -> dict[str, dict[str, dict]]:
    """The options of each role that carry its name."""
    found = {}
    for role, specs in SPECS.items():
        options = {name: option for spec in specs.values() for name, option in spec.get("options", {}).items() if name.startswith(role)}
        if options:
            found[role] = options
    assert len(found) > 20
    return found


def test_unknown_variables_of_every_role(refuse: Refuse) -> None:
    roles = {}
    for role, options in options_of_roles().items():
        known = max(options, key=len)
        roles[role] = known, known[:-2] + known[:-3:-1] if known[-1] != known[-2] else known[:-1]
    given = {misspelt: "{{ undefined_anywhere }}" for _known, misspelt in roles.values()}
    said = refuse(*PLAYBOOK, *extra(**given), whole=True)
    for role, (known, misspelt) in roles.items():
        assert f"Variable {misspelt} (all hosts) is not an option of role {role}; the nearest is {known}." in said
    assert "Correct or remove it" in said


def test_wrong_type_in_every_role(refuse: Refuse) -> None:
    shapes = {"list": "a list", "dict": "a mapping", "str": "text", "path": "text"}
    first = [next(iter(options.items())) for options in options_of_roles().values()]
    given = {name: "text" if option["type"] in ("list", "dict") else {"a": 1} for name, option in first}
    said = refuse(*PLAYBOOK, *extra(**given), whole=True)
    for name, option in first:
        kind = option["type"]
        fault = f"is refused: it must be {shapes[kind]}" if kind in shapes else f"must be of type {kind}"
        assert f"Variable {name} (all hosts) {fault}." in said


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"slurm_nodegroups": [{"name": "compute", "hosts": "compute-1"}]},
            "slurm_nodegroups .* is refused: hosts must be a list.",
        ),
        ({"muster_collectives": {"ops": ["all_redcue"]}}, "one or more of: all_reduce, .* Got no match for: all_redcue"),
        (
            {"slurm_users": [{"name": name, "uid": 2000, "account": "muster"} for name in ("ada", "grace")]},
            "Users ada and grace of slurm_users both have the UID 2000; give each its own UID.",
        ),
        (
            {"users_servers": ["ldaps://dc.example"], "users_base": "dc=example", "users_groups": [{"name": "hpc", "account": "muster"}]},
            "The directory in users_servers has no users_ca, without which no server is trusted; give the file of its CA, or system.",
        ),
        ({"muster_stack_name": "debian-14"}, r"There is no stack debian-14; there are aws-2026\.11, .* or name a file that ends in .yml."),
        ({"muster_training": {"stesp": 10}}, "muster_training .* has the unknown key stesp; the nearest is steps."),
        ({"muster_training": {"steps": "many"}}, "muster_training .* 'steps' .* \"'many'\" cannot be converted to an int"),
    ],
)
def test_wrong_value_inside_a_variable(refuse: Refuse, variables: dict[str, object], sentence: str) -> None:
    assert re.search(sentence, refuse(*PLAYBOOK, *extra(**variables)))


def test_a_stack_with_an_unknown_key(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text("schema: muster.stack/1\nname: own\nextends: debian-13\nnccl: {verison: 2.30.7}\n")
    said = refuse(*PLAYBOOK, *extra(muster_stack_name=str(tmp_path / "own.yml")))
    assert "Stack own: component nccl has the unknown key verison; the nearest is version." in said


def test_no_compute_nodes(refuse: Refuse, inventory) -> None:
    said = refuse(*PLAYBOOK, *inventory())
    assert "The fleet has no compute nodes; put at least one host into the group muster_compute of the inventory." in said


@pytest.mark.parametrize("playbook", ["site.yml", "playbooks/train.yml", "playbooks/nccl_tests.yml", "playbooks/validate.yml"])
def test_a_service_without_nodes_cannot_prove_a_fleet(refuse: Refuse, tmp_path: Path, playbook: str) -> None:
    """Nothing would run there, and that would pass."""
    (tmp_path / "hosts.yml").write_text("all: {}\n")
    said = refuse(PLAYBOOK[0], playbook, "-i", str(tmp_path / "hosts.yml"), *extra(muster_launcher="batch", muster_target={"queue": "gpu"}))
    assert "muster_launcher is batch, and this playbook measures and trains on the nodes of Slurm or Kubernetes only" in said


def test_two_nodes_with_one_name(refuse: Refuse, inventory) -> None:
    said = refuse(*PLAYBOOK, *inventory("node-1.a", "node-2.a", "node-1.b"))
    assert "Compute nodes node-1.a and node-1.b have the same NodeName" in said
    assert "rename one of them." in said


def test_two_storage_servers(refuse: Refuse, tmp_path: Path) -> None:
    groups = {"muster_controller": ["controller-1"], "muster_compute": ["compute-1"], "muster_storage": ["nas-1", "nas-2"]}
    children = {group: {"hosts": {name: {} for name in names}} for group, names in groups.items()}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": {"muster_fleet": NAME}, "children": children}}))
    said = refuse(*PLAYBOOK, "-i", str(tmp_path / "hosts.yml"))
    assert "The group muster_storage has 2 hosts, nas-1 and nas-2 first; only one host may serve the shared file system" in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "dokcer"}, "Unknown container engine 'dokcer': use auto, podman or docker."),
        ({"memory": "900g"}, rf"Fleet {NAME} needs 2764800 MiB of memory, \d+ MiB are free: ask for fewer nodes or less memory"),
        ({"memory": "lots"}, "Node controller-1 cannot have a size of 'lots': give MiB such as 2048, or 512m or 2g."),
        ({"comptue": 4}, "unknown option comptue; the nearest is compute."),
        ({"fleet": "Bad_Name"}, "Fleet name 'Bad_Name' cannot be used: it must be 1 to 20 lower-case letters, digits or dashes"),
    ],
)
def test_invalid_local_fleet(refuse: Refuse, inventory, options: dict[str, object], sentence: str) -> None:
    assert re.search(sentence, refuse(*PLAYBOOK, *inventory(**options)))


def test_too_little_disk(refuse: Refuse, inventory) -> None:
    if free_disk_mib(find_engine().storage) > 200_000:
        pytest.skip("this machine has room for 200 nodes")
    said = refuse(*PLAYBOOK, *inventory(compute=199, memory="16"))
    assert re.search(rf"Fleet {NAME} needs 20\d{{4}} MiB of disk in \S+, \d+ MiB are free: make room there.", said)


def test_invalid_fleet_name(refuse: Refuse, inventory) -> None:
    assert "Fleet name 'Bad_Name' cannot be used" in refuse(*PLAYBOOK, *inventory("node-1"), "-e", "muster_fleet=Bad_Name")
    assert "Fleet name 'Bad_Name' cannot be used" in refuse("make", "down", "FLEET=Bad_Name")


def test_two_controllers_without_one_state_folder(refuse: Refuse, inventory) -> None:
    said = refuse(*PLAYBOOK, *inventory(controllers=2))
    assert "The controllers controller-1 and controller-2 need one folder for their state; name one that all of them mount:" in said


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"slurm_database": {"host": "db-1"}}, "wants TLS to db-1 without a CA .* or say tls: false."),
        (
            {"slurm_database": {"host": "db-1", "tls": False}},
            "slurm_database names the host db-1, but .* holds no password; write it there",
        ),
        ({"slurm_database": {"host": "db-1", "hosts": "db-1"}}, "slurm_database .* has the unknown key hosts; the nearest is host."),
        ({"slurm_rest": {"listen": "6820"}}, "slurm_rest.listen is '6820'; give unix:/run/slurmrestd/slurmrestd.socket or ADDRESS:PORT"),
    ],
)
def test_invalid_slurm_services(refuse: Refuse, inventory, variables: dict[str, object], sentence: str) -> None:
    assert re.search(sentence, refuse(*PLAYBOOK, *inventory("node-1"), *extra(**variables)))


@pytest.mark.parametrize("number", ["0", "abc", "2.5", "-1", "201"])
def test_invalid_number_of_nodes(refuse: Refuse, number: str) -> None:
    said = refuse("make", "site", f"FLEET={NAME}", f"COMPUTE={number}")
    assert f"The number of compute nodes (COMPUTE) must be a whole number from 1 to 200, not '{number}'." in said


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("name: hello\ncommand: [hostname]\nndoes: 2\n", "Job hello has the unknown field ndoes; did you mean nodes?"),
        ("name: hello\ncommand: [hostname\n", "is not YAML: .* line 3"),
        ("", "A job document is a mapping with name and command"),
        (None, r"cannot be read \(No such file or directory\): name a file."),
    ],
)
def test_invalid_job_document(refuse: Refuse, inventory, tmp_path: Path, document: str | None, sentence: str) -> None:
    path = tmp_path / "hello.yml"
    if document is not None:
        path.write_text(document)
    said = refuse(PLAYBOOK[0], "playbooks/job.yml", *inventory("compute-1"), "-e", f"job=@{path}")
    assert str(path) in said
    assert re.search(sentence, said)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (0, "The output of the collective test is empty: read the job's error output for what stopped it."),
        (0.5, "it has no concluding line"),
        (0.97, r"line \d+ is damaged"),
    ],
)
def test_empty_or_cut_output_of_collectives(refuse: Refuse, tmp_path: Path, part: float, sentence: str) -> None:
    whole = COLLECTIVES.read_text()
    whole = whole[: whole.index("# Out of bounds")]
    (tmp_path / "output.txt").write_text(whole[: int(len(whole) * part)])
    argv = (".venv/bin/ansible", "localhost", "-m", "muster.fleet.nccl_results", "-a", f"path={tmp_path}/output.txt")
    assert re.search(sentence, refuse(*argv))

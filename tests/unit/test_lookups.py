# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The lookups path, role_inputs and tree_sha256, and the filter components."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.muster.fleet.plugins.filter.components import components
from ansible_collections.muster.fleet.plugins.lookup import path, role_inputs, tree_sha256

ROOT = Path(__file__).parents[2]
DEBIAN = {"distribution": "Debian", "distribution_major_version": "13", "architecture": "x86_64"}


def ask(plugin: ModuleType, term: str, **variables: object) -> str:
    [found] = plugin.LookupModule(None, Templar(DataLoader(), variables=variables)).run([term], variables)
    return found


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of role slurm with the name that the lookup finds it by."""
    shutil.copytree(ROOT / "roles/slurm", tmp_path / "slurm", ignore=shutil.ignore_patterns("molecule"))
    monkeypatch.setattr(role_inputs, "role_folder", lambda name: str(tmp_path / name))
    return tmp_path / "slurm"


def digest(**change: object) -> str:
    return ask(role_inputs, "slurm", **{"slurm_install_method": "apt", "slurm_users": [], "ansible_facts": DEBIAN, **change})


def test_the_same_inputs_have_the_same_digest(role):
    assert re.fullmatch(r"[0-9a-f]{64}", digest())
    assert digest() == digest()
    # Only the value counts, not the expression that gives it.
    assert digest(slurm_install_method=trust_as_template("{{ 'a' ~ 'pt' }}")) == digest()


@pytest.mark.parametrize("fact", DEBIAN)
def test_another_system_has_another_digest(role, fact):
    assert digest(ansible_facts={**DEBIAN, fact: "other"}) != digest()


def test_other_facts_do_not_count(role):
    assert digest(ansible_facts={**DEBIAN, "uptime_seconds": 5}) == digest()


def test_variables_of_the_install_count_and_those_of_later_phases_do_not(role):
    assert digest(slurm_install_method="source") != digest()
    # They only select packages, which the manifest compares by name: an image with the packages of all functions serves each.
    assert digest(slurm_functions=["controller"]) == digest()
    assert digest(slurm_users=[{"name": "muster"}]) == digest()


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("tasks/install.yml", True),
        ("tasks/bake.yml", True),
        ("vars/Debian.yml", True),
        ("files/pmix_hello.py", True),
        ("templates/mariadb.cnf.j2", True),
        ("tasks/configure.yml", False),
        ("tasks/verify_fleet.yml", False),
        ("README.md", False),
        ("meta/argument_specs.yml", False),
    ],
)
def test_files_of_the_install_count(role, path, counts):
    before = digest()
    with (role / path).open("a") as handle:
        handle.write("\n")
    assert (digest() != before) == counts


STACK = {
    "name": "x",
    "systems": ["debian13"],
    "architectures": ["x86_64"],
    "nccl": {"version": "2.22.3", "sources": [{"distro": ["libnccl2"]}]},
    "efa": {"version": "1.51.0", "flags": ["--yes"], "sources": [{"url": "https://example.org/{version}", "sha256": "0" * 64}]},
    "aws_ofi_nccl": {"version": "1.22.0", "sources": [{"bundled_in": "efa"}]},
}


@pytest.mark.parametrize(
    ("components", "changed", "counts"),
    [
        (["nccl"], {"nccl": {"version": "2.23.4"}}, True),
        (["nccl"], {"nccl": {"sources": [{"distro": ["libnccl2", "libnccl-dev"]}]}}, True),
        (["efa"], {"efa": {"flags": []}}, True),
        (["aws_ofi_nccl"], {"efa": {"version": "1.52.0"}}, True),
        (["nccl"], {"efa": {"version": "1.52.0"}}, False),
        ([], {"nccl": {"version": "2.23.4"}}, False),
    ],
)
def test_what_the_stack_says_of_a_role_s_components_counts(role, components, changed, counts):
    known = {"phases_components": components, "phases_system": "debian13", "phases_arch": "x86_64", "phases_mirror": ""}
    other = {**STACK, **{name: {**STACK[name], **change} for name, change in changed.items()}}
    assert (digest(**known, phases_stack=other) != digest(**known, phases_stack=STACK)) == counts
    assert digest(**{**known, "phases_mirror": "/srv"}, phases_stack=STACK) == digest(**known, phases_stack=STACK)


def test_a_renamed_file_counts(role):
    before = digest()
    (role / "files/pmix_hello.py").rename(role / "files/other.py")
    assert digest() != before


def test_a_role_that_is_not_there():
    with pytest.raises(AnsibleError, match=r"The role nothing has no .*argument_specs"):
        ask(role_inputs, "nothing")


def test_roles_are_found_beside_the_plugins():
    assert re.fullmatch(r"[0-9a-f]{64}", ask(role_inputs, "common", ansible_facts=DEBIAN))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/one.py").write_text("1")
    (tmp_path / "a/b/two.py").write_text("2")
    return tmp_path / "a"


def test_a_tree_is_its_names_and_contents(tree):
    before = tree_sha256.digest(str(tree))
    assert before == tree_sha256.digest(str(shutil.copytree(tree, tree.parent / "copy")))
    (tree / "b/two.py").write_text("3")
    changed = tree_sha256.digest(str(tree))
    (tree / "b/two.py").write_text("2")
    (tree / "b/two.py").rename(tree / "two.py")
    assert len({before, changed, tree_sha256.digest(str(tree))}) == 3


@pytest.mark.parametrize("name", ["__pycache__/two.pyc", "tests/test_it.py", ".venv/x", "dist/x.whl"])
def test_caches_and_tests_are_no_part_of_a_tree(tree, name):
    before = tree_sha256.digest(str(tree))
    (tree / name).parent.mkdir()
    (tree / name).write_text("x")
    assert tree_sha256.digest(str(tree)) == before


def test_a_tree_that_is_not_there(tmp_path):
    with pytest.raises(AnsibleError, match=r"The folder .*/nothing does not exist"):
        ask(tree_sha256, f"{tmp_path}/nothing")


def test_paths(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert ask(path, "state", muster_fleet="local") == "/state/muster/local"
    assert ask(path, "state", muster_fleet=trust_as_template("{{ 'a' ~ 'b' }}")) == "/state/muster/ab"
    assert ask(path, "cache") == "/cache/muster"
    assert ask(path, "state", muster_fleet="local", muster_state_dir="/mine") == "/mine"
    assert ask(path, "cache", muster_cache_dir="/mine") == "/mine"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert ask(path, "cache") == "/home/me/.cache/muster"


@pytest.mark.parametrize(
    ("term", "fleet", "says"),
    [("logs", "local", "The lookup path has no folder logs"), ("state", "../other", "Fleet name '../other' cannot be used")],
)
def test_no_such_path(term, fleet, says):
    with pytest.raises(Exception, match=re.escape(says)):
        ask(path, term, muster_fleet=fleet)


TABLE = [
    {"name": "common", "groups": ["all"]},
    {"name": "storage", "groups": ["all"], "when": False},
    {"name": "slurm", "groups": ["muster_controller", "muster_compute"]},
    {"name": "cloud_tools"},
    {"name": "trainer", "groups": ["muster_compute"], "when": "muster_training"},
]


@pytest.mark.parametrize(
    ("groups", "only", "names"),
    [
        (["muster_compute"], [], ["common", "slurm", "trainer"]),
        (["muster_controller", "web"], [], ["common", "slurm"]),
        ([], [], ["common"]),
        # Exactly what is named, in the table's order.
        (["muster_controller"], ["trainer", "cloud_tools", "common"], ["common", "cloud_tools", "trainer"]),
        (["muster_controller"], ["storage"], []),
    ],
)
def test_components_of_a_host(groups, only, names):
    assert components(groups, TABLE, only) == names


def test_a_component_that_does_not_exist():
    with pytest.raises(AnsibleFilterError, match="names slurmm, which is not a component; the components are common, storage, slurm, "):
        components([], TABLE, ["slurmm"])


@pytest.mark.parametrize(
    "name", sorted(path.parent.parent.name for path in ROOT.glob("roles/*/tasks/install.yml") if path.parent.parent.name != "phases")
)
def test_what_an_install_reads_is_among_its_inputs(name):
    """A variable that install tasks read and the entry point install does not declare could change without a new install.

    The test leaves out variables whose result the manifest compares: packages by name, and a file of the environment that was made.
    """
    compared = {"slurm_functions", "trainer_venv_host"}
    text = "".join(path.read_text() for path in (ROOT / "roles" / name / "tasks").glob("install*.yml"))
    specs = yaml.safe_load((ROOT / "roles" / name / "meta/argument_specs.yml").read_text())["argument_specs"]
    read = {found for found in re.findall(rf"(?<!\w){name}_\w+", text) if found in specs["main"]["options"]}
    assert read - compared <= set(specs["install"].get("options", {}))

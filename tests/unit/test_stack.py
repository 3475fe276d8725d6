# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Stack documents: what one says when laid over another, what is refused, and where a component comes from."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import component_table
import jinja2
import pytest
import yaml
from ansible.errors import AnsibleFilterError, AnsibleLookupError

from ansible_collections.muster.fleet.plugins.filter import stack as filters
from ansible_collections.muster.fleet.plugins.lookup.stack import LookupModule
from ansible_collections.muster.fleet.plugins.module_utils.basics import version_key
from ansible_collections.muster.fleet.plugins.module_utils.stack import document as logic
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "stacks").glob("*.yml"))
SHA256 = "c9eaf0593567ac5765d04c48cf7923dacb2644240b35bb5f025edb3bde1d5b4f"
SMALL = {
    "schema": "muster.stack/1",
    "name": "small",
    "systems": ["debian12", "ubuntu24.04"],
    "architectures": ["x86_64", "arm64"],
    "gdrcopy": {"version": "2.6", "sources": [{"url": "https://example.org/a/v{version}.tar.gz", "sha256": SHA256}]},
}


def changed(path: str, value: object) -> dict:
    """SMALL with one thing put elsewhere: changed("gdrcopy.version", 2.6)."""
    document = copy.deepcopy(SMALL)
    *folders, last = path.split(".")
    place: Any = document
    for folder in folders:
        place = place[int(folder)] if isinstance(place, list) else place[folder]
    if value is ...:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return document


def resolve(**documents: dict) -> dict:
    return logic.resolve(next(iter(documents)), lambda name: documents[name], stack_files.known())


@pytest.mark.parametrize("name", NAMES)
def test_our_stacks_are_whole(name: str) -> None:
    document = stack_files.load(name)
    assert document["name"] == name
    assert len(document["sha256"]) == 64
    for download in logic.downloads(document):
        assert download["url"].startswith("https://"), download
        assert "{" not in download["url"], download


def test_a_stack_is_read_again_when_its_file_changed_and_its_reader_may_change_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text((stack_files.STACKS / "debian-13.yml").read_text())
    first = stack_files.load(str(path))
    first["slurm"]["version"] = first["name"] = "changed"
    assert stack_files.load(str(path))["slurm"]["version"] != "changed"
    path.write_text(path.read_text().replace("name: debian-13", "name: another"))
    assert stack_files.load(str(path))["name"] == "another"


def test_debian_13_says_why_it_has_no_driver() -> None:
    assert "pci_resize_resource" in logic.refusal(stack_files.load("debian-13"), "nvidia_driver", "debian13", "x86_64")


def test_what_only_https_vouches_for_is_known() -> None:
    """A component that loses its fingerprint, or gets one, is a decision: write it here."""
    document = stack_files.load("aws-2026.11")
    told = {
        (name, system)
        for system in document["systems"]
        for name in logic.components(document)
        if logic.notice(document, name, system, "x86_64")
    }
    assert told == {("lustre_client", system) for system in ("ubuntu22.04", "ubuntu24.04", "rhel9", "rocky9")}
    assert all("muster_require_signed" in logic.refusal(document, *each, "x86_64", require_signed=True) for each in told)
    assert not any(logic.refusal(document, *each, "x86_64") for each in told)


@pytest.mark.parametrize(
    ("names", "system", "words"),
    [
        (["lustre_client"], "ubuntu24.04", "https"),
        (["lustre_client"], "amzn2023", "distribution"),
        (["enroot", "pyxis"], "debian13", "sha256"),
        (["libfabric"], "debian13", "signature"),
        (["lustre_client", "enroot", "efa"], "rocky9", "https, sha256, signature"),
        (["neuron"], "debian13", ""),
    ],
)
def test_how_downloads_are_verified(names: list[str], system: str, words: str) -> None:
    assert logic.verified(stack_files.load("aws-2026.11"), names, system, "x86_64") == words


def test_parts_of_a_source_archive_are_downloads_of_their_own() -> None:
    """enroot's tag lacks its submodules. A mirror must have them, and a build must get them from there."""
    document = stack_files.load("aws-2026.11")
    [musl, *_others] = [each for each in logic.downloads(document) if each["component"] == "enroot" and "/enroot/" not in each["url"]]
    assert musl == {
        "component": "enroot",
        "kind": "url",
        "url": "https://musl.libc.org/releases/musl-1.2.5.tar.gz",
        "sha256": "a9a118bbe84d8764da0ea0d28b3ab3fae8477fc7e4085d90102b8596fc7c75e4",
    }
    source = filters.stack_source(document, "enroot", "debian13", "arm64", "/srv/mirror")
    assert [(each["folder"], each["url"].split("/")[5]) for each in source["parts"]] == [
        ("deps/musl", "musl.libc.org"),
        ("deps/makeself", "github.com"),
        ("deps/linux-headers", "github.com"),
    ]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (changed("gdrcpy", {}), "it has the unknown key gdrcpy; the nearest is gdrcopy."),
        (changed("gdrcopy.verison", "1"), "component gdrcopy has the unknown key verison; the nearest is version."),
        (changed("python", 3.12), "python is the number 3.12 and must be text; put it in quotes."),
        (changed("wheels", {"torch": 2.15}), "the version of wheel torch is the number 2.15 and must be text; put it in quotes."),
        (changed("gdrcopy.version", 2.6), "version of component gdrcopy is the number 2.6 and must be text; put it in quotes."),
        (changed("gdrcopy.version", "*"), "component gdrcopy has the version *, which only a repository can fill; name one."),
        (changed("gdrcopy.version", ...), "component gdrcopy has no version."),
        (changed("gdrcopy", "2.6"), "gdrcopy must be a mapping."),
        (changed("gdrcopy.sources", []), "component gdrcopy needs a list of sources."),
        (
            changed("gdrcopy.sources.0.distro", ["x"]),
            "source 1 of component gdrcopy needs exactly one of url, repository, distro, bundled_in, refused.",
        ),
        (
            changed("gdrcopy.sources.0.sha256", ...),
            "source 1 of component gdrcopy has neither sha256 nor signature, so nothing verifies it; name one of them.",
        ),
        (changed("gdrcopy.sources.0.sha256", "c9eaf0"), "the sha256 c9eaf0 of source 1 of component gdrcopy is not 64 hexadecimal digits."),
        (changed("gdrcopy.sources.0.sha256", {"x86_64": SHA256}), "source 1 of component gdrcopy has no sha256 for arm64."),
        (changed("gdrcopy.sources.0.sha512", "x"), "source 1 of component gdrcopy has the unknown key sha512; the nearest is sha256."),
        (
            changed("gdrcopy.sources.0.systems", ["debian13"]),
            "systems of source 1 of component gdrcopy names debian13; there are debian12, ubuntu24.04.",
        ),
        (
            changed("gdrcopy.sources.0", {"bundled_in": "efa"}),
            "source 1 of component gdrcopy comes with efa, which the stack does not have.",
        ),
        (
            changed("gdrcopy.sources.0.signature", {"key": "k"}),
            "the signature of source 1 of component gdrcopy needs either fingerprint, or https",
        ),
        (changed("gdrcopy.sources.0.signature", {"fingerprint": "A" * 40}), "the signature of source 1 of component gdrcopy has no key."),
        (
            changed("gdrcopy.sources.0.signature", {"key": "http://x.org/k", "https": "why"}),
            "the signature of source 1 of component gdrcopy relies on HTTPS, and its key http://x.org/k is not fetched by it.",
        ),
        (
            changed("gdrcopy.sources.0.parts", [{"folder": "deps/x", "url": "u"}]),
            "sha256 of a part of source 1 of component gdrcopy must be text.",
        ),
        (
            changed("gdrcopy.sources.0.parts", [{"folder": "../x", "url": "u", "sha256": SHA256}]),
            "the folder ../x of a part of source 1 of component gdrcopy does not lie in its source archive.",
        ),
        (
            changed("gdrcopy.sources.0.signature", {"key": "k", "fingerprint": "AB"}),
            "the fingerprint of source 1 of component gdrcopy is not 40",
        ),
        (changed("systems", ["beos"]), "systems names beos; there are amzn2023, "),
        (changed("systems", ...), "the key systems is missing."),
        (changed("schema", "muster.stack/2"), "Stack it has the schema muster.stack/2; this version of Muster reads muster.stack/1."),
        (changed("extends", "it"), "Stack it extends itself by way of it; take one extends away."),
        (
            changed("nvidia_driver", {"version": "595", "kernel_modules": "opne", "sources": [{"distro": ["x"]}]}),
            "names opne; there are open, ",
        ),
        ([], "Stack it is not a mapping; begin it with schema: muster.stack/1."),
    ],
)
def test_what_cannot_be_is_refused_by_one_sentence(document: dict, said: str) -> None:
    with pytest.raises(logic.StackError) as error:
        resolve(it=document)
    assert said in str(error.value)
    assert str(error.value).endswith(".")


def test_a_stack_lies_over_another_key_by_key() -> None:
    other = {"schema": "muster.stack/1", "name": "other", "extends": "small", "gdrcopy": {"version": "2.5.2"}, "systems": ["debian12"]}
    document = resolve(other=other, small=SMALL)
    assert document["gdrcopy"] == {**SMALL["gdrcopy"], "version": "2.5.2"}
    assert (document["systems"], document["name"], "extends" in document) == (["debian12"], "other", False)
    assert "gdrcopy" not in resolve(other={**other, "gdrcopy": None}, small=SMALL)


def test_the_sum_of_a_stack_is_that_of_what_it_says() -> None:
    assert logic.digest(resolve(small=SMALL)) == logic.digest(resolve(small=dict(reversed(SMALL.items()), about="prose")))
    assert logic.digest(resolve(small=SMALL)) != logic.digest(resolve(small=changed("gdrcopy.version", "2.5")))


def test_the_first_source_for_a_system_counts_with_its_names_filled_in() -> None:
    document = stack_files.load("aws-2026.11")
    kubectl = logic.source_of(document, "kubectl", "ubuntu24.04", "x86_64")
    assert kubectl["url"] == "https://dl.k8s.io/release/v1.36.4/bin/linux/amd64/kubectl"
    assert kubectl["sha256"].startswith("8b8f088d")
    assert logic.source_of(document, "kubectl", "ubuntu24.04", "arm64")["sha256"].startswith("0ecf4445")
    manager = logic.source_of(document, "fabricmanager", "rocky9", "arm64")
    assert manager["repository"] == "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/sbsa/"
    assert manager["packages"] == ["nvidia-fabricmanager"]
    assert logic.source_of(document, "efa", "debian13", "x86_64")["signature"]["url"].endswith("aws-efa-installer-1.51.0.tar.gz.sig")
    assert logic.source_of(document, "efa", "beos", "x86_64") is None


@pytest.mark.parametrize(
    ("stack", "component", "system", "said"),
    [
        ("aws-2026.11", "efa", "amzn2023", ""),
        ("aws-2026.11", "libfabric", "amzn2023", ""),
        ("aws-2026.11", "enroot", "amzn2023", ""),
        ("aws-2026.11", "neuron", "debian12", "neuron 2.32.0 is refused on debian12: Neuron has no packages for Debian."),
        ("aws-2026.11", "efa", "beos", "Stack aws-2026.11 has no efa for beos on x86_64; give efa a source for it."),
        ("debian-12", "nccl", "debian12", "Stack debian-12 has no nccl."),
    ],
)
def test_what_cannot_be_installed_says_why(stack: str, component: str, system: str, said: str) -> None:
    told = logic.refusal(stack_files.load(stack), component, system, "x86_64")
    assert told.startswith(said) and bool(told) == bool(said)


@pytest.mark.parametrize(
    ("mirror", "url"),
    [
        ("", "https://example.org/a/b.tar.gz?x=1"),
        ("http://mirror.example:8080/muster/", "http://mirror.example:8080/muster/example.org/a/b.tar.gz"),
        ("/srv/mirror", "file:///srv/mirror/example.org/a/b.tar.gz"),
    ],
)
def test_one_variable_redirects_every_download(mirror: str, url: str) -> None:
    assert logic.mirrored("https://example.org/a/b.tar.gz?x=1", mirror) == url


def test_versions_compare_as_people_read_them() -> None:
    ordered = ["1.9", "1.10", "1.22.0", "1.22.0amzn4.0", "1.22.0amzn5.0", "2.0", "535.261.03", "580.65.06", "580.178.04"]
    assert sorted(reversed(ordered), key=version_key) == ordered


def test_the_lookup_reads_a_site_s_own_file(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text("schema: muster.stack/1\nname: own\nextends: debian-13\nnccl: {version: 2.30.7}\n")
    [document] = LookupModule().run([str(own)])
    assert (document["name"], document["nccl"]["version"], document["slurm"]["version"]) == ("own", "2.30.7", "24.11.5")
    for text, said in [
        ("nccl: [", "cannot be read"),
        ("schema: muster.stack/1\nextends: nothing\n", "There is no stack nothing; there are aws-2026.11, "),
    ]:
        own.write_text(text)
        with pytest.raises(AnsibleLookupError, match=re.escape(said)):
            LookupModule().run([str(own)])
    with pytest.raises(AnsibleLookupError, match=r"There is no stack debian-14; there are aws-2026\.11, "):
        LookupModule().run(["debian-14"])


def test_a_role_asks_for_a_source_and_gets_it_from_the_mirror() -> None:
    document = stack_files.load("aws-2026.11")
    source = filters.stack_source(document, "efa", "amzn2023", "x86_64", "/srv/mirror")
    assert source["url"] == "file:///srv/mirror/efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz"
    assert source["signature"] == {
        "url": "file:///srv/mirror/efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz.sig",
        "key": "file:///srv/mirror/efa-installer.amazonaws.com/aws-efa-installer.key",
        "fingerprint": "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC",
    }
    with pytest.raises(AnsibleFilterError, match=r"neuron 2\.32\.0 is refused on debian13"):
        filters.stack_source(document, "neuron", "debian13", "x86_64")


def test_what_a_role_s_components_are_refused_for() -> None:
    document = stack_files.load("aws-2026.11")
    assert filters.stack_refusals(document, ["efa", "nccl"], "amzn2023", "x86_64") == []
    said = filters.stack_refusals(document, ["efa", "lustre_client", "neuron", "pxyis"], "debian13", "x86_64")
    assert [sentence.split(" is ")[0] for sentence in said] == ["lustre_client *", "neuron 2.32.0", "Stack aws-2026.11 has no pxyis."]


def test_only_roles_that_may_be_refused_are_asked() -> None:
    document, table, names = stack_files.load("aws-2026.11"), component_table.TABLE, component_table.NAMES
    assert filters.stack_doubts(table, names, document, "amzn2023", "x86_64") == []
    assert filters.stack_doubts(table, names, document, "ubuntu24.04", "x86_64") == ["lustre_client"]
    assert filters.stack_doubts(table, names, document, "debian13", "x86_64") == ["lustre_client", "neuron"]
    assert filters.stack_doubts(table, ["neuron"], document, "ubuntu24.04", "x86_64") == []


@pytest.mark.parametrize(
    ("facts", "name", "arch"),
    [
        (("Debian", "13", "13.2", "x86_64"), "debian13", "x86_64"),
        (("Ubuntu", "24", "24.04", "aarch64"), "ubuntu24.04", "arm64"),
        (("Amazon", "2023", "2023", "x86_64"), "amzn2023", "x86_64"),
        (("RedHat", "9", "9.6", "x86_64"), "rhel9", "x86_64"),
        (("Rocky", "9", "9.6", "aarch64"), "rocky9", "arm64"),
        (("Fedora", "42", "42", "x86_64"), "fedora42", "x86_64"),
    ],
)
def test_a_node_s_system_as_stacks_name_it(facts: tuple[str, ...], name: str, arch: str) -> None:
    defaults = yaml.safe_load((ROOT / "roles/phases/defaults/main.yml").read_text())
    known = dict(zip(("distribution", "distribution_major_version", "distribution_version", "architecture"), facts, strict=True))
    assert jinja2.Template(defaults["phases_system"]).render(ansible_facts=known) == name
    assert jinja2.Template(defaults["phases_arch"]).render(ansible_facts=known) == arch


def test_a_fleet_s_stacks_are_judged_once_each() -> None:
    assert filters.stack_faults(["aws-2026.11", "debian-13", "aws-2026.11"]) == []
    [said] = filters.stack_faults(["debian-14", "debian-14"])
    assert said.startswith("There is no stack debian-14; ")


@pytest.mark.parametrize(
    ("distribution", "major", "name"),
    [("Debian", "12", "debian-12"), ("Debian", "13", "debian-13"), ("Ubuntu", "24", "aws-2026.11"), ("Amazon", "2023", "aws-2026.11")],
)
def test_a_node_s_system_names_its_stack(distribution: str, major: str, name: str) -> None:
    default = yaml.safe_load((ROOT / "roles/phases/defaults/main.yml").read_text())["phases_stack_name"]
    facts = {"distribution": distribution, "distribution_major_version": major}
    assert jinja2.Template(default).render(ansible_facts=facts) == name
    assert name in NAMES


def test_a_stack_of_the_inventory_s_own_is_judged_as_well() -> None:
    with pytest.raises(AnsibleFilterError, match=r"version of component gdrcopy is the number 2\.6 and must be text"):
        filters.stack_source(changed("gdrcopy.version", 2.6), "gdrcopy", "debian12", "x86_64")

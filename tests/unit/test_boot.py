# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The script by which a node configures itself, as it is rendered, in a folder that stands for the node: it runs the collection with two
components of the test on this machine. Tools of AWS and Slurm are stand-ins that write what they were given."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook import ROOT

from ansible_collections.muster.fleet.plugins.module_utils.aws import boot, render
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import load

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="not_run: the script is root's, and its /etc is to be its own"),
    pytest.mark.skipif(sys.version_info >= (3, 12), reason="not_run: the script runs once, with the controller's Python"),
]
TOOL = '#!/bin/bash\necho "${0##*/} $*" >>"$SEEN"\n'
# The address of the metadata service, which has a token, an id and a region.
CURL = '#!/bin/bash\ncase "$*" in *token) echo t ;; *instance-id) echo i-1 ;; *) echo us-east-1 ;; esac\n'
# An install writes the manifest below /etc, which is not to be this machine's.
OWN_ETC = """
mkdir "$1/copy" 2>/dev/null && cp -a /etc/. "$1/copy" || true
rm -rf "$1/copy/muster"
mount --bind "$1/copy" /etc
exec bash "$1/boot.sh"
"""
# A component that writes the name of its host, and checks that a file says `good`.
ROLE = {
    "tasks/main.yml": [
        {
            "ansible.builtin.include_role": {"name": "muster.fleet.phases", "rolespec_validate": False},
            "vars": {"phases_component": "NAME"},
        }
    ],
    "tasks/configure.yml": [
        {"ansible.builtin.lineinfile": {"path": "FOLDER/ran", "line": "NAME on {{ inventory_hostname }}", "create": True, "mode": "0644"}}
    ],
    "tasks/verify_node.yml": [
        {
            "muster.fleet.check": {
                "component": "NAME",
                "level": "node",
                "checks": [{"check": "state", "argv": ["cat", "FOLDER/state"], "equals": "good", "remedy": 'Replace the "node".'}],
            }
        }
    ],
    "meta/argument_specs.yml": {"argument_specs": {"main": {"options": {}}}},
}
TABLE: list[dict[str, Any]] = [
    {"name": "one", "groups": ["muster_gpu"]},
    {"name": "efa", "groups": ["muster_efa"]},
    {"name": "slurm", "groups": ["muster_compute"], "alone": False},
    {"name": "other", "groups": ["muster_gpu"]},
    {"name": "optional"},
    {"name": "lustre_client"},
    {"name": "monitoring", "groups": ["all"], "alone": False},
    *(
        each
        for each in yaml.safe_load((ROOT / "playbooks/vars/components.yml").read_text())["component_table"]
        if each["name"] == "storage"
    ),
]


def cluster(**changes: Any) -> dict[str, Any]:
    nodes = [{"name": "gpu", "type": "p5.48xlarge", "count": 1}, {"name": "cpu", "type": "c7i.48xlarge", "count": 1}]
    document = {"kind": "ec2", "name": "mine", "region": "us-east-1", "zones": ["us-east-1a"], "image": "ami-0123456789abcdef0"}
    return load({**document, "nodes": nodes, **changes})


class Node:
    """A folder that stands for a node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.fleet = folder, folder / "home", folder / "home/collections/ansible_collections/muster/fleet"
        (folder / "etc").mkdir()
        (folder / "bin").mkdir()
        python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        for name, text in {
            "python3": python,
            "python3.13": python,
            "aws": TOOL,
            "scontrol": TOOL,
            "curl": CURL,
            "hostname": "#!/bin/sh\necho node-1\n",
        }.items():
            self.tool(name, text)
        self.manifest("one", "efa", "slurm", "optional")
        (folder / "state").write_text("good\n")

    def tool(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def manifest(self, *names: str) -> None:
        entry = {"version": "1", "inputs_sha256": "", "artefacts": [], "packages": {}}
        document = {"schema": "muster.manifest/1", "components": {name: entry for name in names}}
        (self.folder / "etc/manifest.json").write_text(json.dumps(document))

    def image(self) -> Node:
        """The collection of this checkout with components of the test, and this Ansible."""
        (self.home / "bin").mkdir(parents=True)
        (self.home / "bin/ansible-playbook").symlink_to(Path(sys.executable).with_name("ansible-playbook"))
        (self.home / ".muster-made").touch()
        for name in ("roles", "playbooks/vars"):
            (self.fleet / name).mkdir(parents=True)
        shutil.copytree(ROOT / "roles/phases", self.fleet / "roles/phases")  # a link would lead its role_path to the roles of the checkout
        for path in (*ROOT.glob("[!.]*"), *ROOT.glob("playbooks/*")):
            link = self.fleet / path.relative_to(ROOT)
            if path.name != "collections" and not link.exists():
                link.symlink_to(path)
        document = {"muster_defer_verdict": True, "component_table": TABLE}
        (self.fleet / "playbooks/vars/components.yml").write_text(yaml.safe_dump(document))
        for entry in TABLE:
            for name, content in ROLE.items():
                path = self.fleet / "roles" / entry["name"] / name
                path.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps(content).replace("NAME", entry["name"]).replace("FOLDER", str(self.folder))
                path.write_text(text)
        return self

    def boot(self, text: str, **more: str) -> tuple[int, str, str]:
        """Run the script. The exit code, and what it reported last: the state and its reason."""
        (self.folder / "boot.sh").write_text(text)
        names = {"HOME": "home", "LOG": "log/boot.log", "FACTS": "etc/node.json", "CONSOLE": "console"}
        env = {f"MUSTER_{name}": f"{self.folder}/{value}" for name, value in names.items()}
        env |= {
            "MUSTER_PATH": f"{self.folder}/bin:/usr/local/bin:/usr/bin:/bin",
            "SEEN": f"{self.folder}/seen",
            "TMPDIR": str(self.folder),
            **more,
        }
        argv = ["unshare", "--mount", "bash", "-euc", OWN_ETC, "node", str(self.folder)]
        done = subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=300)
        self.said = done.stderr
        told = json.loads((self.folder / "etc/node.json.state").read_text())
        return done.returncode, told["state"], told["reason"]

    def read(self, name: str) -> str:
        return (self.folder / name).read_text() if (self.folder / name).exists() else ""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def script(**changes: Any) -> str:
    made = cluster(**changes)
    return boot.script(made, made["nodes"][0])


def test_a_node_runs_what_its_image_carries_and_is_ready(node: Node) -> None:
    """Of what its groups carry: nothing that needs other nodes, nothing that the image lacks."""
    assert node.image().boot(script()) == (0, "ready", ""), node.said + node.read("log/boot.log")
    assert node.said == ""
    assert node.read("ran").splitlines() == ["one on node-1", "efa on node-1", "optional on node-1"]
    assert "TASK [muster.fleet.one : " in node.read("log/boot.log")
    states = re.findall(r'"muster:state", "Value": "(\w+)"', node.read("seen"))
    assert states == ["configuring", "ready"] and "scontrol" not in node.read("seen")


def test_a_failed_check_is_the_reason(node: Node) -> None:
    (node.folder / "state").write_text("bad\n")
    code, state, reason = node.image().boot(script())
    assert (code, state) == (1, "failed")
    assert reason.startswith("verify_node: ") and "one.state" in reason, reason
    assert "Replace the 'node'." in reason
    [tags] = [line for line in node.read("seen").splitlines() if '"failed"' in line]
    told = json.loads(tags[tags.index("[") :])
    assert told[1] == {"Key": "muster:reason", "Value": reason[:200]}
    assert "scontrol update nodename=node-1 state=drain reason=muster: verify_node: " in node.read("seen")
    assert f"muster: failed: {reason}" in node.read("log/boot.log")
    assert node.read("ran").count("\n") == 3, "configure ran before"


def test_a_node_that_is_in_no_play_is_not_ready(node: Node) -> None:
    """Ansible ends with 0 when no host matches."""
    found = script().replace("printf '%s ansible_connection=local\\n' \"$node\"", "echo localhost ansible_connection=local")
    found = found.replace('printf \'[%s]\\n%s\\n\' "$group" "$node"', "true")
    assert found.count("echo localhost") == 1
    code, state, reason = node.image().boot(found)
    assert (code, state) == (1, "failed")
    assert reason.startswith("configure: no task ran on node-1, and ansible-playbook ended with 0: "), reason
    assert "no hosts matched" in node.read("log/boot.log")


def test_what_a_node_was_is_no_answer_for_what_it_is(node: Node) -> None:
    """A file of an earlier boot says that it was ready."""
    (node.folder / "etc/boot").write_text("ready\n")
    node.image()
    (node.fleet / "playbooks/boot.yml").unlink()
    code, state, reason = node.boot(script())
    assert (code, state) == (1, "failed") and "muster.fleet.boot could not be found" in reason, reason


@pytest.mark.parametrize("there", [False, True])
def test_what_the_type_promises_must_be_there(node: Node, there: bool) -> None:
    """Muster installed it, or the base of the image brought it."""
    node.manifest("one")
    path = node.folder / ("state" if there else "nothing")
    code, state, reason = node.image().boot(script(setup={"variables": {"__boot_promised": {"efa": str(path)}}}))
    if there:
        assert (code, state, node.read("ran")) == (0, "ready", "one on node-1\n"), reason
        return
    assert (code, state, node.read("ran")) == (1, "failed", "")
    said = "configure: node-1 is in muster_compute, muster_efa, muster_gpu, and has no efa: "
    assert reason.startswith(said + f"neither its manifest names it nor does the kernel have it ({path}).")
    assert "Take an image of Muster for p5.48xlarge, or name what it has as muster_components" in reason


def test_a_node_with_nothing_to_run_is_not_ready(node: Node) -> None:
    node.manifest("slurm")
    made = cluster()
    code, state, reason = node.image().boot(boot.script(made, made["nodes"][1]))
    assert (code, state) == (1, "failed")
    assert "node-1 has no component to run: " in reason and "manifest.json names slurm;" in reason, reason


def test_a_document_can_name_the_components(node: Node) -> None:
    node.manifest()
    text = script(setup={"variables": {"muster_components": ["other"]}})
    assert node.image().boot(text) == (0, "ready", ""), node.read("log/boot.log")
    assert node.read("ran") == "other on node-1\n"


@pytest.mark.parametrize(("kind", "mounts"), [("ec2", True), ("pcs", True), ("hyperpod-eks", False)])
def test_a_node_learns_the_lustre_that_nobody_else_mounts(kind: str, mounts: bool) -> None:
    zones = ["us-east-1a", "us-east-1b"]
    made = cluster(kind=kind, zones=zones, storage={"bucket": "my-bucket", "lustre": {"gib": 1200}})
    wanted = [{"source": "${LUSTRE_DNSNAME}@tcp:/${LUSTRE_MOUNTNAME}", "path": "/fsx"}]
    assert boot.facts(made, made["nodes"][0]).get("lustre_client_mounts") == (wanted if mounts else None)
    data = boot.user_data(made, made["nodes"][0], "<%s>")
    if not mounts:
        assert data == f"<{boot.script(made, made['nodes'][0])}>"
        return
    names = {f"mine-fsx-{name}": "${%s}" % variable for variable, name in boot.LUSTRE_EXPORTS.items()}
    joined = [each if isinstance(each, str) else names[each["Fn::ImportValue"]] for each in data["Fn::Join"][1]]
    assert "".join(joined) == f"<{boot.script(made, made['nodes'][0])}>"
    own = cluster(storage={"lustre": {"gib": 1200}}, setup={"variables": {"lustre_client_mounts": []}})
    assert boot.facts(own, own["nodes"][0])["lustre_client_mounts"] == [], "the user's own word counts"


@pytest.mark.parametrize(("kind", "mounts"), [("ec2", True), ("pcs", True), ("hyperpod-slurm", False), ("parallelcluster", False)])
def test_a_node_learns_the_openzfs_that_nobody_else_mounts(kind: str, mounts: bool) -> None:
    nodes = (
        [{"name": "head", "type": "m6i.large", "role": "controller", "count": 1}] if kind in ("parallelcluster", "hyperpod-slurm") else []
    )
    nodes.append({"name": "gpu", "type": "p5.48xlarge", "count": 1})
    made = cluster(kind=kind, nodes=nodes, storage={"bucket": "my-bucket", "openzfs": {"gib": 512}})
    found = boot.facts(made, made["nodes"][0])
    assert (found.get("storage_source"), found.get("storage_path")) == (("${OPENZFS_DNSNAME}:/fsx", "/home") if mounts else (None, None))
    if mounts:
        data = boot.user_data(made, made["nodes"][0])["Fn::Join"][1]
        assert [each for each in data if isinstance(each, dict)] == [{"Fn::ImportValue": "mine-fsx-FSxOpenZFSFilesystemDNSname"}]


def test_a_node_that_shall_mount_openzfs_runs_storage_alone(node: Node) -> None:
    node.manifest("one", "efa")
    assert node.image().boot(script(storage={"openzfs": {"gib": 512}})) == (0, "ready", ""), node.read("log/boot.log")
    assert node.read("ran").splitlines() == ["one on node-1", "efa on node-1", "storage on node-1"]


def test_a_node_that_shall_mount_lustre_runs_its_client(node: Node) -> None:
    """Although the manifest does not name it: a node without the mount must fail by the checks of the role."""
    node.manifest("one", "efa")
    assert node.image().boot(script(storage={"lustre": {"gib": 1200}})) == (0, "ready", ""), node.read("log/boot.log")
    assert node.read("ran").splitlines() == ["one on node-1", "efa on node-1", "lustre_client on node-1"]


@pytest.mark.parametrize("name", ["localhost", "", "a b"])
def test_a_name_that_no_play_would_match_is_refused(node: Node, name: str) -> None:
    node.tool("hostname", f"#!/bin/sh\necho '{name}'\n")
    code, state, reason = node.image().boot(script())
    assert (code, state) == (1, "failed") and reason.startswith(f"the node's name is '{name}'"), reason


def test_a_file_that_cannot_be_written_is_a_failure(node: Node) -> None:
    (node.folder / "etc/node.ini").mkdir()
    code, state, reason = node.image().boot(script())
    assert (code, state) == (1, "failed") and reason.endswith("etc/node.ini cannot be written")


def test_an_image_without_muster_is_a_failure(node: Node) -> None:
    code, state, reason = node.boot(script())
    assert (code, state) == (1, "failed") and reason.startswith("the image has no Muster in "), reason


def test_the_groups_are_those_of_the_inventory_plugins() -> None:
    made = cluster()
    assert [boot.groups(made, each) for each in made["nodes"]] == [["muster_compute", "muster_gpu", "muster_efa"], ["muster_compute"]]
    trn = cluster(
        nodes=[{"name": "trn", "type": "trn2.48xlarge", "count": 1}, {"name": "h", "type": "m6i.large", "role": "controller", "count": 1}]
    )
    assert [boot.groups(trn, each) for each in trn["nodes"]] == [["muster_compute", "muster_neuron", "muster_efa"], ["muster_controller"]]


def test_an_image_gets_what_the_nodes_of_the_cluster_carry(node: Node) -> None:
    head = {"name": "head", "type": "m6i.2xlarge", "role": "controller", "count": 1}
    document = {"setup": {"collection": "s3://my-bucket/muster.tar.gz"}, "storage": {"bucket": "my-bucket"}}
    made = cluster(kind="parallelcluster", nodes=[head, {"name": "gpu", "type": "p5.48xlarge", "count": 1}], **document)
    text = render.files(made)["install-image.sh"]
    assert "for group in muster_controller muster_compute muster_gpu muster_efa; do" in text
    assert '"muster_image_types": [\n  "p5.48xlarge"\n ]' in text and "instance_type" not in text
    node.manifest()
    code, _state, reason = node.image().boot(text)
    log = node.read("log/boot.log")
    assert code == 0, reason
    assert [name for name in ("one", "efa", "other", "slurm", "optional") if f"TASK [Run {name}]" in log or f"Run {name}" in log] == [
        *("one", "efa", "other")
    ]


# What stands for a wheel: ansible-core with programs that write what they were given; ansible-galaxy unpacks.
PROGRAM = """#!python
import os, sys, tarfile
open(os.environ["SEEN"], "a").write("%s " % os.path.basename(sys.argv[0]) + " ".join(sys.argv[1:]) + "\\n")
if "galaxy" in sys.argv[0]:
    to = sys.argv[sys.argv.index("--collections-path") + 1] + "/ansible_collections/muster/fleet"
    tarfile.open(sys.argv[-1]).extractall(to)
else:
    given = dict(each.split(": ") for each in sys.argv[6].strip("{}").split(", "))
    open(given["muster_boot_dir"].strip("'") + "/boot", "w").write("ready\\n")
"""


def wheel(folder: Path) -> str:
    """Write a wheel of ansible-core and give its line of requirements."""
    found = {f"ansible_core-1.data/scripts/{name}": PROGRAM for name in ("ansible-playbook", "ansible-galaxy")}
    found["ansible_core-1.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: ansible-core\nVersion: 1\n"
    found["ansible_core-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    sums = {name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode() for name, text in found.items()}
    record = "".join(f"{name},sha256={sums[name]},{len(text)}\n" for name, text in found.items())
    path = folder / "ansible_core-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**found, "ansible_core-1.dist-info/RECORD": record + "ansible_core-1.dist-info/RECORD,,\n"}.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o100755 << 16
            archive.writestr(member, text)
    return f"ansible-core==1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.mark.parametrize("fault", ["", "hash", "no hash", "playbook", "bucket"])
def test_a_collection_of_the_bucket_is_installed_with_hashes(node: Node, fault: str) -> None:
    line = wheel(node.folder)
    files = {
        "playbooks/files/muster_home.sh": (ROOT / "playbooks/files/muster_home.sh").read_text(),
        "playbooks/files/muster_home.txt": {"hash": line[:-9] + "00000000\n", "no hash": "ansible-core==1\n"}.get(fault, line),
        **({} if fault == "playbook" else {"playbooks/boot.yml": "[]\n"}),
    }
    with tarfile.open(node.folder / "muster.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    copy = f'[ "$2" != cp ] || cp {node.folder}/muster.tar.gz "${{@: -1}}"\n'
    node.tool("aws", TOOL + ('[ "$2" != cp ] || { echo no access >&2; exit 1; }\n' if fault == "bucket" else copy))
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(node.folder)}
    (node.home / "venv").mkdir(parents=True)  # the trainer's environment
    code, state, reason = node.boot(script(setup={"collection": "s3://my-bucket/muster.tar.gz"}), **pip)
    made = (node.home / ".muster-made").exists()
    if fault:
        assert (code, state, made) == (1, "failed", False)
        assert reason.startswith("s3://my-bucket/muster.tar.gz could not be installed: "), reason
        said = {"bucket": "no access", "playbook": "has no collection muster.fleet with the playbook boot.yml"}
        assert said.get(fault, "ERROR: ") in reason
        assert "ansible-playbook" not in node.read("seen")
        return
    assert (code, state, made) == (0, "ready", True), node.read("log/boot.log")
    seen = node.read("seen")
    assert "aws s3 cp --only-show-errors s3://my-bucket/muster.tar.gz " in seen and (node.home / "venv").exists()
    assert "ansible-galaxy collection install --offline " in seen and seen.count("ansible-playbook -i ") == 2


def test_the_hashes_are_those_of_the_lock_file() -> None:
    """ansible-core with all that it needs, as requirements/dev.txt has them."""

    def read(path: str) -> dict[str, set[str]]:
        blocks = re.split(r"(?m)^(?=[a-z0-9])", (ROOT / path).read_text())[1:]
        return {re.match(r"[^ ]+", each)[0] + str("< '3.12'" in each): set(re.findall(r"sha256:\w+", each)) for each in blocks}  # type: ignore[index]

    have, known = read("playbooks/files/muster_home.txt"), read("requirements/dev.txt")
    assert have and all(have.values()) and have.items() <= known.items()
    names = {each.partition("==")[0] for each in have}
    assert {"ansible-core", "cffi", "cryptography", "jinja2", "markupsafe", "packaging", "pycparser", "pyyaml", "resolvelib"} == names


KEY = "A1b2" * 256
# The metadata of an instance whose tag comes with the third question.
TAGGED = """#!/bin/bash
case "$*" in
*token) echo t ;;
*instance-id) echo i-1 ;;
*local-ipv4) exit 22 ;;
*/tags/instance/muster:slurm_node) echo asked >>"$SEEN.tag"; [ "$(wc -l <"$SEEN.tag")" -ge 3 ] && echo "$NODE" ;;
*) echo us-east-1 ;;
esac
"""
SECRETS = """#!/bin/bash
echo "aws $*" >>"$SEEN"
if [ "$1" = secretsmanager ]; then cat "$SEEN.secret" 2>/dev/null || { echo >&2; echo AccessDenied >&2; exit 254; }; fi
"""


@pytest.fixture
def joins(node: Node) -> Node:
    """A node whose instance Slurm started, with its secret. Its role slurm says what it knows."""
    node.image().manifest("one", "slurm", "efa")
    (node.home / "bin/python").symlink_to(sys.executable)
    node.tool("curl", TAGGED)
    node.tool("aws", SECRETS)
    node.tool("hostnamectl", '#!/bin/sh\necho "$2" >"$SEEN.name"\n')
    node.tool("hostname", '#!/bin/sh\ncat "$SEEN.name"\n')
    task = {
        "ansible.builtin.copy": {
            "content": "{{ slurm_controller_hosts | join }} {{ lookup('ansible.builtin.file', slurm_secrets_dir ~ '/munge.key') }}",
            "dest": str(node.folder / "joined"),
            "mode": "0600",
        }
    }
    with (node.fleet / "roles/slurm/tasks/configure.yml").open("r+") as file:
        tasks = json.load(file)
        file.seek(0)
        file.write(json.dumps([*tasks, task]))
    secret = {"munge_key": KEY, "variables": {"slurm_controller_hosts": ["head-1"]}}
    (node.folder / "seen.secret").write_text(json.dumps(secret))
    return node


def slurm_script(**changes: Any) -> str:
    nodes = [{"name": "gpu", "type": "p5.48xlarge", "max": 4}, {"name": "head", "type": "c7i.large", "role": "controller", "count": 1}]
    made = cluster(nodes=nodes, **changes)
    return boot.script(made, made["nodes"][0])


def test_an_instance_of_slurm_becomes_its_node(joins: Node) -> None:
    """It has the node's name before anything runs, and slurmd starts after all other components passed."""
    text = slurm_script(setup={"variables": {"muster_components": ["one"]}})
    code, state, reason = joins.boot(text, NODE="gpu-3", MUSTER_PAUSE="0")
    assert (code, state, reason) == (0, "ready", ""), joins.said + joins.read("log/boot.log")
    assert joins.read("ran").splitlines() == ["one on gpu-3", "slurm on gpu-3"]
    assert joins.read("joined") == f"head-1 {KEY}"
    assert joins.read("etc/node.ini").endswith("[muster_controller]\nhead-1\n")
    assert "--region us-east-1 --secret-id mine-slurm" in joins.read("seen")
    assert (joins.folder / "etc/slurm/munge.key").stat().st_mode & 0o777 == 0o600
    for name in ("seen", "log/boot.log", "console", "boot.sh", "etc/node.json"):
        assert KEY[:8] not in joins.read(name), f"{name} has the key"


@pytest.mark.parametrize(
    ("name", "secret", "said"),
    [
        ("", "{}", "the metadata has no tag muster:slurm_node; let Slurm's ResumeProgram start this instance"),
        ("a b", "{}", "the metadata has no tag muster:slurm_node"),
        ("gpu-1", "", "secret mine-slurm could not be read: the secret has no munge key and no variables; run playbooks/cloud_nodes.yml"),
        ("gpu-1", "empty", "secret mine-slurm could not be read: the secret has no munge key"),
        ("gpu-1", None, "secret mine-slurm could not be read: AccessDenied"),
    ],
)
def test_an_instance_that_cannot_join_slurm_says_why(joins: Node, name: str, secret: str | None, said: str) -> None:
    (joins.folder / "seen.secret").unlink()
    if secret is not None:
        (joins.folder / "seen.secret").write_text(secret)
    code, state, reason = joins.boot(slurm_script(), NODE=name, MUSTER_PAUSE="0")
    assert (code, state) == (1, "failed") and reason.startswith(said), reason
    assert joins.read("ran") == ""


METRICS = {"metrics-cert.pem": "C\n", "metrics-key.pem": "K\n", "metrics-password": "P", "watchers": ["head-1", "watch-2"]}


@pytest.mark.parametrize(("metrics", "carried", "watched"), [(METRICS, True, True), (METRICS, False, False), (None, True, False)])
def test_an_instance_of_slurm_is_watched_where_its_fleet_is(joins: Node, metrics: dict | None, carried: bool, watched: bool) -> None:
    """Its exporters get the fleet's certificate and password. The secret of a fleet without a host that watches has none."""
    joins.manifest("one", "slurm", *(["monitoring"] if carried else []))
    path = joins.folder / "seen.secret"
    given = {} if metrics is None else {"metrics": metrics}
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    task = {
        "ansible.builtin.copy": {
            "content": "{{ groups.muster_monitoring | join(',') }} {{ query('ansible.builtin.file', "
            "*['cert.pem', 'key.pem', 'password'] | map('regex_replace', '^', monitoring_secrets_dir ~ '/metrics-')) | join }}",
            "dest": str(joins.folder / "watched"),
            "mode": "0600",
        }
    }
    (joins.fleet / "roles/monitoring/tasks/configure.yml").write_text(json.dumps([task]))
    code, state, reason = joins.boot(slurm_script(setup={"variables": {"muster_components": ["one"]}}), NODE="gpu-3", MUSTER_PAUSE="0")
    assert (code, state, reason) == (0, "ready", ""), joins.said + joins.read("log/boot.log")
    assert joins.read("watched") == ("head-1,watch-2 CKP" if watched else "")
    assert joins.read("etc/node.ini").count("[muster_monitoring]") == (metrics == METRICS)
    assert (joins.folder / "etc/slurm/metrics-key.pem").stat().st_mode & 0o777 == 0o600


def test_a_node_that_fails_does_not_join_slurm(joins: Node) -> None:
    (joins.folder / "state").write_text("bad\n")
    code, state, reason = joins.boot(slurm_script(), NODE="gpu-1", MUSTER_PAUSE="0")
    assert (code, state) == (1, "failed") and "one.state" in reason, reason
    assert joins.read("joined") == ""


def test_only_instances_of_slurm_wait_for_a_name() -> None:
    assert "slurm_node" not in script() and "secretsmanager" not in script()


def test_the_script_is_clean() -> None:
    program = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    for text in (script(), slurm_script(), (ROOT / "playbooks/files/muster_home.sh").read_text()):
        done = subprocess.run([program, "-"], input=text, capture_output=True, text=True, check=False)
        assert done.stdout == ""

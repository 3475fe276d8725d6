# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: container images by packer build; nodes of slurm-node run srun across each other, and no base gets an older NCCL.

Run by `make proofs`, or `pytest --engine tests/proof/container_images.py` where `make packer` was; about eight minutes on two cores.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from local_cloud import PACKER, ROOT

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.containers.systemd import recall
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

pytestmark = pytest.mark.engine

BIN = ROOT / ".venv/bin"
NAME = f"cimage{os.getpid()}"
PREFIX = f"localhost/{NAME}"
OWN = "localhost/muster-node:trixie"
ONLY_SLURM = ["common", "slurm"]
RESULTS = ("stack_facts.json", "manifest.json", "sbom.cdx.json")
# These variables decide what is installed, so image and nodes get the same ones; else the nodes install again.
VARIABLES = {"common_ca_certificates": "{{ query('ansible.builtin.fileglob', '/usr/local/share/ca-certificates/*.crt') }}"}


class Images:
    """An engine with Muster's own base in it, and packer build and playbooks against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "PWD": str(folder),
            "CHECKPOINT_DISABLE": "1",
            "ANSIBLE_NOCOLOR": "1",
        }
        said, code = self.run("ansible", "localhost", "-m", "muster.fleet.node_container", "-a", f"fleet={NAME} state=image")
        assert code == 0, said
        self.engine: Engine = find_engine()
        recall(self.engine, cache_dir(self.env))
        if self.engine.prefix or self.engine.global_flags:
            pytest.exit(f"Packer calls {self.engine.name} without sudo and without options, by which alone it works here.", returncode=75)

    def run(self, program: str, *argv: str) -> tuple[str, int]:
        done = subprocess.run(
            [str(BIN / program), *argv], cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
        )  # fmt: skip
        return done.stdout, done.returncode

    def build(self, purpose: str, results: str, **variables: object) -> tuple[str, int]:
        """packer build, with the limits that this machine allows."""
        options = [f"--ulimit={name}={value}:{value}" for name, value in self.engine.ulimits.items()]
        given = {
            "docker_path": self.engine.name,
            "run_options": options,
            "prefix": PREFIX,
            "results": str(self.folder / results),
            **variables,
        }
        texts = [f"-var={name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in given.items()]
        said, code = self.run(
            PACKER.name, "build", "-color=false", f"-var-file=packer/containers/{purpose}.pkrvars.hcl", *texts, "packer/containers"
        )
        (self.folder / f"{results}.txt").write_text(said)
        return said, code

    def made(self, said: str) -> str:
        """The image that `packer build` says it has made, by its name."""
        return re.findall(r"^==> docker\.image \(shell-local\): (localhost/\S+)$", said, re.MULTILINE)[-1]

    def sh(self, image: str, script: str, folder: str = "/") -> str:
        """What a script in a container of the image prints."""
        flags = [
            "--rm",
            "--network=none",
            f"--workdir={folder}",
            *(f"--ulimit={name}={value}:{value}" for name, value in self.engine.ulimits.items()),
        ]
        return self.engine.ask("run", *flags, image, "sh", "-ec", script).strip()

    def size_mib(self, image: str) -> int:
        return int(self.engine.ask("image", "inspect", "--format={{.Size}}", image)) >> 20

    def forget(self) -> None:
        """Remove the images of this run, which have its name in theirs."""
        shown = self.engine.ask("images", "--filter", f"reference={PREFIX}/*", "--format={{.Repository}}:{{.Tag}}").split()
        if shown:
            self.engine.change("rmi", "--force", *shown)


@pytest.fixture(scope="module")
def images(artifacts) -> Images:
    made = Images(artifacts.folder(NAME))
    artifacts.leave(f"images of {NAME}", made.forget)
    return made


@pytest.fixture(scope="module")
def node_image(images: Images) -> str:
    said, code = images.build("slurm-node", "slurm-node", ansible_variables=json.dumps(VARIABLES))
    assert code == 0, said[-5000:]
    return images.made(said)


def test_the_image_has_what_its_name_says_and_nothing_of_its_making(images: Images, node_image: str) -> None:
    results = images.folder / "slurm-node"
    manifest, parts = (json.loads((results / each).read_text()) for each in ("manifest.json", "sbom.cdx.json"))
    assert list(manifest["components"]) == ONLY_SLURM
    assert node_image == f"{PREFIX}/slurm-node:slurm{manifest['components']['slurm']['version']}"
    assert {each["name"] for each in parts["components"]} == {*ONLY_SLURM, *manifest["packages"]}
    assert images.sh(node_image, "dpkg-query -W -f '${Package}\\n'").split() == sorted(manifest["packages"])
    left = "/usr/local/sbin/systemctl /usr/sbin/policy-rc.d /etc/munge/munge.key /etc/ssh/ssh_host_* /root/.ansible /root/.cache"
    left += " /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /tmp/* /var/tmp/*"
    assert images.sh(node_image, f"ls -d {left} 2>/dev/null || true") == ""
    assert images.sh(node_image, "stat -c %s /etc/machine-id") == "0"
    assert images.sh(node_image, "systemctl --root=/ is-enabled munge slurmd slurmctld || true").split() == ["disabled"] * 3
    [config] = json.loads(images.engine.ask("image", "inspect", node_image))
    assert config["Config"]["Cmd"] == ["/sbin/init"]
    assert config["Config"].get("Entrypoint") in (None, [], [""])
    assert images.size_mib(node_image) < images.size_mib(OWN) + 500


@pytest.fixture(scope="module")
def fleet(images: Images, node_image: str, artifacts) -> tuple[Fleet, str]:
    """Two nodes of the image, after provision.yml, and what that said."""
    inventory = images.folder / "inventory"
    inventory.mkdir()
    (inventory / "local_fleet.yml").write_text(json.dumps({"plugin": "muster.fleet.local_fleet", "fleet": NAME, "reference": node_image}))
    (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
    made = Fleet(NAME, images.engine, state_dir(NAME, images.env), cache_dir(images.env))
    artifacts.leave(f"fleet {NAME}", lambda: made.absent(remove_state=True))
    nodes = [
        {"name": "controller-1", "groups": ["muster_controller", "muster_compute"], "memory": "2500"},
        {"name": "compute-1", "groups": ["muster_compute"], "memory": "2500"},
    ]
    arguments = json.dumps({"fleet": NAME, "nodes": nodes, "image": {"reference": node_image}})
    said, code = images.run("ansible", "localhost", "-i", str(inventory), "-m", "muster.fleet.node_container", "-a", arguments)
    assert code == 0, said
    extra = json.dumps({"muster_fleet": NAME, "muster_components": ONLY_SLURM})
    said, code = images.run("ansible-playbook", "-i", str(inventory), "playbooks/provision.yml", "-e", extra)
    (images.folder / "provision.txt").write_text(said)
    assert code == 0, said[-6000:]
    return made, said


def test_two_containers_of_it_run_srun_across_each_other(fleet: tuple[Fleet, str]) -> None:
    nodes, said = fleet
    assert "install | Compare the component with the manifest" in said
    assert "install_component" not in said
    for begun_at in ("controller-1", "compute-1"):
        done = nodes.run_in(begun_at, ["srun", "--nodes=2", "--ntasks-per-node=1", "hostname"])
        assert sorted(done.stdout.split()) == ["compute-1", "controller-1"], done


@pytest.fixture(scope="module")
def base(images: Images) -> dict[str, str]:
    """Two stand-ins for other people's images: one has CUDA, the other also has an NCCL that is newer than the stack's."""
    script = {
        "cuda": 'mkdir -p /usr/local/cuda; echo \'{"cuda": {"version": "12.4.1"}}\' >/usr/local/cuda/version.json',
        "nccl": "mkdir -p /opt/theirs/lib; touch /opt/theirs/lib/libnccl.so.2.99.1; ln -s libnccl.so.2.99.1 /opt/theirs/lib/libnccl.so",
    }
    made = {}
    under = OWN
    for name, each in script.items():
        made[name] = f"{PREFIX}/{name}:1"
        limits = [f"--ulimit={limit}={value}:{value}" for limit, value in images.engine.ulimits.items()]
        images.engine.change("run", f"--name={NAME}-{name}", "--network=none", *limits, under, "sh", "-ec", each)
        images.engine.change("commit", f"{NAME}-{name}", made[name])
        images.engine.change("rm", f"{NAME}-{name}")
        under = made[name]
    return made


@pytest.fixture(scope="module")
def stubs(images: Images) -> dict[str, str]:
    """NCCL is Debian's own; a small stub archive stands for the source of nccl-tests."""
    archives = images.folder / "stub"
    subprocess.run([sys.executable, str(ROOT / ".config/molecule/stub_archives"), str(archives)], check=True)
    variables = {"muster_mirror": str(archives), "muster_cache_dir": str(images.folder / "cache")}
    return {"stack": str(archives / "stub.yml"), "ansible_variables": json.dumps(variables)}


@pytest.fixture(scope="module")
def added(images: Images, base: dict[str, str], stubs: dict[str, str]) -> str:
    """What packer build said of nccl-tests over the base that has CUDA."""
    said, code = images.build("nccl-tests", "added", base=base["cuda"], components=["cuda", "nccl", "nccl_tests"], **stubs)
    assert code == 0, said[-5000:]
    return said


def test_over_a_base_only_what_is_missing_is_added(images: Images, added: str) -> None:
    image = images.made(added)
    assert image == f"{PREFIX}/nccl-tests:cuda12.4.1-efa0-ofi0-nccl2.22.3-tests2.19.6"
    facts, manifest, parts = (json.loads((images.folder / "added" / each).read_text()) for each in RESULTS)
    assert {name: each["version"] for name, each in facts["base"].items() if name in ("cuda", "nccl")} == {"cuda": "12.4.1"}
    assert list(manifest["components"]) == ["nccl", "nccl_tests"]
    # The tests were built in the image. The build packages and their package lists are gone, the libraries that the tests load are not.
    assert added.count("Spend minutes on the build of") == 1
    assert images.sh(image, "dpkg-query -W -f '${Package}\\n'").split() == sorted(manifest["packages"])
    assert {"g++", "make", "libopenmpi-dev"} & set(manifest["packages"]) == set()
    assert {each["name"] for each in parts["components"]} == {"nccl", "nccl_tests", *manifest["packages"]}
    assert images.sh(image, "sha256sum --quiet --check .muster-files", folder="/opt/nccl-tests") == ""


def test_the_newer_nccl_of_a_base_stays_where_it_is_left_out(images: Images, base: dict[str, str], stubs: dict[str, str]) -> None:
    said, code = images.build("nccl-tests", "kept", base=base["nccl"], components=["cuda", "nccl_tests"], **stubs)
    assert code == 0, said[-5000:]
    assert images.made(said) == f"{PREFIX}/nccl-tests:cuda12.4.1-efa0-ofi0-nccl2.99.1-tests2.19.6"
    _, manifest, _ = (json.loads((images.folder / "kept" / each).read_text()) for each in RESULTS)
    assert list(manifest["components"]) == ["nccl_tests"]
    assert {"libnccl2", "libnccl-dev"} & set(manifest["packages"]) == set()


def test_an_older_nccl_than_the_bases_is_refused_and_nothing_is_left(images: Images, base: dict[str, str]) -> None:
    said, code = images.build("nccl-tests", "older", base=base["nccl"])
    assert code == 1
    sentence = f"Base {base['nccl']} has nccl 2.99.1, and stack debian-13 would replace it by 2.22.3, which is older; "
    sentence += "take a stack with 2.99.1 or newer, or leave nccl out."
    assert sentence in " ".join(said.replace("==> docker.image:", "").split())
    assert images.engine.ask("ps", "--all", "--quiet", f"--filter=ancestor={base['nccl']}") == ""
    assert not (images.folder / "older").exists()


def test_the_trainer_trains_in_an_image_on_that_of_the_tests(images: Images, added: str, stubs: dict[str, str]) -> None:
    # The package index may need this machine's authorities; all of torch is installed.
    variables = json.dumps({**json.loads(stubs["ansible_variables"]), **VARIABLES})
    wanted = ["common", "cuda", "nccl", "nccl_tests", "trainer"]
    base = images.made(added)
    said, code = images.build("trainer", "trainer", base=base, components=wanted, stack=stubs["stack"], ansible_variables=variables)
    assert code == 0, said[-5000:]
    manifest = json.loads((images.folder / "trainer/manifest.json").read_text())
    torch = manifest["components"]["trainer"]["version"]
    image = f"{PREFIX}/fsdp:pytorch{torch}"
    assert f"(shell-local): {image}\n" in said
    assert f"(shell-local): {PREFIX}/trainer:pytorch{torch}-{base.split(':')[1]}\n" in said
    # Nothing that the base has was built again; torch with CUDA's libraries is nearly all of the size.
    assert said.count("Spend minutes on the build of") == 0
    assert images.size_mib(image) - images.size_mib(base) < 6500
    train = "/opt/muster/venv/bin/torchrun --standalone --nproc-per-node=2 -m trainer train --dataset synthetic --max_steps 3"
    shape = "--hidden_width 64 --num_layers 2 --num_heads 4 --num_key_value_heads 2 --intermediate_size 128 --vocab_size 256"
    lines = images.sh(image, f"{train} {shape} --max_context_width 128 --train_batch_size 2 2>&1 || true", folder="/tmp")
    losses = [float(each) for each in re.findall(r"Batch \d+ Loss: ([0-9.]+)", lines)]
    assert len(losses) == 3, lines
    assert all(4 < each < 7 for each in losses), losses

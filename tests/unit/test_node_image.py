# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The image of node containers: its name, its build and the lock around that."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from node_container_fakes import FakeRun, engine, node

from ansible_collections.muster.fleet.plugins.module_utils.containers import engine as container_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers import image as node_image
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Finished, NodeContainerError
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage


def test_image_is_named_by_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    name = NodeImage("trixie").name
    assert name.startswith("localhost/muster-node:trixie-")
    assert NodeImage("trixie").name == name
    assert len({name, NodeImage("bookworm").name, NodeImage("trixie", mirror="http://mirror.example/debian").name}) == 3
    monkeypatch.setattr(node_image, "PACKAGES", (*node_image.PACKAGES, "vim"))
    assert NodeImage("trixie").name != name
    assert NodeImage(reference="registry.example/node:1").name == "registry.example/node:1"


def test_unknown_release() -> None:
    with pytest.raises(NodeContainerError, match="Unknown release 'sarge' for the node image: use trixie or bookworm"):
        NodeImage("sarge")


def test_mirror_only_when_given() -> None:
    assert NodeImage("trixie").build_argv(Path("x.tar"))[-2:] == ["trixie", "x.tar"]
    assert NodeImage("trixie", mirror="http://m").build_argv(Path("x.tar"))[-1] == "http://m"


def test_image_that_cannot_be_a_node() -> None:
    run = FakeRun({"podman run --rm": Finished(0, "sshd\npython3\n", "")})
    with pytest.raises(NodeContainerError, match="Image r/i cannot be used for nodes because it lacks sshd, python3"):
        node_image.check_reference(engine(run=run), NodeImage(reference="r/i"))


def test_image_that_no_registry_has(tmp_path: Path) -> None:
    run = FakeRun({"podman image": Finished(1, "", ""), "podman pull": Finished(125, "", "Error: manifest unknown")})
    with pytest.raises(
        NodeContainerError,
        match=r"^Image r/i cannot be pulled \(podman pull failed: Error: manifest unknown\): give another reference, or none",
    ):
        node_image.ensure_image(engine(run=run), NodeImage(reference="r/i"), tmp_path)


def test_failed_build_is_one_sentence_and_leaves_no_image(tmp_path: Path) -> None:
    run = FakeRun({"podman image": Finished(1, "", ""), "mmdebstrap": Finished(1, "", "I: x\nE: cannot reach the mirror")})
    with pytest.raises(NodeContainerError, match=r"could not be built \(E: cannot reach the mirror\)"):
        node_image.ensure_image(engine(run=run), NodeImage(), tmp_path)
    assert not list((tmp_path / "images").glob("*.tar"))


def test_a_build_on_a_full_disk_leaves_nothing_there(tmp_path: Path) -> None:
    def run(argv: list[str], timeout: float = 0) -> Finished:
        if argv[0] == "mmdebstrap":
            Path(argv[-1]).write_text("a part")
            return Finished(1, "", "E: No space left on device")
        return Finished(1, "", "")

    with pytest.raises(NodeContainerError, match="No space left on device"):
        node_image.ensure_image(engine(run=run), NodeImage(), tmp_path)
    assert list((tmp_path / "images").iterdir()) == []


def test_users_of_the_nodes_read_what_a_private_umask_made(tmp_path: Path) -> None:
    fleet = Fleet("demo", engine(), tmp_path / "state", tmp_path / "cache")
    before = os.umask(0o077)
    try:
        fleet._write_state([node("a")], {"a": "10.213.5.2"}, "10.213.5.0/24", NodeImage())
    finally:
        os.umask(before)
    modes = {each: (tmp_path / each).stat().st_mode & 0o777 for each in ("state", "state/hosts", "state/fsx", "cache/shared")}
    assert modes == {"state": 0o700, "state/hosts": 0o644, "state/fsx": 0o755, "cache/shared": 0o755}
    assert (tmp_path / "state/ssh/id_ed25519").stat().st_mode & 0o777 == 0o600


def _build(cache: Path, queue: multiprocessing.Queue) -> None:
    def run(argv: list[str], timeout: float = 0) -> Finished:
        mark = cache / "imported"
        if argv[0] == "mmdebstrap":
            queue.put("built")
            Path(argv[-1]).write_text("tar")
        if argv[1:2] == ["import"]:
            mark.write_text("")
        return Finished(0 if argv[1:2] != ["image"] or mark.exists() else 1, "", "")

    node_image.ensure_image(engine(run=run), NodeImage(), cache)


def test_runs_side_by_side_build_the_image_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    builders = [context.Process(target=_build, args=(tmp_path, queue)) for _ in range(4)]
    for each in builders:
        each.start()
    for each in builders:
        each.join(20)
        assert each.exitcode == 0
    assert [path.read_text() for path in (tmp_path / "images").iterdir()] == ["tar"]
    assert queue.get(timeout=5) == "built"
    assert queue.empty()


def test_free_disk_of_a_folder_that_only_root_may_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = container_engine.shutil.disk_usage

    def forbidden(path: Path) -> object:
        if path != tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(container_engine.shutil, "disk_usage", forbidden)
    assert container_engine.free_disk_mib(str(tmp_path / "containers/storage")) > 0


@pytest.mark.parametrize(
    ("alias", "tags"), [(Finished(125, "", "no such image"), 1), (Finished(0, "old\n", ""), 1), (Finished(0, "new\n", ""), 0)]
)
def test_the_newest_image_of_a_release_has_a_name_without_its_hash(alias: Finished, tags: int) -> None:
    image, short = NodeImage(), "localhost/muster-node:trixie"
    asked = "podman image inspect --format={{.Id}} "
    made = engine(run=FakeRun({asked + image.name: Finished(0, "new\n", ""), asked + short: alias, "podman tag": Finished(0, "", "")}))
    node_image.name_newest(made, image)
    assert made.commands == [f"podman tag {image.name} {short}"] * tags

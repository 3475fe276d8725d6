# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of local nodes: made by mmdebstrap and named by its recipe, or taken from a registry."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, NodeContainerError, locked

RELEASES = ("trixie", "bookworm")
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
)
# Files that must differ between machines must not be in an image.
HOOKS = ('rm -f "$1"/etc/ssh/ssh_host_*', ': > "$1/etc/machine-id"')
COMPONENTS = "main,contrib,non-free,non-free-firmware"
# The archive, the unpacked image and the working space of mmdebstrap.
DISK_MIB = 1500
REQUIRED = ("/sbin/init", "sshd", "python3")


@dataclasses.dataclass(frozen=True)
class NodeImage:
    """The image of nodes: a Debian release and mirror, or a reference to a ready image."""

    release: str = "trixie"
    mirror: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        if not self.reference and self.release not in RELEASES:
            raise NodeContainerError(f"Unknown release {self.release!r} for the node image: use {' or '.join(RELEASES)}.")

    @property
    def recipe(self) -> dict:
        """Everything that decides the content of the image."""
        return {"release": self.release, "mirror": self.mirror, "packages": PACKAGES, "hooks": HOOKS, "components": COMPONENTS}

    @property
    def content_hash(self) -> str:
        """sha256 of the recipe, 12 digits."""
        return hashlib.sha256(json.dumps(self.recipe, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The image's name in the engine."""
        return self.reference or f"localhost/muster-node:{self.release}-{self.content_hash}"

    def build_argv(self, target: Path) -> list[str]:
        """The mmdebstrap command that writes the root file system as a tar file. Without a mirror mmdebstrap uses its default."""
        return [
            "mmdebstrap",
            "--variant=minbase",
            f"--components={COMPONENTS}",
            f"--include={','.join(PACKAGES)}",
            *(f"--customize-hook={hook}" for hook in HOOKS),
            self.release,
            str(target),
            *([self.mirror] if self.mirror else []),
        ]


def have_image(engine: Engine, name: str) -> bool:
    """Whether the engine has the image."""
    return engine.run(engine.argv("image", "inspect", name)).code == 0


def ensure_image(engine: Engine, image: NodeImage, cache: Path) -> bool:
    """Make or pull the image when the engine lacks it, and return whether it did. Parallel runs build it once."""
    if have_image(engine, image.name):
        return False
    if image.reference:
        try:
            engine.change("pull", image.reference, timeout=3600)
        except NodeContainerError as error:
            raise NodeContainerError(
                f"Image {image.reference} cannot be pulled ({str(error).rstrip('.')}): give another reference, or none to build an image."
            ) from None
        return True
    archive = cache / "images" / f"{image.release}-{image.content_hash}.tar"
    with locked(cache / "locks" / archive.stem):
        if have_image(engine, image.name):
            return False
        if not archive.exists():
            _build(engine, image, archive)
        engine.change("import", '--change=CMD ["/sbin/init"]', str(archive), image.name)
    return True


def name_newest(engine: Engine, image: NodeImage) -> None:
    """Tag the image of a release also as localhost/muster-node:RELEASE, the name that other images build on."""
    if image.reference:
        return
    alias = image.name.rpartition("-")[0]
    ids = [engine.run(engine.argv("image", "inspect", "--format={{.Id}}", each)).stdout for each in (image.name, alias)]
    if ids[0] != ids[1]:
        engine.change("tag", image.name, alias)


def _build(engine: Engine, image: NodeImage, archive: Path) -> None:
    part = archive.with_suffix(".part.tar")
    argv = [*engine.prefix, *image.build_argv(part)]
    engine.commands.append(" ".join(argv))
    if engine.dry:
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    done = engine.run(argv, timeout=3600)
    if done.code != 0:
        part.unlink(missing_ok=True)  # the disk may be full
        raise NodeContainerError(
            f"The node image {image.name} could not be built ({done.reason}): check that mmdebstrap is installed and its mirror answers, "
            "or name a ready image by reference."
        )
    part.replace(archive)


def check_reference(engine: Engine, image: NodeImage) -> None:
    """Refuse a ready image that lacks what a node needs."""
    if not image.reference or engine.dry:
        return
    script = f"for p in {' '.join(REQUIRED)}; do PATH=$PATH:/usr/sbin:/sbin command -v $p >/dev/null || echo $p; done"
    done = engine.run(engine.argv("run", "--rm", "--network=none", *(f"--ulimit={k}={v}:{v}" for k, v in engine.ulimits.items()),
                                  "--entrypoint=/bin/sh", image.reference, "-c", script))  # fmt: skip
    missing = done.stdout.split()
    if done.code != 0 or missing:
        what = f"lacks {', '.join(missing)}" if missing else f"does not start ({done.reason})"
        raise NodeContainerError(
            f"Image {image.reference} cannot be used for nodes because it {what}: use an image with systemd, sshd and python3."
        )

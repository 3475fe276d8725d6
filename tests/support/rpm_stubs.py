# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Stub RPMs: small packages with the names, versions, conflicts and module streams of real ones, made by rpmbuild in a container."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Stub:
    """One package. A file that begins with #! is executable. It owns `ghosts` without bringing them; `post` runs after the installation."""

    name: str
    version: str = "1"
    release: str = "1.amzn2023.0.1"
    epoch: int = 0
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    ghosts: Sequence[str] = ()
    provides: Sequence[str] = ()
    conflicts: Sequence[str] = ()
    requires: Sequence[str] = ()
    post: str = ""

    @property
    def nevra(self) -> str:
        return f"{self.name}-{self.epoch}:{self.version}-{self.release}.noarch"


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def spec(stubs: Iterable[Stub]) -> str:
    """A spec file that makes all of these packages at once. It cannot make two versions of one package."""
    head = ["Name: stubs", "Version: 1", "Release: 1", "Summary: stubs", "License: none", "BuildArch: noarch", "%description", "stubs"]
    install, rest = ["%install", "mkdir -p %{buildroot}"], []
    for stub in stubs:
        head += [
            f"%package -n {stub.name}",
            f"Version: {stub.version}",
            f"Release: {stub.release}",
            "Summary: a stub, not the vendor's package",
            "AutoReqProv: no",
        ]
        head += [f"Epoch: {stub.epoch}"] if stub.epoch else []
        head += [f"Provides: {each}" for each in stub.provides] + [f"Conflicts: {each}" for each in stub.conflicts]
        head += [f"Requires: {each}" for each in stub.requires] + [f"%description -n {stub.name}", "a stub"]
        rest += [f"%post -n {stub.name}", _percent(stub.post)] if stub.post else []
        rest += [f"%files -n {stub.name}", *stub.files, *(f"%ghost {path}" for path in stub.ghosts)]
        install += [f"install -D /dev/null %{{buildroot}}{path}" for path in stub.ghosts]
        for path, text in stub.files.items():
            mode = 755 if text.startswith("#!") else 644
            install += [f"install -D -m {mode} /dev/stdin %{{buildroot}}{path} <<'END_OF_STUB'", _percent(text.rstrip("\n")), "END_OF_STUB"]
    return "\n".join([*head, *install, *rest]) + "\n"


def modules(name: str, streams: dict[str, Sequence[Stub]], default: str) -> str:
    """modules.yaml of createrepo: `streams` has the packages of each stream; `default` is one of the streams."""
    documents = []
    for stream, stubs in streams.items():
        artifacts = "".join(f"      - {stub.nevra}\n" for stub in stubs)
        documents.append(
            f"document: modulemd\nversion: 2\ndata:\n  name: {name}\n  stream: '{stream}'\n  version: 1\n  context: stub\n"
            f"  arch: x86_64\n  summary: a stub\n  description: a stub\n  license:\n    module: [MIT]\n"
            f"  artifacts:\n    rpms:\n{artifacts}"
        )
    documents.append(f"document: modulemd-defaults\nversion: 1\ndata:\n  module: {name}\n  stream: '{default}'\n")
    return "".join(f"---\n{each}...\n" for each in documents)


# repository FOLDER KEY: makes and signs the packages of FOLDER/*.spec, and a repository in FOLDER, with FOLDER/modules.yaml if it exists.
REPOSITORY = r"""
set -euo pipefail
cd "$1"
work=$(mktemp --directory)
options=(--define "_topdir $work" --define "_rpmdir $1" --define "__os_install_post %{nil}" --define "_build_id_links none")
for spec in *.spec; do rpmbuild --quiet -bb "${options[@]}" "$spec"; done
rm -rf "$work" *.spec
find . -name '*.rpm' -print0 | xargs -0 rpmsign --define "_gpg_name $2" --addsign >/dev/null
createrepo_c --quiet .
[ ! -e modules.yaml ] || modifyrepo_c --mdtype=modules modules.yaml repodata >/dev/null
"""

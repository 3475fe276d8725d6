# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Hashes of files that change with what a file does and not with its prose, and the list of files that git knows."""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
from pathlib import Path

import yaml

# No program behaves differently for prose, and the proofs write the records themselves.
PROSE = (".md", ".rst")
LEFT_OUT = ("docs/", "changelogs/", "tests/proof/records/", "tests/proofs.json")


class Files:
    """The files of a checkout that git tracks or would track, and their hashes, which are computed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digests: dict[str, str] = {}

    @functools.cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self._listed())

    def matching(self, glob: str) -> list[str]:
        """What a glob matches below the checkout, without prose; SystemExit when that is nothing."""
        found = [name for name in self._listed(f":(glob){glob}") if not name.endswith(PROSE)]
        if not found:
            raise SystemExit(f"tests/proofs.json: no file matches the input {glob}; correct the glob.")
        return found

    def _listed(self, *globs: str) -> list[str]:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *globs]
        listed = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout.split("\0")
        return sorted({name for name in listed if (self.root / name).is_file()})

    def counts(self, name: str) -> bool:
        """Whether a file that was executed is to be recorded."""
        return name in self.names and not name.endswith(PROSE) and not name.startswith(LEFT_OUT)

    @staticmethod
    def digest_of(words: list[str]) -> str:
        return hashlib.sha256("\0".join(words).encode()).hexdigest()

    def digest(self, name: str) -> str:
        """Hash of a file's mode and of what it does; empty when there is no such file."""
        if name not in self._digests:
            path = self.root / name
            self._digests[name] = file_digest(path) if path.is_file() else ""
        return self._digests[name]


def file_digest(path: Path) -> str:
    content = path.read_bytes()
    try:
        if path.suffix in (".yml", ".yaml"):
            content = _first_line(content) + repr([_of_yaml(each) for each in yaml.compose_all(content, _LOADER)]).encode()
        elif path.suffix == ".py":
            content = _first_line(content) + repr(_of_python(ast.parse(content), b"__doc__" in content)).encode()
    except (yaml.YAMLError, SyntaxError, ValueError, RecursionError):
        pass  # a file that does not parse counts by its bytes
    return hashlib.sha256(b"%o %s" % (path.stat().st_mode & 0o111, content)).hexdigest()


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _first_line(content: bytes) -> bytes:
    """The one comment that programs read."""
    return content.split(b"\n", 1)[0] if content.startswith((b"#!", b"#cloud-config")) else b""


def _of_yaml(node: yaml.Node | None) -> object:
    if isinstance(node, yaml.MappingNode):
        return node.tag, [(_of_yaml(key), _of_yaml(value)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return node.tag, [_of_yaml(each) for each in node.value]
    return node and (node.tag, node.value)


def _of_python(node: object, with_docstrings: bool) -> object:
    """A syntax tree without positions. Not ast.dump, whose text differs between versions of Python."""
    if isinstance(node, list):
        return [_of_python(each, with_docstrings) for each in node]
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    if not with_docstrings and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            fields["body"] = node.body[1:]
    # Later versions of Python have more fields, empty where nobody uses them.
    kept = [(name, _of_python(value, with_docstrings)) for name, value in fields.items() if value is not None and value != []]
    return type(node).__name__, kept

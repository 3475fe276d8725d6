# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Node containers for tests: nodes, their record, and an engine whose answers the test gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.containers import state
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, Finished
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import Node

FIXTURES = Path(__file__).parents[1] / "fixtures/node_container"
IMAGE = "localhost/muster-node:trixie-x"


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


def node(name: str, group: str = "muster_compute", **more) -> Node:
    return Node.from_options({"name": name, "groups": [group], **more})


def record(*names: str) -> dict:
    nodes = [{**dataclasses.asdict(node(name)), "address": f"10.213.5.{index}"} for index, name in enumerate(names, 2)]
    return {"schema": state.SCHEMA, "nodes": nodes}


class FakeRun:
    """Answers command lines by their first words and remembers all of them."""

    def __init__(self, answers: dict[str, Finished | list[Finished]]) -> None:
        self.answers = answers
        self.seen: list[list[str]] = []

    def __call__(self, argv: list[str], timeout: float = 0) -> Finished:
        self.seen.append(argv)
        for start, answer in self.answers.items():
            if " ".join(argv).startswith(start):
                return answer.pop(0) if isinstance(answer, list) else answer
        return Finished(127, "", f"{argv[0]} is not installed")


def engine(name: str = "podman", run=None, **more) -> Engine:
    return Engine(name, [], "4.3.1", "hybrid", "/", run or FakeRun({}), **more)

# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""docs/walkthroughs: the files of each page are accepted by their parsers, its commands exist, and its local part runs."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore import xform_name
from doc_names import ROOT, specified, table_rows
from playbook import run_playbook
from test_commands import FENCE

from ansible_collections.muster.fleet.plugins.filter.inventory_faults import FilterModule
from ansible_collections.muster.fleet.plugins.module_utils.aws import cluster, plan, render, survey
from ansible_collections.muster.fleet.plugins.module_utils.jobs import document, launchers, target

FOLDER = ROOT / "docs/walkthroughs"
PAGES = {path.stem: path for path in sorted(FOLDER.glob("*.md")) if path.name != "README.md"}
MOST_LINES = 80
HEADINGS = ["What you need", "The files", "Up", "What it costs to leave it up", "Down"]
# Page -> the start of its row in docs/support.md, and the words that both that row and the page's first lines have.
RUN = {
    "ec2": ("[`cloud.yml`](architectures.md): networks", "proof", "on the local cloud"),
    "batch": ("`cloud.yml`: FSx, Batch", "proof", "on the local cloud"),
    "parallelcluster": ("[Files of ParallelCluster", "rendered, never run"),
    "pcs": ("[Files of ParallelCluster", "rendered, never run", "botocore's model"),
    "eks": ("[Files of ParallelCluster", "rendered, never run", "schema by hand"),
    "hyperpod-slurm": ("[Files of ParallelCluster", "rendered, never run", "botocore's model"),
    "hyperpod-eks": ("[Files of ParallelCluster", "rendered, never run", "botocore's model"),
    "sagemaker": ("The request of `sagemaker_job`", "proof", "local mode of SageMaker's SDK"),
    "own-machines": ("Debian 13 in containers", "test"),
}
# Commands of the AWS CLI that are not operations of a service.
BESIDE = {("s3", "cp"), ("s3", "rm"), ("cloudformation", "deploy"), ("ssm", "start-session")}
GLOBAL = {"region", "query", "output", "cli-input-json"}


@functools.cache
def files(name: str) -> dict[str, str]:
    """{file name: text} of the YAML blocks of a page, each of which begins with its name."""
    found = {}
    for _indent, kind, text in FENCE.findall(PAGES[name].read_text()):
        if kind == "yaml":
            file = re.match(r"# ([\w.-]+\.yml)\n", text)
            assert file, f"{name}: a YAML block does not begin with the name of its file: {text[:40]!r}"
            assert file[1] not in found, f"{name} has two files {file[1]}"
            found[file[1]] = text
    return found


def commands(name: str) -> Iterator[tuple[str, list[str]]]:
    """(command, lines that it prints) of the shell blocks of a page, in order."""
    for _indent, kind, text in FENCE.findall(PAGES[name].read_text()):
        if kind != "sh":
            continue
        lines, marked = text.splitlines(), "$ " in text
        for number, line in enumerate(lines):
            if marked and not line.startswith("$ "):
                continue
            rest = lines[number + 1 :] if marked else []
            end = next((at for at, each in enumerate(rest) if each.startswith("$ ")), len(rest))
            yield line.removeprefix("$ "), rest[:end]


def cluster_of(name: str) -> dict[str, Any] | None:
    """The checked cluster document of a page; None for a kind that has none."""
    text = files(name).get("mine.yml", "")
    data = yaml.safe_load(text) or {}
    return cluster.load(data) if "kind" in data else None


def verb_of(words: list[str]) -> str:
    given = dict(word.split("=", 1) for word in words if re.match(r"\w+=", word))
    return given.get("verb", "")


def test_each_kind_has_a_page_that_readers_find() -> None:
    assert set(PAGES) == {*cluster.KINDS, "sagemaker", "own-machines"} == set(RUN)
    index = (FOLDER / "README.md").read_text()
    assert not [name for name in PAGES if f"({name}.md)" not in index]
    assert "(docs/walkthroughs/README.md)" in (ROOT / "README.md").read_text()
    assert "(walkthroughs/README.md)" in (ROOT / "docs/usage.md").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short_and_says_what_was_run(name: str) -> None:
    lines = PAGES[name].read_text().splitlines()
    assert len(lines) <= MOST_LINES
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert [each for each in headings if each in HEADINGS] == HEADINGS
    first = " ".join(PAGES[name].read_text().split("\n\n")[1].split())
    assert first.startswith("**What was run:** ") and "support.md#" in first
    row, *words = RUN[name]
    [cells] = [cells for _heading, cells in table_rows(ROOT / "docs/support.md", "") if cells[0].startswith(row)]
    for word in words:
        assert word in " ".join(cells), f"docs/support.md does not say {word} of {row}"
        assert word in first, f"{name} does not say that it is {word}"


@pytest.mark.parametrize("name", PAGES)
def test_the_files_of_a_page_are_accepted(name: str) -> None:
    kinds = []
    for file, text in files(name).items():
        data = yaml.safe_load(text)
        if "command" in data:
            kinds.append("job")
            document.load(data)
        elif "kind" in data:
            kinds.append("cluster")
            assert cluster.load(data)["kind"] == name
        elif "muster_storage" in data or "all" in data:
            kinds.append("inventory")
            hosts = {group: list((data.get(group) or {}).get("hosts") or {}) for group in data}
            if "muster_compute" in hosts:
                assert not FilterModule().filters()["inventory_faults"](hosts)
            given = (data.get("all") or {}).get("vars") or {}
            assert not [each for each in given if each not in specified() and not each.startswith("ansible_")], file
            if "muster_target" in given:
                target.load(given["muster_launcher"], given["muster_target"])
        else:
            kinds.append("prices")
            assert survey.priced({}, data)["hourly"] == 0
    wanted = {"ec2": ["cluster"], "hyperpod-eks": ["cluster"], "sagemaker": ["job"], "own-machines": ["job"]}.get(name, ["cluster", "job"])
    assert not set(wanted) - set(kinds)


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_name_what_is_there(name: str) -> None:
    """tests/unit/test_commands.py checks programs, flags and variables; here are verbs, files of the page, and the AWS CLI."""
    made = {"runs/cloud/mine/aws_fleet.yml"} if name == "ec2" else set()
    seen = 0
    for command, printed in commands(name):
        words = shlex.split(command)
        if words[0] == "ansible-playbook":
            verb, given = verb_of(words), cluster_of(name)
            if "playbooks/cloud.yml" in words:
                assert verb in plan.VERBS, command
                assert given and (verb == "render" or given["kind"] not in plan.RENDERED), f"{command} is refused for {name}"
            if "playbooks/job.yml" in words and verb:
                assert verb in launchers.VERBS, command
            named = [word.split("=@")[1] for word in words if "=@" in word]
            named += [words[at + 1] for at, word in enumerate(words) if word == "-i"]
            assert not [file for file in named if file not in files(name) and file not in made], f"{command}: the page has no such file"
        if words[0] == "aws":
            aws_faults(words)
        for line in printed:
            check_printed(name, line)
        seen += 1
    assert seen >= 3


def aws_faults(words: list[str]) -> None:
    service, operation, *rest = words[1:]
    if (service, operation) in BESIDE:
        if operation == "deploy":
            template = (ROOT / words[words.index("--template-file") + 1]).read_text()
            for each in words[words.index("--parameter-overrides") + 1 :]:
                assert re.search(rf"^  {each.partition('=')[0]}:$", template, re.M), f"the template has no parameter {each}"
        return
    model = botocore.session.get_session().get_service_model(service)
    known = {xform_name(each, "-"): each for each in model.operation_names}
    assert operation in known, f"aws {service} has no {operation}"
    members = {xform_name(each, "-") for each in model.operation_model(known[operation]).input_shape.members}
    given = {word.removeprefix("--") for word in rest if word.startswith("--")}
    assert given <= members | GLOBAL, f"aws {service} {operation} has no {given - members - GLOBAL}"


def check_printed(name: str, line: str) -> None:
    """Lines of commands that need an account, as far as they follow from the document."""
    given = cluster_of(name)
    if made := re.fullmatch(r" +- (\w+) +(\S+) +CREATE_COMPLETE +\d+", line):
        assert given and made[2] in [each["name"] for each in plan.stacks(given, made[1])], line
    if priced := re.fullmatch(r" +- (\d+)  (\S+)  \$([\d.]+)/h", line):
        prices = yaml.safe_load(files(name)["prices.yml"])
        assert survey.priced({priced[2]: int(priced[1])}, prices)["hourly"] == float(priced[3]), line


@pytest.mark.parametrize("name", PAGES)
def test_down_removes_what_up_made(name: str) -> None:
    given, typed = cluster_of(name), [shlex.split(command) for command, _printed in commands(name)]
    if given and given["kind"] not in plan.RENDERED:
        assert [verb_of(words) for words in typed if "playbooks/cloud.yml" in words][-1] == "down"
        return
    created = render.files(given)["create.sh"] if given else "\n".join(shlex.join(words) for words in typed)
    stacks = re.findall(r"^aws cloudformation deploy .*?--stack-name (\S+)", created, re.M)
    deleted = [words[words.index("--stack-name") + 1] for words in typed if words[1:3] == ["cloudformation", "delete-stack"]]
    # The file system and the cluster go before the network that they are in.
    assert set(deleted) == set(stacks) and len(deleted) == len(stacks)
    assert not stacks or name == "sagemaker" or deleted[-1] == "mine-vpc"
    down = PAGES[name].read_text().partition("## Down")[2]
    for making in ("pcluster create-cluster", "eksctl create cluster", "aws sagemaker create-cluster"):
        if re.search(rf"^{making}", created, re.M):
            line = re.search(rf"^{making.replace('create', 'delete')} .*", down, re.M)
            assert line and line[0].endswith("name mine"), f"{name} makes a cluster by {making} and does not delete it"
    assert name == "own-machines" or re.search(r"delete-file-system|^aws s3 rm", down, re.M)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Callable[..., tuple[Path, str]]:
    """Runs a command of a page among its files; a command that several pages have with the same files runs once."""
    known: dict[Any, tuple[Path, str]] = {}

    def run(words: list[str], among: dict[str, str]) -> tuple[Path, str]:
        used = {file: text for file, text in among.items() if file in " ".join(words)}
        key = (*words, *used.items())
        if key not in known:
            folder = tmp_path_factory.mktemp("page")
            for file, text in used.items():
                (folder / file).write_text(text)
            done = run_playbook(folder, *(folder / word if word in used else word for word in words[1:]))
            assert done.returncode == 0, done.stdout + done.stderr
            known[key] = (folder, done.stdout)
        return known[key]

    return run


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="not_run: the playbooks run once, with the controller's Python")
@pytest.mark.parametrize("name", PAGES)
def test_the_local_part_of_a_page_runs(name: str, ran) -> None:
    folders = []
    for command, printed in commands(name):
        words = shlex.split(command)
        if words[0] == "ansible-playbook" and verb_of(words) == "render":
            assert printed, f"{command} shows nothing of what it prints"
            folder, stdout = ran(words, files(name))
            assert not [line for line in printed if line not in stdout.splitlines()], stdout
            folders.append(folder)
    assert folders, f"{name} has no command that runs without an account"
    found = re.findall(r"`(runs/[\w./-]+/[\w.-]+\.\w+)`|(?:bash|scp|cp) (runs/\S+)", PAGES[name].read_text())
    paths = {each for pair in found for each in pair if each}
    assert paths, f"{name} does not say where the result is"
    assert not [path for path in paths if not any((folder / path).is_file() for folder in folders)]

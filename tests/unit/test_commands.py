# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Every command that docs, examples and error sentences name exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ROOT, TORCHRUN, documented, faults, flags_in, module_help, option_faults, trainer_commands, variables

from trainer.arguments import REPLACED

PAGES = (
    *("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/walkthroughs/*.md"),
    *("roles/*/README.md", "trainer/README.md", "trainer/labs/*.md", "tests/README.md"),
)
CODE = (
    *("plugins", "roles", "playbooks", "trainer", "localcloud", "localkube", "recipes", "kubernetes", "tools", "packer"),
    *("tests/bench", "tests/proof", "inventory", "site.yml"),
)


def pages() -> list[Path]:
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.S | re.M)
# A block that four spaces indent begins after an empty line. Markdown gives it no language.
INDENTED = re.compile(r"(?:\A|^[ \t]*\n)((?:^ {4,}\S.*(?:\n|\Z)|^[ \t]+\n)+)", re.M)
PLAIN_COMMAND = re.compile(r"\s*\$? ?(?:sudo )?(?:\S*/)?(ansible|make|packer|python|torchrun)")


def code_blocks(text: str, language: str) -> Iterator[str]:
    """The code blocks of a page; those without a language that begin with a command count as sh."""
    for indent, kind, code in FENCE.findall(text):
        if kind == language or (language == "sh" and not kind and PLAIN_COMMAND.match(code)):
            yield re.sub(rf"^{indent}", "", code, flags=re.M)
    if language == "sh":
        yield from (re.sub(r"^ {4}", "", code, flags=re.M) for code in INDENTED.findall(FENCE.sub("", text)) if PLAIN_COMMAND.match(code))


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in pages():
        yield from ((page, block) for block in code_blocks(page.read_text(), language))


def commands_of(block: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each command of a shell block, with the functions that the block defines."""
    defined = tuple(re.findall(r"^(\w+)\(\)", block, re.M))
    text = re.sub(r"<<(\w+)\n.*?^\1$", "", block, flags=re.S | re.M).replace("\\\n", " ")
    # A block that also shows output marks its commands by "$ ".
    only_marked = re.search(r"^\s*\$ ", text, re.M)
    for line in text.splitlines():
        skipped = not line.strip() or line.startswith(("#", *(f"{name}()" for name in defined)))
        if not skipped and (not only_marked or line.lstrip().startswith("$ ")):
            yield re.sub(r"^\w+=\$\((.*)\)$", r"\1", line), defined


def inline() -> Iterator[tuple[Path, str]]:
    for page in pages():
        for text in re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text())):
            yield page, text.replace("\\|", "|")


def sentences(path: Path) -> Iterator[str]:
    """The texts of a file: string literals of Python, lines of everything else."""
    if path.suffix != ".py":
        yield from path.read_text().replace("\\\n#", " ").splitlines()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def code_files() -> list[Path]:
    found = [path for name in CODE for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*")))]
    return [path for path in found if path.suffix in (".py", ".yml", ".yaml", ".j2", ".hcl") and path.is_file()]


# A command in the middle of a sentence: after a word that only a command follows, or in backquotes.
SAID = re.compile(
    r"(?:\b(?:by|[Rr]un|[Rr]uns|with|after|of|use|and)\s+|`|^# +|^)"
    r"((?:make (?!it\b|them\b|room\b|sure\b|the\b|an?\b)[a-z][\w-]*+(?!\.\w)(?: [A-Z]+=[^\s`;,.)]+)*)"
    r"|(?:packer|molecule) (?:[a-z]+)(?: -[^`;]*)?|pytest --[a-z-]+)"
)
PLAYBOOK = re.compile(r"((?:\.venv/bin/)?ansible-playbook [^`\n;]*)")
REMEDY = re.compile(r"remedy: .*?\bRun ((?!the\b|it\b|what\b|this\b|one\b)[a-z][\w-]* [^;.`]*)")
MODULE = re.compile(r"(?:python3? -m |-m[\"', ]+)((?:trainer|tests|localcloud|localkube|tools)\b[\w.]*(?:[\"', ]+[\w.-]+)*)")
FILES = re.compile(r"(?<![\w/{}.~*\"-])((?:playbooks|tools|tests|packer|stacks|catalogue|docs)/[\w/.-]+\.(?:yml|py|sh|md|hcl|json|txt))\b")


def told() -> Iterator[tuple[Path, str]]:
    """Commands in the texts of the code."""
    for path in code_files():
        for text in sentences(path):
            for pattern in (SAID, PLAYBOOK, REMEDY):
                yield from ((path, found.rstrip(" .,:")) for found in pattern.findall(text))
            yield from ((path, found) for found in FILES.findall(text))
        for found in MODULE.findall(path.read_text()):
            if not found.endswith("."):  # the rest of the name is made when it runs
                yield path, "python -m " + re.sub(r"[\"',]", "", found)


def report(checked: list[tuple[Path, str, list[str]]], least: int) -> None:
    wrong = sorted({f"{path.relative_to(ROOT)}: `{text}`: {fault}" for path, text, found in checked for fault in found})
    assert not wrong, "\n" + "\n".join(wrong)
    assert len(checked) >= least, f"only {len(checked)} were found to check"


def test_shell_blocks_of_the_docs() -> None:
    found = [(page, *command) for page, block in blocks("sh") for command in commands_of(block)]
    report([(page, line, faults(line, page, functions)) for page, line, functions in found], 35)


def test_commands_in_every_kind_of_block_are_seen() -> None:
    page = """\
Text before it:

    ansible-playbook sites.yml --dryrun
    make sites

- an item
    with a second line, which is no code

```sh
python -m localkube upp --nodez
```
   ```
   .venv/bin/python -m localkube down NAME --nodes 2
   ```
"""
    found = [(line, faults(line)) for block in code_blocks(page, "sh") for line, _ in commands_of(block)]
    assert sorted(found) == [
        (".venv/bin/python -m localkube down NAME --nodes 2", ["python -m localkube down has no flag --nodes"]),
        ("ansible-playbook sites.yml --dryrun", ["ansible-playbook has no flag --dryrun", "there is no playbook playbooks/sites.yml"]),
        ("make sites", ["the Makefile has no target sites"]),
        ("python -m localkube upp --nodez", ["python -m localkube has no command upp"]),
    ]


def test_commands_inside_the_text_of_the_docs() -> None:
    """Commands that start with one of our programs, and all others that have a flag."""
    programs = r"(?:\S*/)?(?:make|ansible[a-z-]*|packer|molecule|pytest|torchrun|python3?|sbatch)|cd|srun|(?:tests|tools)/\S+\.py"
    ours = re.compile(rf"^(?:[A-Z_]+=\S+ )?(?:{programs}) \S")
    flagged = re.compile(r"^[a-z][\w.-]*( [\w./=:-]+)* --?[a-z]")
    report([(page, text, faults(text, page)) for page, text in inline() if ours.match(text) or flagged.match(text)], 100)


def test_flags_of_the_trainer_inside_the_text_of_its_docs() -> None:
    """Flags by themselves: those of a command of the trainer, of torchrun, or of the AWS reference trainer with what replaced them."""
    known = TORCHRUN | flags_in(module_help("trainer.collectives"))
    known = known.union(*(flags_in(module_help("trainer", command)) for command in trainer_commands()))
    checked = []
    for page, text in inline():
        if text.startswith("-") and (page.name.startswith("trainer") or page.is_relative_to(ROOT / "trainer")):
            unknown = [flag for flag in flags_in(text) - known - set(REPLACED)]
            checked.append((page, text, [f"the trainer has no flag {flag}" for flag in unknown]))
    report(checked, 60)


def test_files_that_the_docs_name() -> None:
    path = re.compile(r"(?:playbooks|tools|tests|packer|stacks|catalogue|docs|inventory|plugins|\.config|trainer|roles)/[\w/.-]*\w")
    # The page "Add a role" makes the role hello.
    named = [(page, text) for page, text in inline() if path.fullmatch(text) and not text.startswith("roles/hello/")]
    report([(page, text, [] if (ROOT / text).exists() else ["there is no such file"]) for page, text in named], 25)


def test_commands_of_the_code() -> None:
    def check(text: str) -> list[str]:
        if FILES.fullmatch(text):
            return [] if (ROOT / text).exists() else ["there is no such file"]
        return faults(text)

    found = list(told())
    report([(path, text, check(text)) for path, text in found], 120)
    of_folder = Counter(path.relative_to(ROOT).parts[0] for path, _ in found)
    for folder, least in {
        "plugins": 15,
        "roles": 5,
        "playbooks": 15,
        "trainer": 15,
        "localcloud": 4,
        "localkube": 2,
        "tools": 8,
        "packer": 4,
    }.items():
        assert of_folder[folder] >= least, f"only {of_folder[folder]} were found in {folder}"


def task_faults(document: Any) -> Iterator[str]:
    """Modules of ours in a list of tasks or plays, with their options; plugins of ours by name."""
    if isinstance(document, list):
        for each in document:
            yield from task_faults(each)
    elif isinstance(document, dict):
        for key, value in document.items():
            if str(key).startswith("muster.fleet."):
                name = key.removeprefix("muster.fleet.")
                if name not in documented()["module"]:
                    yield f"there is no module {key}"
                    continue
                options = documented()["module"][name]["doc"].get("options") or {}
                yield from option_faults(value, options, key)
                yield from (f"{key} needs {need}" for need, each in options.items() if each.get("required") and need not in (value or {}))
            else:
                yield from task_faults(value)
        if "plugin" in document:
            known = documented()["inventory"].get(str(document["plugin"]).removeprefix("muster.fleet."))
            yield from (
                option_faults(document, known["doc"]["options"], document["plugin"])
                if known
                else [f"there is no inventory plugin {document['plugin']}"]
            )


def test_examples_of_modules_and_plugins() -> None:
    checked = []
    for kind in ("module", "inventory", "lookup", "filter"):
        for name, each in documented()[kind].items():
            assert "doc" in each, each.get("error")
            text = each.get("examples") or ""
            path = Path(each["doc"]["filename"]).resolve()
            assert text, f"{kind} {name} has no EXAMPLES"
            for document in yaml.safe_load_all(text):
                checked.append((path, name, [*task_faults(document), *unknown_names(text)]))
    report(checked, 60)


def unknown_names(text: str) -> Iterator[str]:
    known = set().union(*documented().values(), *({each.stem} for each in (ROOT / "playbooks").glob("*.yml")))
    yield from (f"there is no muster.fleet.{name}" for name in set(re.findall(r"muster\.fleet\.([a-z]\w*)", text)) - known)


def test_names_and_yaml_of_the_docs() -> None:
    checked = [(page, "muster.fleet.…", [*unknown_names(page.read_text())]) for page in pages()]
    prefixes = ("muster_", *(f"{path.name}_" for path in (ROOT / "roles").iterdir()))
    for page, text in blocks("yaml"):
        document = yaml.safe_load(text)
        found = [*task_faults(document)]
        if isinstance(document, dict):
            groups = re.findall(r"muster_\w+", (ROOT / "README.md").read_text() + (ROOT / "docs/inventory.md").read_text())
            named = [name for name in document if name.startswith(prefixes) and name not in groups]
            found += [f"no playbook or role knows the variable {name}" for name in named if name not in variables()]
        checked.append((page, text.splitlines()[0], found))
    report(checked, 40)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("make sites", "the Makefile has no target sites"),
        ("make site NODES=4", "no recipe of make site reads NODES"),
        ("ansible-playbook playbooks/site.yml", "there is no playbook playbooks/site.yml"),
        ("ansible-playbook site.yml -e muster_flet=x", "no playbook or role knows the variable muster_flet"),
        ("""ansible-playbook site.yml -e '{"muster_rolling": {"size": 1}}'""", "muster_rolling has no option size"),
        ("ansible-playbook site.yml --dry-run", "ansible-playbook has no flag --dry-run"),
        ("python -m trainer.train --steps 3", "python -m trainer.train does not exist"),
        ("python -m trainer learn", "python -m trainer has no command learn"),
        ("torchrun --nproc-per-node 2 -m trainer train --modle tiny", "python -m trainer train has no flag --modle"),
        ("python -m localcloud --prot 80", "python -m localcloud has no flag --prot"),
        ("python -m localkube upp --nodez", "python -m localkube has no command upp"),
        ("python -m localkube up NAME --nodez 2", "python -m localkube up has no flag --nodez"),
        ("python -m localkube kubectl NAME get nodes -o wide", ""),
        ("python -m localkube kubectl --nodes 2 NAME get nodes", "python -m localkube kubectl has no flag --nodes"),
        ("tools/catalogue.py --apis x", "tools/catalogue.py has no flag --apis"),
        ("python tools/nothing.py", "there is no tools/nothing.py"),
        ("packer build -var regoin=x packer", "packer has no variable regoin"),
        ("packer build -var-file=packer/nothing.hcl packer", "there is no packer/nothing.hcl"),
        ("molecule tests", "molecule has no command tests"),
        ("pytest --engines", "pytest has no flag --engines"),
        (".venv/bin/molecul test", "the environment of `make setup` has no molecul"),
        ("muster site", "muster is an unknown command; correct it, or name it in FOREIGN"),
    ],
)
def test_a_wrong_command_is_found(command: str, fault: str) -> None:
    assert faults(command) == ([fault] if fault else [])

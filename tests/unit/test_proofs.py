# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The record of slow tests: own inputs make a proof stale, executed files make it due."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proof_files import Files, file_digest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("proofs", ROOT / "tests/proofs.py")
assert SPEC and SPEC.loader
proofs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(proofs)

PYTHON = "import shared, pathlib; print(open('templates/a.j2').read()); raise SystemExit(pathlib.Path('broken').exists())"
SLURM = {
    "name": "slurm",
    "about": "Slurm",
    "inputs": ["roles/slurm/**", "lock.txt"],
    "budget": 60,
    "command": [sys.executable, "-c", PYTHON],
}
FILES = {
    ".gitignore": "__pycache__\n/.cache/\nbroken\n",
    "roles/slurm/main.yml": "a: 1\n",
    "roles/slurm/filter.py": "def a():\n    return 1\n",
    "roles/slurm/README.md": "Slurm\n",
    "lock.txt": "torch==1\n",
    "shared.py": "X = 1\n",
    "templates/a.j2": "a\n",
}


class Checkout:
    """A git repository with proofs in it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        for name, text in FILES.items():
            self.put(name, text)
        self.git("init", "-q")
        self.define(SLURM)

    def put(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *argv: str, date: str = "2026-01-02T03:04:05Z") -> None:
        who = {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in (("NAME", "a"), ("EMAIL", "a@b"), ("DATE", date))
        }
        subprocess.run(["git", *argv], cwd=self.root, env=os.environ | who, check=True, capture_output=True)

    def define(self, *documents: dict[str, Any]) -> None:
        self.put("tests/proofs.json", json.dumps({"schema": "muster.proofs/2", "proofs": documents}))

    def call(self, *argv: str) -> tuple[int, str]:
        """Exit code and output of proofs.py."""
        self._capsys.readouterr()
        return proofs.main(list(argv), self.root), self._capsys.readouterr().out

    def record(self, name: str = "slurm") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / f"tests/proof/records/{name}.json").read_text())
        return found

    def ran(self) -> None:
        assert self.call("run")[0] == 0
        code, said = self.call("check")
        assert (code, said) == (0, "1 of 1 proofs hold; 0 of these are due (0 s).\n")


@pytest.fixture
def checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checkout:
    return Checkout(tmp_path, capsys)


@pytest.fixture
def in_the_background() -> Iterator[None]:
    """A shell starts a job in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def script(name: str, text: str, **more: object) -> dict[str, Any]:
    return {**SLURM, "name": name, "command": ["sh", "-c", text], **more}


def test_a_proof_that_never_ran_fails_the_check(checkout: Checkout) -> None:
    code, said = checkout.call("check")
    assert code == 1
    assert "proof slurm was never run; run `make proofs`" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lock.txt", "torch==2\n"),
        ("roles/slurm/main.yml", "a: 2\n"),
        ("roles/slurm/main.yml", "a: '1'\n"),
        ("roles/slurm/main.yml", "a: !unsafe 1\n"),
        ("roles/slurm/main.yml", "a: {\n"),
        ("roles/slurm/filter.py", "def a():\n    return 2\n"),
        ("roles/slurm/filter.py", "#!/usr/bin/python3\ndef a():\n    return 1\n"),
        ("roles/slurm/more.yml", "b: 1\n"),
    ],
)
def test_an_own_input_makes_a_proof_stale(checkout: Checkout, name: str, text: str) -> None:
    checkout.ran()
    checkout.put(name, text)
    code, said = checkout.call("check")
    assert code == 1
    assert "proof slurm is stale: its command or one of its inputs changed after its run of " in said


def test_a_command_that_is_replaced_makes_a_proof_stale(checkout: Checkout) -> None:
    checkout.ran()
    checkout.define({**SLURM, "command": ["true"]})
    assert checkout.call("check")[0] == 1


def test_an_executable_bit_makes_a_proof_stale(checkout: Checkout) -> None:
    checkout.ran()
    (checkout.root / "roles/slurm/filter.py").chmod(0o755)
    assert checkout.call("check")[0] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("roles/slurm/main.yml", "# Why.\na:   1  # here\n"),
        ("roles/slurm/filter.py", "def a():\n\n    # Why.\n    return (1)\n"),
        ("roles/slurm/filter.py", '"""A filter."""\n\n\ndef a():\n    """One."""\n    return 1\n'),
        ("roles/slurm/README.md", "More\n"),
        ("roles/slurm/NEWS.md", "More\n"),
        ("roles/slurm/__pycache__/x", "ignored by git"),
        ("shared.py", "X = 1  # why\n"),
    ],
)
def test_prose_changes_nothing(checkout: Checkout, name: str, text: str) -> None:
    checkout.ran()
    checkout.put(name, text)
    code, said = checkout.call("check")
    assert (code, said) == (0, "1 of 1 proofs hold; 0 of these are due (0 s).\n")


def test_a_docstring_that_the_file_reads_counts(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    digests = []
    for text in ("One.", "Two."):
        file.write_text(f'"""{text}"""\nprint(__doc__)\n')
        digests.append(file_digest(file))
    assert digests[0] != digests[1]


def test_an_executed_file_makes_a_proof_due_since_its_commit(checkout: Checkout) -> None:
    checkout.ran()
    assert set(checkout.record()["executed"]) == {".", "templates"}
    checkout.put("shared.py", "X = 2\n")
    code, said = checkout.call("check")
    assert code == 0
    assert "proof slurm is due: since now (not committed) by shared.py\n" in said
    checkout.git("add", "-A")
    checkout.git("commit", "-qm", "more")
    assert "proof slurm is due: since 2026-01-02 by shared.py\n" in checkout.call("check")[1]
    checkout.put("templates/a.j2", "b\n")
    code, said = checkout.call("check", "--release")
    assert code == 1
    assert "by shared.py and 1 more\n" in said
    assert checkout.call("run")[0] == 0
    assert checkout.call("check", "--release")[0] == 1, "run without --due leaves due proofs alone"
    assert checkout.call("run", "--due")[0] == 0
    assert checkout.call("check", "--release")[0] == 0


def test_a_record_without_executed_files_is_due(checkout: Checkout) -> None:
    checkout.ran()
    record = checkout.record()
    del record["executed"]
    checkout.put("tests/proof/records/slurm.json", json.dumps(record))
    code, said = checkout.call("check")
    assert code == 0
    assert "proof slurm is due: its executed files were not recorded yet" in said


@pytest.mark.parametrize(("name", "state"), [("lock.txt", "is stale"), ("shared.py", "is due")])
def test_a_file_that_changes_while_the_proof_runs_is_noticed(checkout: Checkout, name: str, state: str) -> None:
    changing = f"import shared; open({name!r}, 'a').write('Y = 1\\n')"
    checkout.define({**SLURM, "command": [sys.executable, "-c", changing]})
    assert checkout.call("run")[0] == 0
    assert f"proof slurm {state}" in checkout.call("check")[1]


def test_a_proof_that_could_not_be_run_does_not_hold(checkout: Checkout) -> None:
    checkout.define(script("slurm", "exit 75"))
    assert checkout.call("run")[0] == 1
    assert checkout.record()["result"] == "not_run"
    code, said = checkout.call("check")
    assert code == 1
    assert "proof slurm could not be run on" in said


def test_a_failed_proof_prints_its_output_and_does_not_hold(checkout: Checkout) -> None:
    checkout.define(script("slurm", "echo some words; exit 1"))
    code, said = checkout.call("run")
    assert code == 1
    assert "some words" in said
    assert checkout.record()["result"] == "failed"
    assert "proof slurm failed on" in checkout.call("check")[1]


def test_a_due_proof_that_fails_fails_the_rerun_and_writes_nothing(checkout: Checkout) -> None:
    checkout.ran()
    checkout.git("add", "-A")
    checkout.git("commit", "-qm", "all")
    code, said = checkout.call("rerun")
    assert code == 0
    assert "1 of 1 proofs still hold" in said
    checkout.put("broken", "")  # ignored by git, as a machine's state is
    code, said = checkout.call("rerun")
    assert code == 1
    assert "proof slurm no longer holds although its record says so" in said
    checkout.put("shared.py", "X = 1 / 0\n")
    code, said = checkout.call("rerun")
    assert code == 1
    assert "proof slurm is due" in said
    assert "ZeroDivisionError" in said
    assert checkout.record()["result"] == "passed"
    checkout.git("checkout", "-q", "shared.py")
    status = subprocess.run(["git", "status", "--porcelain"], cwd=checkout.root, capture_output=True, text=True, check=True)
    assert status.stdout == ""


def test_a_rerun_that_is_not_run_is_not_green(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.define(script("slurm", "test ! -e broken || exit 75"))
    checkout.ran()
    checkout.put("broken", "")
    monkeypatch.delenv("CI", raising=False)
    code, said = checkout.call("rerun")
    assert code == 0
    assert "not_run: proof slurm" in said
    assert "0 of 1 proofs still hold" in said
    monkeypatch.setenv("CI", "true")
    assert checkout.call("rerun")[0] == 1


def test_a_rerun_builds_no_kubernetes(checkout: Checkout) -> None:
    checkout.define(script("slurm", "", lock="kubernetes"), script("users", "", lock="port"))
    assert checkout.call("run")[0] == 0
    assert proofs.choose(proofs.Proofs(checkout.root), "a", 600) == ["users"]


def test_a_stale_proof_fails_the_rerun_at_once(checkout: Checkout) -> None:
    code, said = checkout.call("rerun")
    assert code == 1
    assert "started" not in said


def test_a_commit_chooses_proofs_of_ten_minutes_due_ones_first(checkout: Checkout) -> None:
    names = [f"p{number}" for number in range(20)]
    checkout.define(*({**SLURM, "name": name} for name in names))
    assert checkout.call("run", "--jobs", "8", *names)[0] == 0
    for number, name in enumerate(names):
        record = {**checkout.record(name), "seconds": 100 + number}
        if number < 3:
            del record["executed"]
        checkout.put(f"tests/proof/records/{name}.json", json.dumps(record))
    loaded = proofs.Proofs(checkout.root)
    chosen = {commit: proofs.choose(loaded, commit, 600) for commit in ("a", "b", "c")}
    for commit, found in chosen.items():
        assert found == proofs.choose(proofs.Proofs(checkout.root), commit, 600)
        assert set(found[:3]) == {"p0", "p1", "p2"}
        assert 480 < loaded.seconds(found) <= 600
    assert len({tuple(found) for found in chosen.values()}) == 3


@pytest.mark.usefixtures("in_the_background")
def test_a_proof_is_stopped_at_one_and_a_half_times_its_budget(checkout: Checkout) -> None:
    cleaning = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('cleaned up')"
    checkout.define({**SLURM, "budget": 1, "command": [sys.executable, "-c", cleaning]})
    started = time.monotonic()
    code, said = checkout.call("run")
    assert code == 1
    assert time.monotonic() - started < 30
    assert checkout.record()["result"] == "failed"
    assert checkout.record()["reason"] == "stopped at 1.5 times its budget of 1 s"
    assert "cleaned up" in (checkout.root / ".cache/proofs/slurm.log").read_text()
    assert "stopped at 1.5 times its budget" in said


def spans(checkout: Checkout, *documents: dict[str, Any]) -> str:
    checkout.define(
        *(
            {
                **each,
                "command": ["sh", "-c", f"cd templates && echo b{each['name']} >>../spans && sleep 1 && echo e{each['name']} >>../spans"],
            }
            for each in documents
        )
    )
    assert checkout.call("run", "--jobs", "2")[0] == 0
    return (checkout.root / "spans").read_text().replace("\n", " ")


def test_two_proofs_run_side_by_side(checkout: Checkout) -> None:
    assert spans(checkout, script("x", ""), script("y", "")).startswith(("bx by ", "by bx "))


@pytest.mark.parametrize("more", [{"alone": True}, {"lock": "port"}])
def test_proofs_that_disturb_each_other_run_one_after_the_other(checkout: Checkout, more: dict[str, object]) -> None:
    assert spans(checkout, script("x", "", **more), script("y", "", lock="port")) in ("bx ex by ey ", "by ey bx ex ")


@pytest.mark.usefixtures("in_the_background")
def test_an_interrupted_run_stops_its_proofs(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.define(script("x", "trap 'echo stopped >stopped; exit 1' INT; sleep 60 & wait"))

    def interrupt(_: float) -> None:
        while not (checkout.root / ".cache/proofs/x.log").exists():
            pass
        monkeypatch.undo()
        time.sleep(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkout.call("run")
    assert (checkout.root / "stopped").exists()
    assert not (checkout.root / "tests/proof/records/x.json").exists()


def test_only_files_that_git_would_track_are_recorded(checkout: Checkout) -> None:
    opening = "for name in ('shared.py', '.cache/x', 'roles/slurm/README.md', 'roles/slurm/main.yml', 'tests/proofs.json'): open(name)"
    checkout.put(".cache/x", "")
    checkout.define({**SLURM, "command": [sys.executable, "-c", opening]})
    assert checkout.call("run")[0] == 0
    assert {name: list(files) for name, files in checkout.record()["executed"].items()} == {".": ["shared.py"]}


def test_the_table_is_checked_but_for_what_is_due(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.ran()
    page = checkout.root / "docs/support.md"
    assert checkout.call("table")[0] == 0
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert re.search(rf"^\| slurm \| Slurm \| passed \| {today} \| \d+ \| no \|$", page.read_text(), re.M)
    checkout.put("shared.py", "X = 2\n")
    assert checkout.call("table")[0] == 0
    page.write_text("before\n" + page.read_text().replace(today, "2026-01-01") + "after\n")
    assert checkout.call("table") == (1, "docs/support.md: the table of proofs is not current; run `make docs`\n")
    capsys.readouterr()
    assert proofs.main(["table", "--write"], checkout.root) == 0
    said = 'docs/support.md now says "now (not committed)" of shared.py; commit that, then run `make docs` again.\n'
    assert capsys.readouterr() == ("", said)
    assert "| since now (not committed) by shared.py |\n" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    checkout.git("add", "shared.py")
    checkout.git("commit", "-qm", "shared")
    assert proofs.main(["table", "--write"], checkout.root) == 0
    assert capsys.readouterr() == ("", "")
    assert "| since 2026-01-02 by shared.py |\n" in page.read_text()


def test_a_glob_without_files_is_an_error(checkout: Checkout) -> None:
    (checkout.root / "lock.txt").unlink()
    with pytest.raises(SystemExit, match=r"no file matches the input lock\.txt"):
        checkout.call("check")


def test_an_unknown_proof_is_named(checkout: Checkout) -> None:
    with pytest.raises(SystemExit, match="There is no proof slum; there are: slurm"):
        checkout.call("run", "slum")


def test_the_proofs_of_this_checkout_name_their_locks_and_budgets() -> None:
    documents = json.loads((ROOT / "tests/proofs.json").read_text())["proofs"]
    names = [document["name"] for document in documents]
    assert len(set(names)) == len(names)
    for document in documents:
        assert (
            {"name", "about", "inputs", "command", "budget"}
            <= set(document)
            <= {"name", "about", "inputs", "command", "budget", "alone", "lock"}
        )
        for glob in document["inputs"]:
            assert Files(ROOT).matching(glob)
        assert any(name.startswith("requirements/") for name in document["inputs"]), document["name"]
    assert {file.stem for file in (ROOT / "tests/proof/records").glob("*.json")} <= set(names)

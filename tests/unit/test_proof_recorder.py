# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The recorder of executed files: it records what Python and the programs that it starts open, and disturbs none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from proof_run import RECORDER


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., set[str]]:
    """Run Python code in a folder of two files under the recorder: the files that it recorded."""
    put(tmp_path / "shared.py", "X = 1\n")
    put(tmp_path / "templates/a.j2", "a\n")

    def call(code: str, **env: str) -> set[str]:
        file = tmp_path / ".cache/recorded"
        file.parent.mkdir(exist_ok=True)
        record = {"MUSTER_RECORD_ROOT": str(tmp_path), "MUSTER_RECORD_FILE": str(file), "PYTHONPATH": str(RECORDER)}
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | record | env, check=True)
        lines = file.read_text().splitlines() if file.exists() else []
        assert "subprocess" in code or len(lines) == len(set(lines)), "each file once in a process"
        return {str(Path(line).relative_to(tmp_path)) for line in lines}

    return call


@pytest.mark.parametrize("code", ["import shared", "import os; open(os.path.abspath('shared.py')).read()", "open('shared.py', 'rb')"])
def test_the_recorder_sees_what_python_imports_and_opens(recorded: Callable[..., set[str]], tmp_path: Path, code: str) -> None:
    assert recorded(code) == {"shared.py"}
    (tmp_path / ".cache/recorded").unlink()
    assert recorded(code) == {"shared.py"}, "a module from __pycache__ counts as its source"


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess; subprocess.run(['sh', './templates/a.j2'])",
        "import subprocess; subprocess.run(['sh', 'a.j2'], cwd='templates')",
        "import subprocess; subprocess.run('true --inventory=templates/a.j2', shell=True)",
        "import os; os.spawnvp(os.P_WAIT, 'true', ['true', 'templates/a.j2'])",
        "import os; os.posix_spawn('/bin/true', ['true', 'templates/a.j2'], {})",
        "import os; os.system('cat templates/a.j2 >/dev/null')",
        "import os; os.fork() or open('templates/a.j2') and os._exit(0)",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'open(\"templates/a.j2\")'])",
        "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'open(\"a.j2\")'], cwd='templates', env={**os.environ})",
        "import multiprocessing as m; m.get_context('fork').Pool(1).map(open('templates/a.j2').write, []) if 0 else open('templates/a.j2')",
    ],
)
def test_the_recorder_sees_what_is_started_and_what_that_opens(recorded: Callable[..., set[str]], code: str) -> None:
    assert recorded(code) == {"templates/a.j2"}


def test_the_recorder_follows_links_and_knows_a_file_by_one_name(recorded: Callable[..., set[str]], tmp_path: Path) -> None:
    (tmp_path / "collections").mkdir()
    (tmp_path / "collections/templates").symlink_to("../templates")
    assert recorded("open('collections/templates/a.j2'); open('templates/a.j2')") == {"templates/a.j2"}


def test_the_recorder_sees_what_ansible_and_its_workers_open(recorded: Callable[..., set[str]], tmp_path: Path) -> None:
    module = "from ansible.module_utils.basic import AnsibleModule as M\nfrom ansible.module_utils.packed import X\nM({}).exit_json(x=X)\n"
    more = {"library/own.py": module, "module_utils/packed.py": "X = 1\n", "included.yml": "- ansible.builtin.include_vars: vars/a.yml\n"}
    tasks = "[{own: {}}, {ansible.builtin.template: {src: a.j2, dest: .cache/a}}, {ansible.builtin.include_tasks: included.yml}]"
    more |= {"vars/a.yml": "a: 1\n", "play.yml": f"- {{hosts: localhost, gather_facts: false, tasks: {tasks}}}\n"}
    for name, text in more.items():
        put(tmp_path / name, text)
    playbook = Path(sys.executable).with_name("ansible-playbook")
    found = recorded(
        f"import subprocess; subprocess.run([{str(playbook)!r}, '-i', 'localhost,', '-c', 'local', 'play.yml'], check=True)",
        ANSIBLE_PYTHON_INTERPRETER=sys.executable,
        ANSIBLE_LIBRARY=str(tmp_path / "library"),
        ANSIBLE_MODULE_UTILS=str(tmp_path / "module_utils"),
    )
    assert found >= {*more, "templates/a.j2"}


def test_the_recorder_disturbs_no_program(recorded: Callable[..., set[str]], tmp_path: Path) -> None:
    closing = "import os; os.closerange(3, 100); open('templates/a.j2'); open('/dev/null'); open(os.devnull, 'w').write('x')"
    assert recorded(closing) == {"templates/a.j2"}
    assert recorded("open('shared.py')", MUSTER_RECORD_FILE=str(tmp_path / "no/such/folder")) == {"templates/a.j2"}
    put(tmp_path / "hidden/sitecustomize.py", "import sys\nsys.hidden = 1\n")
    recorded("import sys; assert sys.hidden == 1", PYTHONPATH=f"{RECORDER}:{tmp_path}/hidden")

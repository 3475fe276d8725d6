# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Records which files of a checkout a Python process opens, imports or starts: each once, one path a line.

`tests/proofs.py` puts this folder on PYTHONPATH of a proof's command, so that every Python below it loads this file when it starts.
MUSTER_RECORD_ROOT is the checkout, MUSTER_RECORD_FILE the file that all processes append to. The observed program must not notice: an error
here is swallowed, and the file is opened for each line because a descriptor that stays open may be closed and reused by the program.
"""


def _observe():  # its names stay out of the module, which an existing sitecustomize shares
    import os
    import re
    import sys

    file, root = os.environ.get("MUSTER_RECORD_FILE"), os.environ.get("MUSTER_RECORD_ROOT")
    if not file or not root:
        return
    root = os.path.realpath(root) + os.sep
    ignored = (root + ".venv", root + ".cache" + os.sep, root + ".git" + os.sep)  # all that git ignores is left out later
    asked, written = {file}, set()
    compiled = re.compile(r"__pycache__/([^/]+?)\.cpython-[^/]*\.pyc$")
    words = re.compile(r"[^\s'\"=;&|()<>,@]+")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC

    def note(path, folder=None):
        path = os.fsdecode(path)
        if os.path.isabs(path):
            if path in asked:
                return
            asked.add(path)
        full = os.path.join(os.getcwd(), os.fsdecode(folder or ""), path)
        if not full.startswith(root) or full.startswith(ignored):
            return
        real = compiled.sub(r"\1.py", os.path.realpath(full))
        if real in written or not real.startswith(root) or not os.path.isfile(real):
            return
        written.add(real)
        descriptor = os.open(file, flags, 0o600)
        try:
            os.write(descriptor, real.encode("utf-8", "surrogateescape") + b"\n")
        finally:
            os.close(descriptor)

    def note_words(argv, folder=None):
        for word in [argv] if isinstance(argv, (str, bytes, os.PathLike)) else argv:
            # A path may stand within a word: --inventory=PATH, or in a shell's command line.
            for part in words.findall(os.fsdecode(word)[:4096]):
                if "/" in part or "." in part:
                    note(part, folder)

    def opened(path, *_):
        if not isinstance(path, int):
            note(path)

    def started(program, argv, folder=None, *_):
        if program:
            note(program, folder)
        note_words(argv, folder)

    handlers = {
        "open": opened,
        "subprocess.Popen": started,
        "os.exec": lambda program, argv, env: started(program, argv),
        "os.posix_spawn": lambda program, argv, env: started(program, argv),
        "os.system": note_words,
        "cpython.run_file": note,
    }

    def hook(event, values):
        handler = handlers.get(event)
        if handler:
            try:  # noqa: SIM105
                handler(*values)
            except Exception:  # a signal that arrives here raises for the program: Ctrl-C and Ansible's time-outs are no Exception
                pass

    sys.addaudithook(hook)


def _load_hidden():
    """Run the sitecustomize that this one hides, if there is one."""
    import importlib.machinery
    import os
    import sys

    here = os.path.dirname(os.path.realpath(__file__))
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.realpath(path) != here])
    if spec and spec.loader and spec.origin:
        with open(spec.origin, "rb") as source:
            exec(compile(source.read(), spec.origin, "exec"), {**globals(), "__file__": spec.origin})


try:  # noqa: SIM105 - without an import that each Python would pay for
    _observe()
except Exception:
    pass
_load_hidden()

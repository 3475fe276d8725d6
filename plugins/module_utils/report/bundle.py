# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collects what a person needs to see of a failing fleet to help remotely, without secrets.

Only what is named here is collected, and the values of known secrets are removed from it.
"""

from __future__ import annotations

import concurrent.futures
import glob
import io
import json
import os
import re
import subprocess
import tarfile
import time
from typing import Iterable

SCHEMA = "muster.bundle/1"
SECRET = b"[secret]"
# Logs are read from their end, so that the bundle is small enough to send.
LOG_BYTES = 2 << 20
UNITS = ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sackd", "slurmrestd", "sssd")
# {name: argv}. Processes are listed without arguments, which may have secrets that a user typed.
COMMANDS = {
    "date": ["date", "--utc", "--iso-8601=seconds"],
    "uptime": ["uptime"],
    "uname": ["uname", "-a"],
    "memory": ["free", "-m"],
    "disks": ["df", "-hT"],
    "inodes": ["df", "-i"],
    "mounts": ["findmnt", "--df"],
    "addresses": ["ip", "-brief", "address"],
    "clock": ["timedatectl"],
    "processes": ["ps", "-eo", "pid,ppid,user,lstart,stat,pcpu,rss,comm"],
    "units-failed": ["systemctl", "--failed", "--no-pager"],
    "units": ["systemctl", "status", "--no-pager", "--lines=0", *UNITS],
    "packages": ["dpkg-query", "-W", "slurm*", "munge", "libmunge2", "libpmix*", "mariadb-server*"],
    "munge-files": ["ls", "-la", "/etc/munge", "/run/munge"],
    "munge-local": ["sh", "-c", "munge -n | unmunge | grep -v '^TTL'"],
    "slurmd-hardware": ["slurmd", "-C"],
    **{
        "journal-" + unit: ["journalctl", "--no-pager", "--output=short-iso", "--since=-2days", "--lines=3000", "-u", unit]
        for unit in UNITS
    },
}
# Only one controller runs these.
CLUSTER = {
    "scontrol-ping": ["scontrol", "ping"],
    "scontrol-config": ["scontrol", "show", "config"],
    "scontrol-nodes": ["scontrol", "show", "nodes"],
    "scontrol-jobs": ["scontrol", "show", "jobs"],
    "scontrol-partitions": ["scontrol", "show", "partitions"],
    "sinfo": ["sinfo", "--all", "--Node", "--long"],
    "sinfo-reasons": ["sinfo", "--all", "--list-reasons"],
    "squeue": ["squeue", "--all", "--long"],
    "sdiag": ["sdiag"],
    "sacct": ["sacct", "--allusers", "--duplicates", "--starttime=now-1days"],
    "sacctmgr-cluster": ["sacctmgr", "--noheader", "--parsable2", "show", "cluster"],
}
FILES = (
    "/etc/muster/manifest.json",
    "/etc/slurm/*.conf",
    "/etc/slurm/*.yaml",
    "/etc/slurm/*.json",
    "/etc/slurm/*.sh",
    "/var/lib/slurm/slurmd/conf-cache/*.conf",
    "/run/slurm/conf/*.conf",
    "/etc/default/slurm*",
    "/etc/default/sackd",
    "/etc/systemd/system/*slurm*.d/*.conf",
    "/etc/mysql/mariadb.conf.d/60-muster*.cnf",
    "/etc/hosts",
    "/etc/os-release",
    "/var/log/slurm/*.log",
    "/var/log/munge/munged.log",
)
# Files whose content is a secret.
KEYS = ("/etc/munge/munge.key*", "/etc/slurm/*.key", "/etc/slurm/*.jwks", "/var/lib/slurm/slurmctld/*.key", "/etc/ssh/ssh_host_*_key")
# Names whose values are secrets; `tokens` counts what a model has read. The value may be quoted; ps and logs also show --password=….
WORDS = (
    rb"pass|passwd|password|passphrase|pwd|pw|token|auth_?tok|credentials?|(?:api|access|private|secret|auth|routing)[_-]?key|secret[\w.-]*"
)
NAME = rb"[\w.-]{0,64}(?:" + WORDS + rb")"
MARK = rb"""\\*["']?"""  # a quote, which JSON inside JSON escapes
QUOTED = rb"""\\+"[^\n]*?\\+"|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
VALUE = rb"(" + QUOTED + rb"""|[^\s,;"']+)"""
ASSIGNED = re.compile(rb"(?i)(" + NAME + MARK + rb"\s*[=:]\s*)" + VALUE)
# Two fields, as the environment has in Kubernetes and Batch: {"name": "API_KEY", "value": "…"}, or two lines of YAML.
FIELD = rb"(\b\w{0,32}(?:name|key)" + MARK + rb"\s*:\s*" + MARK + NAME + MARK
IN_ROW = re.compile(rb"(?i)" + FIELD + rb"\s*,\s*" + MARK + rb"\w{0,32}value" + MARK + rb"\s*:\s*)(?:" + QUOTED + rb"""|[^\s,}"']+)""")
IN_LINES = re.compile(rb"(?i)" + FIELD + rb"[ \t]*\n[ \t]*" + MARK + rb"\w{0,32}value" + MARK + rb"[ \t]*:[ \t]*)\S[^\n]*")
VALUE_FIRST = re.compile(
    rb"(?i)(\b\w{0,32}value" + MARK + rb"\s*:\s*)(?:" + QUOTED + rb"|\S[^\n,]*)"
    rb"(\s*[,\n]\s*" + MARK + rb"\w{0,32}(?:name|key)" + MARK + rb"\s*:\s*" + MARK + NAME + MARK + rb"\s*(?:[,}\n]|\Z))"
)
# curl -u user:…, and a line of .netrc.
PAIR = rb"""("[^":\n]*:[^"\n]*"|'[^':\n]*:[^'\n]*'|[^\s,;"':]+:[^\s"']+)"""
CURL = re.compile(rb"""(\bcurl\b[^\n]*?["'\s](?:-[a-zA-Z]{0,8}[uU]|--user|--proxy-user)["']?[\s,=]*)""" + PAIR)
NETRC = re.compile(rb"(?i)(\b(?:machine\s+\S+\s+|default\s+(?=login))(?:(?:login|account)\s+\S+\s+)*password\s+)" + VALUE)
WEBHOOK = re.compile(rb"""(?i)(\bhooks\.slack\.com/(?:services|workflows|triggers)/)[^\s"'<>)]+""")
OPTION = re.compile(rb"(?i)(--" + NAME + MARK + rb",?\s+)" + VALUE)
# Of HTTP headers: Authorization: Bearer ….
HEADER = re.compile(rb"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}")
# Tokens of Hugging Face, GitHub, GitLab, Slack, NVIDIA and Docker have these beginnings.
TOKEN = re.compile(rb"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|xapp-|nvapi-|dckr_pat_)[\w-]{16,}")
PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
JWT = re.compile(rb"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]{4,}")
IN_URL = re.compile(rb"(\w://[^\s:/@]*:)[^\s@/]+(@)")


def known_secrets(paths: Iterable[str]) -> list[bytes]:
    """The secrets in these files: each whole content, and each longer line of it."""
    found = set()
    for path in paths:
        try:
            with open(path, "rb") as handle:
                content = handle.read(1 << 20)
        except OSError:
            continue
        found |= {part for part in [content, content.strip(), *content.splitlines()] if len(part) >= 8 and not part.startswith(b"-----")}
    # The longest first: removing a shorter secret from the middle of a longer one would leave the rest of that one.
    return sorted(found, key=lambda part: (-len(part), part))


def scrub(content: bytes, secrets: Iterable[bytes] = ()) -> bytes:
    """The content without known secrets and without text that looks like one."""
    for secret in secrets:
        content = content.replace(secret, SECRET)
    content = PRIVATE.sub(SECRET, content)
    content = JWT.sub(SECRET, content)
    content = IN_URL.sub(rb"\1" + SECRET + rb"\2", content)
    content = TOKEN.sub(SECRET, content)
    content = VALUE_FIRST.sub(rb"\1" + SECRET + rb"\2", content)
    # CURL stands twice for a command with a user of its own and one of its proxy.
    for pattern in (HEADER, IN_ROW, IN_LINES, CURL, CURL, NETRC, WEBHOOK, OPTION, ASSIGNED):
        content = pattern.sub(rb"\1" + SECRET, content)
    return content


def tail(path: str) -> bytes:
    """The last LOG_BYTES of a file, or why it cannot be read."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - LOG_BYTES))
            return handle.read()
    except OSError as error:
        return ("cannot be read: %s\n" % error.strerror).encode()


def ask(argv: list[str], timeout: float) -> bytes:
    """The output of a command, and how it ended when it failed. It never raises, because it is used on failing fleets."""
    try:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        return (expired.output or b"") + ("\n[no answer within %d s]\n" % timeout).encode()
    except OSError as error:
        return ("[%s: %s]\n" % (argv[0], error.strerror)).encode()
    return done.stdout + (("\n[ended with %d]\n" % done.returncode).encode() if done.returncode else b"")


def collect(cluster: bool, timeout: float) -> dict[str, bytes]:
    """{name in the bundle: content} of this node."""
    secrets = known_secrets(path for pattern in KEYS for path in glob.glob(pattern))
    commands = {**COMMANDS, **(CLUSTER if cluster else {})}
    # Run them in parallel, because each waits for its timeout when the controller is gone.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = dict(zip(commands, pool.map(lambda argv: ask(argv, timeout), commands.values())))
    found = {"commands/%s.txt" % name: scrub(text, secrets) for name, text in answers.items()}
    for path in sorted({path for pattern in FILES for path in glob.glob(pattern) if os.path.isfile(path)}):
        found["files" + path] = scrub(tail(path), secrets)
    return found


def write(path: str, contents: dict[str, bytes], top: str = "") -> None:
    """Write {name: content} as a compressed tar that only its owner can read."""
    now = int(time.time())
    temporary = path + ".part"
    raw = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(raw, "wb") as handle, tarfile.open(fileobj=handle, mode="w:gz", compresslevel=6) as tar:
            for name, content in sorted(contents.items()):
                member = tarfile.TarInfo(os.path.join(top, name))
                member.size, member.mtime, member.mode = len(content), now, 0o600
                tar.addfile(member, io.BytesIO(content))
    except BaseException:
        os.unlink(temporary)  # a full disk has no room for a part
        raise
    os.replace(temporary, path)


def read(path: str) -> dict[str, bytes]:
    """{name: content} of a tar from write()."""
    with tarfile.open(path, "r:gz") as tar:
        return {member.name: source.read() for member in tar for source in [tar.extractfile(member)] if source is not None}


def join(
    folder: str, hosts: list[str], unreachable: dict[str, str], *, run: str, secrets_dir: str, facts: dict[str, str]
) -> dict[str, bytes]:
    """{name: content} of the whole bundle.

    folder has HOST.tar.gz of each node that answered; unreachable: {host: why}; run: the newest run folder, "" for none; secrets_dir: the
    folder of the fleet's secrets, whose values are removed from everything, because a node may not have recognised them.
    """
    secrets = known_secrets(os.path.join(base, name) for base, _folders, names in os.walk(secrets_dir) for name in names)
    contents: dict[str, bytes] = {}
    nodes: dict[str, str] = {}
    for host in hosts:
        try:
            collected = read(os.path.join(folder, host + ".tar.gz"))
        except (OSError, tarfile.TarError, EOFError) as error:
            nodes[host] = unreachable.get(host) or "nothing collected (%s)" % error
            continue
        nodes[host] = "collected"
        contents.update({"%s/%s" % (host, name): scrub(content, secrets) for name, content in collected.items()})
    if run:
        for base, _folders, names in os.walk(run):
            for name in names:
                path = os.path.join(base, name)
                contents[os.path.join("run", os.path.relpath(path, run))] = scrub(tail(path), secrets)
    document = {"schema": SCHEMA, **facts, "run": os.path.basename(run), "nodes": nodes}
    contents["bundle.json"] = (json.dumps(document, indent=1) + "\n").encode()
    return contents

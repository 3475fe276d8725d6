# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One archive with everything that a Slurm controller must not lose, and the faults that forbid restoring it.

The archive is a tar of manifest.json (muster.slurm_backup/1, always first) and the parts that it names with size and sha256: a dump of the
accounting database, StateSaveLocation, and /etc/slurm. The munge key is in none of them, only the path of its original.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.slurm.upgrade import accepted, listed

SCHEMA = "muster.slurm_backup/1"
DATABASE, STATE, CONFIG = "database.sql.gz", "state.tar.gz", "config.tar.gz"
PARTS = (DATABASE, STATE, CONFIG)
# A restore moves the old state here, within StateSaveLocation; backups leave it out.
REPLACED = ".muster-replaced"
# Jobs of Muster's own checks. A new controller has run them, and nobody misses them.
OWN_JOBS = ("muster-verify", "muster-check")


class BackupError(Exception):
    """A backup or restore cannot be done; the text is one sentence for the user."""


def release(text):
    """`24.11.5` -> (24, 11): all versions of a release read each other's files."""
    match = re.search(r"(\d+)\.(\d+)", text)
    if not match:
        raise BackupError("%r is no version of Slurm; is the package whole?" % text.strip()[:80])
    return int(match[1]), int(match[2])


def conf_values(text):
    """`Key=Value` lines of slurm.conf or slurmdbd.conf -> {key in lower case: value}; the first line of a key counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.split("#", 1)[0].partition("=")
        if equals:
            found.setdefault(key.strip().lower(), value.strip())
    return found


def client_options(dbd):
    """The [client] section with which MariaDB's tools reach the database of slurmdbd.conf; "" where root uses the socket.

    It holds the password, so it goes into a file that only root reads, and never on a command line.
    """
    host = dbd.get("storagehost", "localhost")
    if host in ("localhost", "127.0.0.1", "::1") and not dbd.get("storagepass"):
        return ""
    lines = ["[client]", "host=%s" % host]
    for key, option in (("storageport", "port"), ("storageuser", "user"), ("storagepass", "password")):
        if dbd.get(key):
            lines.append('%s="%s"' % (option, dbd[key].replace("\\", "\\\\").replace('"', '\\"')))
    for part in dbd.get("storageparameters", "").split(","):
        key, _equals, value = part.partition("=")
        if key.strip().upper() in ("SSL_CA", "SSL_CERT", "SSL_KEY"):
            lines.append("%s=%s" % (key.strip().lower().replace("_", "-"), value.strip()))
    return "\n".join(lines) + "\n"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write(archive, parts, facts):
    """Join {part name: path} and the manifest's facts to `archive` (0600); return the manifest. The file appears only when it is whole."""
    manifest = {
        "schema": SCHEMA,
        **facts,
        "parts": {name: {"sha256": sha256_of(path), "bytes": os.path.getsize(path)} for name, path in sorted(parts.items())},
    }
    text = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    temporary = archive + ".part"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as handle:
        with tarfile.open(fileobj=handle, mode="w") as tar:
            head = tarfile.TarInfo("manifest.json")
            head.size, head.mode = len(text), 0o600
            tar.addfile(head, io.BytesIO(text))
            for name, path in sorted(parts.items()):
                tar.add(path, arcname=name, recursive=False)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, archive)
    return manifest


def read(archive, folder=None):
    """The manifest of an archive whose parts are all there and undamaged; with `folder`, each part is written there.

    BackupError for anything that is not such an archive.
    """
    name = os.path.basename(archive)
    damaged = "The backup %s is damaged (%s); take another one."
    try:
        with tarfile.open(archive, "r:") as tar:
            first = tar.next()
            if first is None or first.name != "manifest.json":
                raise BackupError("%s is no backup of Slurm by Muster; name a file that slurm_backup.yml wrote." % name)
            manifest = _manifest(tar, first, name)
            wanted: dict[str, dict[str, Any]] = dict(manifest["parts"])
            for part in iter(tar.next, None):
                entry = wanted.pop(part.name, None) if part.name in PARTS else None
                source = tar.extractfile(part) if part.isfile() else None
                if entry is None or source is None:
                    raise BackupError(damaged % (name, "it holds %s, which its manifest does not name" % part.name))
                digest, size = _copy(source, os.path.join(folder, part.name) if folder else os.devnull)
                if size != entry["bytes"] or digest != entry["sha256"]:
                    raise BackupError(damaged % (name, "the sha256 of %s is not the one of its manifest" % part.name))
    except OSError as error:
        raise BackupError("The backup %s cannot be read: %s." % (archive, error.strerror or error)) from error
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(damaged % (name, "%s: %s" % (type(error).__name__, error))) from error
    missing = sorted(set(wanted) | (set(PARTS) - set(manifest["parts"])))
    if missing:
        raise BackupError("The backup %s is not whole, %s is missing; take another one." % (name, " and ".join(missing)))
    return manifest


def _manifest(tar, member, name):
    manifest = json.loads(tar.extractfile(member).read())
    if manifest.get("schema") != SCHEMA:
        raise BackupError("The backup %s is of schema %s, and this Muster reads %s." % (name, manifest.get("schema"), SCHEMA))
    for key in ("taken", "slurm", "cluster", "database_schema", "parts"):
        manifest[key]
    return manifest


def _copy(source, path):
    digest, size = hashlib.sha256(), 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
            size += len(block)
            target.write(block)
    return digest.hexdigest(), size


def pack(folder, path):
    """Pack all files below `folder` into a compressed tar at `path`; return their names, sorted."""
    names = []
    raw = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(raw, "wb") as handle, tarfile.open(fileobj=handle, mode="w:gz", compresslevel=3) as tar:
        for base, folders, files in os.walk(folder):
            folders[:] = sorted(name for name in folders if name != REPLACED)
            for name in folders + sorted(files):
                whole = os.path.join(base, name)
                if os.path.islink(whole) or os.path.isfile(whole) or os.path.isdir(whole):
                    inner = os.path.relpath(whole, folder)
                    tar.add(whole, arcname=inner, recursive=False)
                    names.append(inner)
    return sorted(names)


def unpack(path, folder, identify, overwrite=True):
    """Write the files of pack() below `folder`; return the names. identify(user, group) -> (uid, gid) on this host.

    Existing files stay unless `overwrite`. Links are made as they were. A name that leads out of the folder, also through a link,
    is refused before anything is written.
    """
    written = []
    with tarfile.open(path, "r:gz") as tar:
        links: set[str] = set()
        for member in tar:
            _refuse_outside(member, folder, links)
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            target = os.path.join(folder, member.name)
            if os.path.lexists(target) and (member.isdir() or not overwrite):
                continue
            uid, gid = identify(member.uname, member.gname)
            if member.isdir():
                os.mkdir(target, 0o700)
            else:
                if os.path.lexists(target):
                    os.unlink(target)
                if member.issym():
                    os.symlink(member.linkname, target)
                    continue
                source = tar.extractfile(member)
                if source is not None:
                    _copy(source, target)
            os.chown(target, uid, gid)
            os.chmod(target, member.mode & 0o7777)
            written.append(member.name)
    return written


def _refuse_outside(member, folder, links):
    """Refuse a member that would be written outside of `folder`; `links` collects the links of the archive."""
    parts = member.name.split("/")
    above = ["/".join(parts[:number]) for number in range(1, len(parts))]
    if (
        member.name.startswith("/")
        or ".." in parts
        or links.intersection(above)
        or not (member.isfile() or member.isdir() or member.issym())
    ):
        raise BackupError("The backup holds %s, which is no file of that folder; it was not made by Muster." % member.name)
    for each in above:
        if os.path.islink(os.path.join(folder, each)):
            raise BackupError(
                "%s is a link on this host and a folder in the backup; move the link away and restore again." % os.path.join(folder, each)
            )
    if member.issym():
        links.add(member.name)


def forget_aside(folder):
    """Remove the state that an earlier restore kept."""
    shutil.rmtree(os.path.join(folder, REPLACED), ignore_errors=True)


def put_aside(folder):
    """Move all that is in StateSaveLocation below its REPLACED; within the folder, because it may be a mount of its own."""
    aside = os.path.join(folder, REPLACED)
    os.makedirs(aside, 0o700, exist_ok=True)
    for name in os.listdir(folder):
        if name != REPLACED:
            os.rename(os.path.join(folder, name), os.path.join(aside, name))


def empty(folder):
    """Empty StateSaveLocation except for the kept state."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name != REPLACED:
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def compress(source, path, begun):
    """Copy a stream of SQL to a .gz; call begun() at the first table, because from there on the dump is a snapshot of one moment."""
    tail, called = b"", False
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(number, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3) as packed:
        for block in iter(lambda: source.read1(1 << 20), b""):
            packed.write(block)
            if not called and b"CREATE TABLE" in tail + block:
                called = True
                begun()
            tail = (tail + block)[-12:]
    return called


def decompress(path, target):
    """Write the SQL of a .gz to a stream; BackupError when it ends too early."""
    try:
        with gzip.open(path, "rb") as packed:
            shutil.copyfileobj(packed, target, 1 << 20)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BackupError("The dump in the backup is damaged (%s); take another one." % error) from error


def _begin(argv, stream) -> Any:
    """A running command with this stream, stdin or stdout, and its error output as pipes."""
    pipes: Any = {stream: subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(argv, **pipes)


def dump(argv, path, begun):
    """Run a command that prints SQL into a .gz, see compress; BackupError when it fails."""
    with _begin(argv, "stdout") as running:
        compress(running.stdout, path, begun)
        said = running.stderr.read().decode(errors="replace").strip()
    if running.returncode != 0:
        raise BackupError("%s failed: %s" % (argv[0], said or "it ended with %d" % running.returncode))


def load(argv, path):
    """Run a command that reads the SQL of a .gz; BackupError when it fails."""
    with _begin(argv, "stdin") as running:
        try:
            decompress(path, running.stdin)
            running.stdin.close()
        except BrokenPipeError:
            pass
        said = running.stderr.read().decode(errors="replace").strip()
    if running.returncode != 0:
        raise BackupError("MariaDB refused the dump, nothing was replaced: %s" % said)


def when(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def objections(manifest, *, cluster, installed, live, force):
    """The faults that forbid a restore on this host, a sentence each.

    installed: the installed version, "" when there is none yet. live: {} without a database, or
    {schema, clusters, newest: when the latest job there was submitted, started or ended}.
    """
    if manifest["cluster"] != cluster:
        return [
            "The backup is of cluster %s and this fleet is %s; name a backup of its own or set slurm_cluster_name."
            % (manifest["cluster"], cluster)
        ]
    if installed and release(manifest["slurm"]) > release(installed):
        return [
            "The backup was made by Slurm %s and %s is installed, which cannot read it; install %d.%02d or newer first."
            % (manifest["slurm"], installed, *release(manifest["slurm"]))
        ]
    made, here = ("%d.%02d" % release(text) for text in (manifest["slurm"], installed or manifest["slurm"]))
    if made != here and made not in accepted(here):
        return [
            "The backup was made by Slurm %s and %s is installed, which reads only %s; install %s for the restore and upgrade after it."
            % (manifest["slurm"], installed, listed([here, *accepted(here)]), made)
        ]
    if not live or force:
        return []
    found = []
    if live["schema"] > manifest["database_schema"]:
        found.append(
            "the database has schema %d and the backup the older %d, of before an upgrade" % (live["schema"], manifest["database_schema"])
        )
    if live["newest"] > manifest["taken"]:
        found.append("the database holds jobs up to %s, the backup is of %s" % (when(live["newest"]), when(manifest["taken"])))
    foreign = sorted(set(live["clusters"]) - set(manifest.get("clusters") or [manifest["cluster"]]))
    if foreign:
        found.append("the database serves cluster %s as well, which the backup does not know" % ", ".join(foreign))
    text = "The database is newer than the backup: %s; set muster_restore_force=true to put it aside all the same."
    return [text % " and ".join(found)] if found else []

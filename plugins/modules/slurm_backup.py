#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_backup
short_description: Back up a Slurm controller into one archive, or restore it
version_added: 0.2.0
description:
  - V(created) stops slurmctld, copies StateSaveLocation and C(/etc/slurm), lets C(mariadb-dump --single-transaction) take its snapshot and
    starts slurmctld again. Jobs run on meanwhile. The dump goes on after that, so that the pause does not grow with the history.
  - V(checked) reads an archive and verifies every part; it needs no Slurm.
  - V(restored) puts an archive back on a controller whose slurmctld and slurmdbd are stopped by it, and starts neither of them. What was
    there is put aside, the database under a name that ends in C(_replaced). Files of C(/etc/slurm) that exist are left alone, because they
    follow from the inventory.
  - Nothing is changed when the archive is damaged or incomplete, belongs to another cluster, was made by a newer Slurm or by one too old
    to be read, or is older than the database it would replace.
author:
  - The Muster developers (@muster-fleet)
options:
  state:
    description: What to do.
    type: str
    choices: [created, checked, restored]
    required: true
  path:
    description: The archive.
    type: path
    required: true
  cluster:
    description: ClusterName that the archive must have.
    type: str
  munge_key:
    description: Path of the munge key's original on the Ansible controller, which is named in the manifest and not copied.
    type: str
    default: ""
  force:
    description: Whether to replace a database that is newer than the backup.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reports whether the archive would be restored, as far as that is known without starting a daemon.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Back up
  muster.fleet.slurm_backup:
    state: created
    path: /var/backups/slurm.tar

- name: Restore
  muster.fleet.slurm_backup:
    state: restored
    path: /var/backups/slurm.tar
    cluster: trainium
"""

RETURN = r"""
manifest:
  description: The archive's manifest.
  returned: success
  type: dict
  sample: {schema: muster.slurm_backup/1, cluster: trainium, slurm: 24.11.5, taken: 1795000000}
pause_s:
  description: Seconds for which slurmctld was stopped.
  returned: when O(state=created)
  type: float
"""

import grp
import os
import pwd
import shutil
import subprocess
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.basics import read_text
from ansible_collections.muster.fleet.plugins.module_utils.slurm import backup as logic

CONF = "/etc/slurm"
MARKER = "/var/lib/slurm/muster-restore"


class Host:
    """The controller: its files, units and database."""

    def __init__(self, module, folder):
        self.module, self.folder = module, folder
        self.conf, self.dbd = {}, {}

    def run(self, *argv, what, check=True):
        rc, out, err = self.module.run_command(list(argv))
        if rc != 0 and check:
            raise logic.BackupError("%s: %s" % (what, (err or out).strip() or "%s ended with %d" % (argv[0], rc)))
        return out if rc == 0 else ""

    def read_conf(self, name, folder=CONF):
        return logic.conf_values(read_text(os.path.join(folder, name), ""))

    def state_folder(self):
        return self.conf.get("statesavelocation", "/var/lib/slurm/slurmctld")

    def active(self, unit):
        return subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0

    def installed(self):
        path = shutil.which("slurmctld", path="/usr/sbin:/usr/bin:/opt/slurm/sbin:" + os.environ.get("PATH", ""))
        # slurm 24.11.5, or slurm-wlm 24.11.5 from Debian
        return self.run(path, "-V", what="slurmctld does not start").split()[-1] if path else ""

    def client(self, program):
        """The argv of a tool of MariaDB for the database of slurmdbd.conf."""
        options = logic.client_options(self.dbd)
        if not options:
            return [program]
        path = os.path.join(self.folder, "client.cnf")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as handle:
            handle.write(options)
        return [program, "--defaults-extra-file=" + path]

    def local_database(self):
        return not logic.client_options(self.dbd)

    def sql(self, text):
        what = "The accounting database does not answer"
        out = self.run(*self.client("mariadb"), "--batch", "--skip-column-names", "--execute", text, what=what)
        return [line.split("\t") for line in out.splitlines()]

    def database(self):
        return self.dbd.get("storageloc", "slurm_acct_db")

    def live(self):
        """The facts of the database that objections() needs; {} without a database."""
        name = self.database()
        tables = {row[0] for row in self.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = '%s'" % name)}
        if not {"convert_version_table", "cluster_table"} <= tables:
            return {}
        schema = int(self.sql("SELECT MAX(version) FROM `%s`.convert_version_table" % name)[0][0])
        clusters = [row[0] for row in self.sql("SELECT name FROM `%s`.cluster_table WHERE deleted = 0" % name)]
        newest = 0
        for cluster in clusters:
            if cluster + "_job_table" in tables:
                own = ", ".join("'%s'" % job for job in logic.OWN_JOBS)
                latest = "COALESCE(MAX(GREATEST(time_submit, time_start, time_end)), 0)"
                text = "SELECT %s FROM `%s`.`%s_job_table` WHERE job_name NOT IN (%s)" % (latest, name, cluster, own)
                newest = max(newest, int(self.sql(text)[0][0]))
        return {"schema": schema, "clusters": sorted(clusters), "newest": newest}


def create(host, path, munge_key):
    host.conf, host.dbd = host.read_conf("slurm.conf"), host.read_conf("slurmdbd.conf")
    if not host.conf or not host.dbd:
        raise logic.BackupError("There is no slurm.conf and slurmdbd.conf in %s; is this the controller, and was it configured?" % CONF)
    live = host.live()
    if not live:
        raise logic.BackupError("The database %s has no tables of slurmdbd; start slurmdbd and see its log." % host.database())
    parts = {name: os.path.join(host.folder, name) for name in logic.PARTS}
    was_active = host.active("slurmctld")
    begun, pause = time.monotonic(), []

    def go_on():
        # The dump has its snapshot, so later changes are in neither part.
        if was_active:
            host.run("systemctl", "start", "slurmctld", what="slurmctld does not start again")
        pause.append(time.monotonic() - begun)

    try:
        host.run("systemctl", "stop", "slurmctld", what="slurmctld does not stop")
        taken = int(time.time())
        names = logic.pack(host.state_folder(), parts[logic.STATE])
        if "job_state" not in names:
            raise logic.BackupError("%s holds no job_state; did slurmctld ever run with this StateSaveLocation?" % host.state_folder())
        logic.pack(CONF, parts[logic.CONFIG])
        argv = [*host.client("mariadb-dump"), "--single-transaction", "--quick", "--no-tablespaces", "--skip-triggers", host.database()]
        logic.dump(argv, parts[logic.DATABASE], go_on)
    finally:
        if not pause:
            go_on()
    facts = {
        "taken": taken,
        "date": logic.when(taken),
        "slurm": host.installed(),
        "cluster": host.conf.get("clustername", "").lower(),
        "clusters": live["clusters"],
        "database": host.database(),
        "database_schema": live["schema"],
        "newest_job": live["newest"],
        "munge_key": munge_key,
    }
    return logic.write(path, parts, facts), round(pause[0], 2)


def identify(user, group):
    # A file of an owner that this host does not have yet belongs to root until the configure phase corrects it.
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = 0
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        gid = 0
    return uid, gid


def load(host):
    """Load the dump into a database beside the live one, so that a load that fails half-way changes nothing."""
    beside = host.database() + "_restore"
    host.sql("DROP DATABASE IF EXISTS `%s`; CREATE DATABASE `%s`" % (beside, beside))
    try:
        logic.load([*host.client("mariadb"), beside], os.path.join(host.folder, logic.DATABASE))
    except BaseException:
        host.sql("DROP DATABASE IF EXISTS `%s`" % beside)
        raise
    return beside


def aside(host):
    return host.database() + "_replaced"


def tables(host, database):
    text = "SELECT table_name FROM information_schema.tables WHERE table_schema = '%s' AND table_type = 'BASE TABLE'"
    return [row[0] for row in host.sql(text % database)]


def swap(host, beside):
    """Swap the live tables for the loaded ones, in one statement that MariaDB runs as a whole or not at all."""
    name = host.database()
    host.sql("CREATE DATABASE IF NOT EXISTS `%s`; CREATE DATABASE IF NOT EXISTS `%s`" % (name, aside(host)))
    if tables(host, aside(host)):
        # An earlier run was interrupted after the swap, so the live database came from this archive.
        host.sql("".join("DROP TABLE `%s`.`%s`; " % (name, table) for table in tables(host, name)) or "SELECT 1")
    moves = ["`%s`.`%s` TO `%s`.`%s`" % (name, table, aside(host), table) for table in tables(host, name)]
    moves += ["`%s`.`%s` TO `%s`.`%s`" % (beside, table, name, table) for table in tables(host, beside)]
    host.sql("RENAME TABLE " + ", ".join(moves) + "; DROP DATABASE `%s`" % beside)


def mark(stage):
    """Record how far a restore came, for the next run after an interruption."""
    with open(MARKER, "w", encoding="utf-8") as handle:
        handle.write(stage)


def restore(module, host, path, cluster, force):
    manifest = logic.read(path, host.folder)
    archived = os.path.join(host.folder, "config")
    os.mkdir(archived, 0o700)
    logic.unpack(os.path.join(host.folder, logic.CONFIG), archived, lambda user, group: (0, 0))
    host.conf = host.read_conf("slurm.conf") or host.read_conf("slurm.conf", archived)
    host.dbd = host.read_conf("slurmdbd.conf") or host.read_conf("slurmdbd.conf", archived)
    local, begun = host.local_database(), False
    if local and not host.active("mariadb") and not module.check_mode:
        host.run("systemctl", "start", "mariadb", what="MariaDB does not start")
        begun = True
    # A new controller has no client before the install phase.
    reachable = shutil.which("mariadb") and (not local or host.active("mariadb"))
    found = logic.objections(
        manifest,
        cluster=cluster or manifest["cluster"],
        installed=host.installed(),
        live=host.live() if reachable else {},
        force=force,
    )
    if found:
        if begun:
            host.run("systemctl", "stop", "mariadb", what="MariaDB does not stop")
        raise logic.BackupError(found[0])
    if module.check_mode:
        return manifest
    if not host.installed():
        raise logic.BackupError("Slurm is not installed on this host; run the install phase of role slurm first.")
    beside = load(host)
    # From here on the host changes.
    for unit in ("slurmctld", "slurmdbd"):
        host.run("systemctl", "stop", unit, what="%s does not stop" % unit)
    state = host.state_folder()
    if not os.path.isdir(state):
        os.makedirs(state, 0o755)
        os.chown(state, *identify("slurm", "slurm"))
    stage = read_text(MARKER, "")
    if not stage:
        logic.forget_aside(state)
        host.sql("DROP DATABASE IF EXISTS `%s`" % aside(host))
        mark("putting aside")
    if stage != "putting back":
        logic.put_aside(state)
        mark("putting back")
    logic.empty(state)
    logic.unpack(os.path.join(host.folder, logic.STATE), state, identify)
    os.makedirs(CONF, 0o755, exist_ok=True)
    logic.unpack(os.path.join(host.folder, logic.CONFIG), CONF, identify, overwrite=False)
    swap(host, beside)
    os.unlink(MARKER)
    # A new controller had nothing to keep.
    if not tables(host, aside(host)):
        host.sql("DROP DATABASE `%s`" % aside(host))
    if not os.listdir(os.path.join(state, logic.REPLACED)):
        logic.forget_aside(state)
    return manifest


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["created", "checked", "restored"], "required": True},
            "path": {"type": "path", "required": True},
            "cluster": {"type": "str"},
            "munge_key": {"type": "str", "default": "", "no_log": False},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    # Not /tmp, which may be memory: a dump can be larger than that.
    folder = tempfile.mkdtemp(prefix="muster-backup-", dir="/var/tmp")
    host = Host(module, folder)
    result = {"changed": params["state"] != "checked"}
    try:
        if params["state"] == "checked":
            result["manifest"] = logic.read(params["path"])
        elif params["state"] == "created" and module.check_mode:
            result["manifest"] = {}
        elif params["state"] == "created":
            result["manifest"], result["pause_s"] = create(host, params["path"], params["munge_key"])
            # Ansible fetches the archive as its own user, who owns the folder.
            owner = os.stat(os.path.dirname(params["path"]))
            os.chown(params["path"], owner.st_uid, owner.st_gid)
        else:
            result["manifest"] = restore(module, host, params["path"], params["cluster"], params["force"])
    except logic.BackupError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="%s: %s; see that there is room and try again." % (error.filename or "A file", error.strerror))
    finally:
        shutil.rmtree(folder)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

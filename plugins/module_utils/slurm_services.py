# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands beside one slurmctld: a second one, a database elsewhere, and slurmrestd. Runs on the Ansible controller."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.slurm_conf import SlurmConfError

PASSWORD_FILE = "slurm_database_password"
# Where the role puts what slurmdbd needs to know and to show its database.
TLS_FILES = {
    "ca": "/etc/slurm/muster-database-ca.pem",
    "cert": "/etc/slurm/muster-database-cert.pem",
    "key": "/etc/slurm/muster-database-key.pem",
}


def value_of(config, key, default=""):
    """A key of slurm.conf as a site spells it."""
    return next((value for name, value in config.items() if name.lower() == key.lower()), default)


def check_controllers(controllers, config, database):
    """SlurmConfError when these controllers could not take over from each other."""
    state = str(value_of(config, "StateSaveLocation"))
    if len(controllers) > 1 and not state.startswith("/"):
        message = (
            "The controllers %s need one folder for their state; name one that all of them mount: "
            "slurm_config: {StateSaveLocation: /fsx/slurm/state}."
        )
        raise SlurmConfError(message % " and ".join(controllers))
    backup = value_of(config, "AccountingStorageBackupHost")
    if backup and not database:
        message = (
            "AccountingStorageBackupHost %s could not reach the database, which listens on %s alone; put it elsewhere with slurm_database."
        )
        raise SlurmConfError(message % (backup, controllers[0]))


def check_rest(rest):
    """SlurmConfError when slurmrestd could not listen there."""
    listen = str(rest.get("listen") or "")
    if rest and not re.fullmatch(r"unix:/\S+|[^\s:/]+:\d+|\[[0-9a-fA-F:]+\]:\d+", listen):
        message = "slurm_rest.listen is %r; give unix:/run/slurmrestd/slurmrestd.socket or ADDRESS:PORT such as 127.0.0.1:6820."
        raise SlurmConfError(message % listen)


def password(database, secrets, environ):
    """The password of slurm_database from where it is kept; SlurmConfError says how to give one."""
    name = database.get("password_env")
    path = Path(str(secrets)) / PASSWORD_FILE
    if name:
        found, where = environ.get(name, ""), "the environment variable %s" % name
    else:
        found, where = (path.read_text(encoding="utf-8").strip() if path.is_file() else ""), str(path)
    if not found:
        message = "slurm_database names the host %s, but %s holds no password; write it there%s."
        raise SlurmConfError(
            message % (database["host"], where, "" if name else " with mode 0600, or name a variable in slurm_database.password_env")
        )
    if re.search(r"[\s#\"'\\=]", found):
        raise SlurmConfError(
            "The password in %s has a character that slurmdbd.conf cannot hold (blank, quote, #, = or backslash); change it." % where
        )
    return found


def check_database(database, secrets, environ):
    """SlurmConfError when slurmdbd could not reach this database."""
    if not database:
        return
    if not database.get("host"):
        raise SlurmConfError(
            "slurm_database has no host; name the database server, or remove slurm_database for a database on the controller."
        )
    if database.get("tls", True) and not database.get("ca"):
        message = "slurm_database wants TLS to %s without a CA to know it by; name its file in slurm_database.ca, or say tls: false."
        raise SlurmConfError(message % database["host"])
    if bool(database.get("cert")) != bool(database.get("key")):
        raise SlurmConfError("slurm_database has only one of cert and key; give both or none.")
    for part in TLS_FILES:
        if database.get(part) and not os.path.isfile(str(database[part])):
            raise SlurmConfError("The file %s of slurm_database.%s is not there; correct the path." % (database[part], part))
    password(database, secrets, environ)


def database_keys(database, secrets, environ):
    """slurmdbd.conf's keys for a database elsewhere; {} when there is none. Holds the password."""
    check_database(database, secrets, environ)
    if not database:
        return {}
    keys = {
        "StorageHost": database["host"],
        "StoragePort": database.get("port") or 3306,
        "StorageUser": database.get("user") or "slurm",
        "StorageLoc": database.get("name") or "slurm_acct_db",
        "StoragePass": password(database, secrets, environ),
    }
    if database.get("tls", True):
        parts = ["SSL_%s=%s" % (part.upper(), path) for part, path in TLS_FILES.items() if database.get(part)]
        keys["StorageParameters"] = ",".join(parts)
    return keys


def refusals(controllers, config, database, rest, *, secrets, environ):
    """Sentences for what cannot be, before anything is done; the password is looked for and not kept."""
    said = []
    for check, values in (
        (check_controllers, (controllers, config, database)),
        (check_database, (database, secrets, environ)),
        (check_rest, (rest,)),
    ):
        try:
            check(*values)
        except SlurmConfError as error:
            said.append(str(error))
    return said

#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: config_files
short_description: Write a list of whole configuration files in one call
version_added: 0.1.0
description:
  - Writes the files whose content, owner or mode differ, all in one round trip to the node.
  - Checks each file that has C(validate) at a temporary path first. When one is refused, nothing is written.
  - O(validate_together) checks files that depend on each other together, on a copy of their folder with all changes.
author:
  - The Muster developers (@muster-fleet)
options:
  files:
    description: Files to write.
    type: list
    elements: dict
    required: true
    suboptions:
      dest:
        description: Path on the node. Missing folders are made with mode 0755.
        type: path
        required: true
      content:
        description: Whole content. Usually a template lookup. Not used with O(files[].state=absent).
        type: str
        default: ""
      owner:
        description: Owner, by name or number.
        type: str
        default: root
      group:
        description: Group, by name or number.
        type: str
        default: root
      mode:
        description: Mode as an octal string.
        type: str
        default: "0644"
      validate:
        description: Command as a list, with C(%s) for the path of the temporary file. A code other than 0 refuses the file.
        type: list
        elements: str
      edit:
        description:
          - For files that Muster does not own, instead of O(files[].content). A command as a list that prints the new file; an item C(%s)
            becomes the path of a copy of the present file. A code other than 0 refuses all files.
          - Owner and mode stay. A missing file stays missing.
        type: list
        elements: str
      apply:
        description:
          - Command as a list that activates the file, such as a reload of its daemon. It runs when the file changed, after all files
            are written; the same command of several files runs once.
          - When it fails, the files that have it get their old state back, so that the next run changes them again.
          - With an item C(%s), which becomes the path of a copy of the new file, it runs before any file is written. When it fails,
            nothing is written, and after a run that was killed in between the next run changes the file again.
        type: list
        elements: str
        version_added: 0.2.0
      state:
        description: Whether the file exists; V(directory) is a folder with this owner and mode and any content.
        type: str
        choices: [present, absent, directory]
        default: present
  secrets:
    description:
      - More files, whose contents are never shown, also not in the diff. They are written together with O(files).
      - Each is described like one of O(files), but only its owner may read it unless it has a mode.
    type: list
    elements: dict
    default: []
    version_added: 0.2.0
    suboptions:
      dest:
        description: As in O(files).
        type: path
        required: true
      content:
        description: As in O(files).
        type: str
        default: ""
      owner:
        description: As in O(files).
        type: str
        default: root
      group:
        description: As in O(files).
        type: str
        default: root
      mode:
        description: As in O(files).
        type: str
        default: "0600"
      validate:
        description: As in O(files).
        type: list
        elements: str
      edit:
        description: As in O(files).
        type: list
        elements: str
      apply:
        description: As in O(files).
        type: list
        elements: str
        version_added: 0.2.0
      state:
        description: As in O(files).
        type: str
        choices: [present, absent, directory]
        default: present
  validate_together:
    description:
      - Checks of whole folders. Each runs once when a file below its folder would change, before anything is written.
      - The output of a command that refuses is shown as the reason.
    type: list
    elements: dict
    default: []
    suboptions:
      folder:
        description: Folder on the node.
        type: path
        required: true
      argv:
        description:
          - Command as a list, with C(%s) for a copy of the folder in which O(files) are new and all other files are unchanged.
          - The command may change the copy, which is deleted afterwards. A code other than 0 refuses all files.
        type: list
        elements: str
        required: true
  show_diff:
    description: Whether contents may be shown in the diff. Set it to V(false) for secrets, together with C(no_log).
    type: bool
    default: true
attributes:
  check_mode:
    description: Reports the files that would change; validation also runs.
    support: full
  diff_mode:
    description: Shows each file before and after.
    support: full
"""

EXAMPLES = r"""
- name: configure | Write the configuration
  muster.fleet.config_files:
    files:
      - dest: /etc/slurm/slurm.conf
        content: "{{ lookup('ansible.builtin.template', 'slurm.conf.j2') }}"
      - dest: /etc/slurm/slurmdbd.conf
        content: "{{ lookup('ansible.builtin.template', 'slurmdbd.conf.j2') }}"
        owner: slurm
        group: slurm
        mode: "0600"
  register: slurm_files
  notify: Restart slurmctld
"""

RETURN = r"""
changed_files:
  description: Paths that changed, or would in check mode.
  returned: always
  type: list
  elements: str
"""

import grp
import os
import pwd
import shutil
import stat

from ansible.module_utils.basic import AnsibleModule

SPEC = {
    "dest": {"type": "path", "required": True},
    "content": {"type": "str", "default": ""},
    "owner": {"type": "str", "default": "root"},
    "group": {"type": "str", "default": "root"},
    "mode": {"type": "str", "default": "0644"},
    "validate": {"type": "list", "elements": "str"},
    "edit": {"type": "list", "elements": "str"},
    "apply": {"type": "list", "elements": "str"},
    "state": {"type": "str", "choices": ["present", "absent", "directory"], "default": "present"},
}
SECRET_SPEC = {**SPEC, "content": {"type": "str", "default": "", "no_log": True}, "mode": {"type": "str", "default": "0600"}}
FOLDER = None
TOGETHER_SPEC = {
    "folder": {"type": "path", "required": True},
    "argv": {"type": "list", "elements": "str", "required": True},
}


def current(path):
    """(content as bytes, uid, gid, mode) of a file, or None; a folder has FOLDER as content."""
    if not os.path.lexists(path):
        return None
    if not os.path.exists(path):
        # A dangling link counts as a file that differs, so that it is replaced or removed.
        return b"", -1, -1, 0
    info = os.stat(path)
    if stat.S_ISDIR(info.st_mode):
        return FOLDER, info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)
    with open(path, "rb") as handle:
        return handle.read(), info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)


def number(module, lookup, name, what):
    if name.isdigit():
        return int(name)
    try:
        return lookup(name)[2]
    except KeyError:
        # In check mode on a new node the package that creates the user is not installed yet.
        if module.check_mode:
            return -1
        module.fail_json(msg="The %s %s does not exist on this node; install the package that creates it first." % (what, name))


def wanted(module, spec):
    """The same tuple for the wanted file, or None for an absent one."""
    if spec["state"] == "absent":
        return None
    uid = number(module, pwd.getpwnam, spec["owner"], "user")
    gid = number(module, grp.getgrnam, spec["group"], "group")
    return FOLDER if spec["state"] == "directory" else spec["content"].encode(), uid, gid, int(spec["mode"], 8)


def edited(module, index, spec, have):
    """The same tuple for a file that the command of `edit` changes."""
    if have is None or not os.path.exists(spec["dest"]):
        return have
    staged = stage(module, index, have[0])
    rc, out, err = module.run_command([staged if part == "%s" else part for part in spec["edit"]], encoding=None)
    if rc != 0:
        message = "The file %s could not be edited, nothing was written: %s"
        module.fail_json(msg=message % (spec["dest"], (err or out).decode(errors="replace").strip()))
    return (out,) + have[1:]


def stage(module, index, content):
    path = os.path.join(module.tmpdir, "file-%d" % index)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as handle:
        handle.write(content)
    return path


def stage_folder(module, index, folder, pending):
    """A copy of a folder with all changes, also of owners and modes. Only root can open the folder above it, so secrets stay secret."""
    path = os.path.join(module.tmpdir, "folder-%d" % index)
    os.makedirs(path)
    for directory, _names, names in os.walk(folder):
        copied = os.path.join(path, os.path.relpath(directory, folder))
        os.makedirs(copied, exist_ok=True)
        same_rights(directory, copied)
        for name in names:
            source = os.path.join(directory, name)
            # Skip sockets and pipes, which would block; follow links.
            if os.path.isfile(source):
                shutil.copyfile(source, os.path.join(copied, name))
                same_rights(source, os.path.join(copied, name))
    for dest, want in pending:
        staged = os.path.join(path, os.path.relpath(dest, folder))
        if below(dest, folder) and (want or os.path.lexists(staged)):
            put(staged, want)
    return path


def same_rights(source, copied):
    info = os.stat(source)
    os.chown(copied, info.st_uid, info.st_gid)
    os.chmod(copied, stat.S_IMODE(info.st_mode))


def below(dest, folder):
    return os.path.normpath(dest).startswith(os.path.normpath(folder) + os.sep)


def put(dest, want):
    """Bring a file into its wanted state. It is replaced in one step, and others can never read it in between."""
    if want is None:
        os.unlink(dest)
        return
    content, uid, gid, mode = want
    if content is FOLDER:
        os.makedirs(dest, mode=0o755, exist_ok=True)
        os.chown(dest, uid, gid)
        os.chmod(dest, mode)
        return
    os.makedirs(os.path.dirname(dest), mode=0o755, exist_ok=True)
    temporary = os.path.join(os.path.dirname(dest), ".%s.muster-%d" % (os.path.basename(dest), os.getpid()))
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as handle:
            os.fchown(handle.fileno(), uid, gid)
            os.fchmod(handle.fileno(), mode)
            handle.write(content)
            os.fsync(handle.fileno())
        os.replace(temporary, dest)
    except OSError:
        os.unlink(temporary)
        raise


def text(state):
    return "" if state is None or state[0] is FOLDER else state[0].decode(errors="replace")


def attributes(state):
    return "absent" if state is None else "%s (owner %d, group %d, mode %04o)" % (("present",) + state[1:])


def main():
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True, "options": SPEC},
            "validate_together": {"type": "list", "elements": "dict", "default": [], "options": TOGETHER_SPEC},
            # The module's call goes to the node's journal, where no_log of a suboption hides no content of several lines.
            "secrets": {"type": "list", "elements": "dict", "default": [], "options": SECRET_SPEC, "no_log": True},
            "show_diff": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    # It would also hide the paths, owners and modes of these files in the answer, where only contents are secret.
    module.no_log_values = {line for spec in module.params["secrets"] for line in (spec["content"], spec["content"].strip()) if line}
    pending, diffs, before, applied = [], [], [], {}
    files = module.params["files"]
    for index, spec in enumerate(files + module.params["secrets"]):
        have = current(spec["dest"])
        if have and (have[0] is FOLDER) != (spec["state"] == "directory"):
            module.fail_json(
                msg="%s is %s on this node; move it elsewhere." % (spec["dest"], "a folder" if have[0] is FOLDER else "no folder")
            )
        want = edited(module, index, spec, have) if spec["edit"] else wanted(module, spec)
        if have == want:
            continue
        if want and spec["validate"]:
            staged = stage(module, index, want[0])
            rc, out, err = module.run_command([part.replace("%s", staged) for part in spec["validate"]])
            if rc != 0:
                message = "The new %s was refused by %s, nothing was written: %s"
                module.fail_json(msg=message % (spec["dest"], spec["validate"][0], (err or out).strip()))
        pending.append((spec["dest"], want))
        if spec["apply"] and "%s" in spec["apply"]:
            staged = stage(module, index, want[0] if want else b"")
            before.append((spec["dest"], [staged if part == "%s" else part for part in spec["apply"]]))
        elif spec["apply"]:
            applied.setdefault(tuple(spec["apply"]), []).append((spec["dest"], have))
        if module.params["show_diff"] and index < len(files):
            diffs.append(
                {
                    "before": text(have),
                    "after": text(want),
                    "before_header": "%s %s" % (spec["dest"], attributes(have)),
                    "after_header": "%s %s" % (spec["dest"], attributes(want)),
                }
            )
    for index, check in enumerate(module.params["validate_together"]):
        dests = [dest for dest, _want in pending if below(dest, check["folder"])]
        if not dests:
            continue
        staged = stage_folder(module, index, check["folder"], pending)
        rc, out, err = module.run_command([part.replace("%s", staged) for part in check["argv"]])
        if rc != 0:
            message = "The new %s refused, nothing was written: %s"
            names = ", ".join(os.path.basename(dest) for dest in dests) + (" was" if len(dests) == 1 else " were")
            module.fail_json(msg=message % (names, (err or out).strip()))
    if not module.check_mode:
        for dest, command in before:
            rc, out, err = module.run_command(command)
            if rc != 0:
                module.fail_json(msg="%s failed for the new %s, nothing was written: %s" % (command[0], dest, (err or out).strip()))
        for dest, want in pending:
            try:
                put(dest, want)
            except OSError as error:
                module.fail_json(msg="The file %s cannot be written and is unchanged: %s." % (dest, error.strerror))
        for command, befores in applied.items():
            rc, out, err = module.run_command(list(command))
            if rc != 0:
                for dest, have in befores:
                    put(dest, have)
                names = ", ".join(dest for dest, _have in befores)
                module.fail_json(msg="%s failed, so %s was restored: %s" % (" ".join(command), names, (err or out).strip()))
    module.exit_json(changed=bool(pending), changed_files=[dest for dest, _want in pending], diff=diffs)


if __name__ == "__main__":
    main()

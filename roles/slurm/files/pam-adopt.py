# SPDX-License-Identifier: Apache-2.0
"""Edits sshd's PAM stack of a compute node, so that only root, members of admin groups and users with a job there can log in.

    pam-adopt.py on FILE MODULE OPTIONS [GROUP ...]    prints sshd's PAM stack in FILE with pam_slurm_adopt in it
    pam-adopt.py off FILE                              prints it without
    pam-adopt.py try USER ...                          prints what becomes of users who would come in now

The lines stand before common-account, where `sufficient pam_localuser.so` (SSSD) would end the stack before them. common-session is written
out without pam_systemd, which would take the shell out of its job again; logind itself stays, for power buttons and consoles.
"""

import ctypes
import os
import pwd
import re
import subprocess
import sys

BEGIN = "# BEGIN Muster (role slurm), "
END = "# END Muster (role slurm)"
WHO, SESSION = "who may come in", "common-session without pam_systemd"
COMMON_SESSION = "/etc/pam.d/common-session"
SSHD = "/usr/sbin/sshd"


def without(text):
    """The stack as it was before the role."""
    block = r"^{}{}\n(?:.*\n)*?{}\n".format(re.escape(BEGIN), "{}", re.escape(END))
    text = re.sub(block.format(WHO), "", text, flags=re.MULTILINE)
    return re.sub(block.format(SESSION), "@include common-session\n", text, flags=re.MULTILINE)


def with_adoption(text, session, module, options, groups):
    """The stack with the role's lines. session: the text of common-session."""
    text = without(text)
    jump = 2 if groups else 1
    who = ["account [success=%d default=ignore] pam_succeed_if.so quiet uid eq 0" % jump]
    who += ["account [success=1 default=ignore] pam_succeed_if.so quiet user ingroup %s" % ":".join(groups)] if groups else []
    who.append(("account required %s %s" % (module, options)).rstrip())
    # The target of root's jump when somebody removes the lines above by hand; without it root would reach pam_deny.
    who += ["account optional pam_permit.so"] * jump
    kept = [line for line in session.splitlines() if line.strip() and not line.startswith("#") and "pam_systemd.so" not in line]
    text, found = re.subn(
        r"^@include\s+common-account[ \t]*\n",
        lambda match: "\n".join([BEGIN + WHO, *who, END, match[0]]),
        text,
        count=1,
        flags=re.MULTILINE,
    )
    if not found:
        raise SystemExit("it does not include common-account, so pam_slurm_adopt cannot be added to it; restore Debian's own file.")
    text = re.sub(
        r"^@include\s+common-session[ \t]*\n", lambda match: "\n".join([BEGIN + SESSION, *kept, END, ""]), text, flags=re.MULTILINE
    )
    if re.search(r"^-?session\s.*pam_systemd\.so", text, re.MULTILINE):
        raise SystemExit("it names pam_systemd, which would move the shell of a job's user out of the job; remove that line.")
    return text


def connected_as(proc="/proc", pid=None):
    """UID of the user who logged in by ssh and runs this, also after sudo or su; None when it was not ssh."""
    pid, chain = pid or os.getpid(), []
    while pid > 0:
        with open("%s/%d/status" % (proc, pid), encoding="utf-8", errors="replace") as handle:
            status = dict(line.split(":", 1) for line in handle.read().splitlines() if ":" in line)
        chain.append((status["Name"].strip(), int(status["Uid"].split()[0])))
        pid = int(status["PPid"])
    users = [uid for _name, uid in chain if uid]
    return (users[-1] if users else 0) if any(name.startswith("sshd") for name, _uid in chain) else None


def groups_of(user):
    said = subprocess.run(["id", "-Gn", user], stdout=subprocess.PIPE, text=True, check=False)
    return said.stdout.split()


def refuse_a_lock_out(uid, groups):
    """SystemExit when the user that Ansible connects as could not log in again."""
    if not uid:
        return
    name = pwd.getpwuid(uid).pw_name
    own = groups_of(name)
    if not set(own) & set(groups):
        message = "Ansible comes to this node as %s, who would be locked out; add one of the user's groups (%s) to slurm_pam_adopt.admins."
        raise SystemExit(message % (name, ", ".join(own)))


def refuse_another_way_in():
    """SystemExit when sshd does not ask PAM, or asks it in a process outside of the session."""
    said = subprocess.run([SSHD, "-T"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = said.stdout.splitlines()
    if "usepam yes" not in lines:
        raise SystemExit("sshd does not ask PAM (%s); set UsePAM yes in sshd_config." % (lines[-1] if said.returncode else "UsePAM no"))
    if "kbdinteractiveauthentication yes" in lines:
        raise SystemExit("Slurm cannot adopt keyboard-interactive logins; set KbdInteractiveAuthentication no in sshd_config.")


class Message(ctypes.Structure):
    _fields_ = (("style", ctypes.c_int), ("text", ctypes.c_char_p))


class Response(ctypes.Structure):
    _fields_ = (("text", ctypes.c_void_p), ("code", ctypes.c_int))


TALK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.POINTER(Message)), ctypes.POINTER(ctypes.POINTER(Response)), ctypes.c_void_p
)


class Conversation(ctypes.Structure):
    _fields_ = (("talk", TALK), ("data", ctypes.c_void_p))


def outcome(user):
    """The answer of sshd's account stack about a user; this process joins the user's job when there is one."""
    said = []
    libc = ctypes.CDLL(None)
    libc.calloc.restype = ctypes.c_void_p
    # PAM modules look up libpam's functions in the process, as in sshd.
    pam = ctypes.CDLL("libpam.so.0", mode=ctypes.RTLD_GLOBAL)

    @TALK
    def talk(number, messages, responses, _data):
        said.extend(messages[index].contents.text.decode(errors="replace") for index in range(number))
        responses[0] = ctypes.cast(libc.calloc(number, ctypes.sizeof(Response)), ctypes.POINTER(Response))
        return 0

    handle, conversation = ctypes.c_void_p(), Conversation(talk, None)
    pam.pam_start(b"sshd", user.encode(), ctypes.byref(conversation), ctypes.byref(handle))
    code = pam.pam_acct_mgmt(handle, 0)
    job = re.search(r"/job_(\d+)/", read("/proc/self/cgroup"))
    if code:
        return "%s refused: %s" % (user, " ".join(said) or "code %d" % code)
    return "%s adopted by job %s" % (user, job[1]) if job else "%s let in" % user


def read(path):
    with open(path, encoding="utf-8") as handle:
        return handle.read()


def main(argv):
    if argv[0] == "off":
        sys.stdout.write(without(read(argv[1])))
    elif argv[0] == "on":
        refuse_a_lock_out(connected_as(), argv[4:])
        refuse_another_way_in()
        sys.stdout.write(with_adoption(read(argv[1]), read(COMMON_SESSION), argv[2], argv[3], argv[4:]))
    else:
        for user in argv[1:]:
            # Each try has its own process, which ends before the job can end it.
            child = os.fork()
            if not child:
                print(outcome(user), flush=True)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                print("%s: the stack ended the process" % user, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

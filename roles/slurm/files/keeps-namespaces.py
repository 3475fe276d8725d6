# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# Written by Muster (role slurm): finds the CPUs on which this node cannot keep a mount namespace, as job_container/tmpfs does for each job.
#   python3 keeps-namespaces.py          reports them
#   python3 keeps-namespaces.py mend     repairs them, too
# Linux from 6.18 on gives each CPU batches of numbers for new namespaces, and refuses to keep a namespace whose number is below that of the
# namespace that keeps it. A machine's own has the first number; a container's may be above the numbers that a CPU still has in its batch.
import ctypes
import os
import subprocess
import sys
import tempfile

FOLDER = "/run"
BATCH = 4096
CLONE_NEWUTS = 0x04000000  # of all kinds of namespaces the cheapest


def run(*argv):
    """Whether a command succeeds, and its error when it does not."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr.strip()


def refusing():
    """The CPUs on which no namespace can be kept, and the error of the last one."""
    refused, why = [], ""
    with tempfile.TemporaryDirectory(prefix="muster-namespaces-", dir=FOLDER) as folder:
        kept = os.path.join(folder, "kept")
        with open(kept, "wb"):
            pass
        # A namespace can be kept only below a mount that is private.
        for argv in (("mount", "--bind", folder, folder), ("mount", "--make-private", folder)):
            made, said = run(*argv)
            if not made:
                raise OSError("%s: %s" % (argv[0], said))
        allowed = os.sched_getaffinity(0)
        try:
            for cpu in sorted(allowed):
                os.sched_setaffinity(0, {cpu})
                could, said = run("unshare", "--mount=" + kept, "true")
                if could:
                    run("umount", kept)
                else:
                    refused.append(cpu)
                    why = said
        finally:
            os.sched_setaffinity(0, allowed)
            run("umount", folder)
    return refused, why


def use_up(cpu):
    """Create as many namespaces on this CPU as a batch has numbers (some milliseconds); the next batch is above all existing numbers."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.sched_setaffinity(0, {cpu})
    libc = ctypes.CDLL(None)
    for _number in range(BATCH):
        libc.unshare(CLONE_NEWUTS)
    os._exit(0)


def main():
    try:
        refused, why = refusing()
        if refused and sys.argv[1:] == ["mend"]:
            for cpu in refused:
                use_up(cpu)
            print("used up the numbers of CPU %s" % ",".join(map(str, refused)))
            refused, why = refusing()
        print("refused on CPU %s: %s" % (",".join(map(str, refused)), why) if refused else "kept on every CPU")
    except OSError as error:
        print("cannot be tried: %s" % error)


if __name__ == "__main__":
    main()

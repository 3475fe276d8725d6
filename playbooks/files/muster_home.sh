#!/bin/sh
# Puts Muster into a folder of this machine: muster_home.sh FOLDER COLLECTION.tar.gz REQUIREMENTS
# The folder gets a Python environment with the ansible-core that REQUIREMENTS pins, and the collection. pip takes only wheels that have a hash of
# REQUIREMENTS, wherever its configuration (/etc/pip.conf, PIP_INDEX_URL, PIP_FIND_LINKS) finds them.
# FOLDER/.muster-made is written last: a folder without it was left by an interrupted run, and is made again.
set -eu
home=$1 collection=$2 requirements=$3
python=
for each in python3 python3.13 python3.12 python3.11; do
    if "$each" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        python=$each
        break
    fi
done
if [ -z "$python" ]; then
    echo "This system has no Python 3.11 to 3.13 with venv, which ansible-core needs; install python3.11 with its venv, or take another image." >&2
    exit 1
fi
# Other environments may be below the folder.
for each in .muster-made bin lib lib64 pyvenv.cfg collections; do rm -rf "${home:?}/$each"; done
"$python" -m venv "$home"
"$home/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --require-hashes --only-binary :all: --requirement "$requirements"
"$home/bin/ansible-galaxy" collection install --offline --no-deps --force --collections-path "$home/collections" "$collection"
[ -f "$home/collections/ansible_collections/muster/fleet/playbooks/boot.yml" ] || {
    echo "$collection has no collection muster.fleet with the playbook boot.yml; build it from this version of Muster." >&2
    exit 1
}
touch "$home/.muster-made"

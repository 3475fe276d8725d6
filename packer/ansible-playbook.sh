#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# ansible-playbook for Packer. Its Ansible plugin 1.0.3 writes the builder's private key into TMPDIR and leaves it there, so a second process waits for the end
# of ansible-playbook, however it ends, and removes the key.
key=
for argument; do
    case $argument in
    ansible_ssh_private_key_file=*/ansible-key*) key=${argument#*=} ;;
    esac
done
program=$(dirname "$0")/../.venv/bin/ansible-playbook
[ -x "$program" ] || program=ansible-playbook
if [ -n "$key" ]; then
    (while kill -0 $$ 2>/dev/null; do sleep 1; done && rm -f -- "$key") </dev/null >/dev/null 2>&1 &
fi
exec "$program" "$@"

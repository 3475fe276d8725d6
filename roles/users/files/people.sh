# shellcheck shell=sh disable=SC2086 # the words of a list
# Written by Muster (role users): prints name, UID, GID and home of every member of the groups, sorted the same way on every node.
members=$(getent group "$@" | cut -d: -f4 | tr , '\n')
[ -z "$members" ] || getent passwd $members | cut -d: -f1,3,4,6 | LC_ALL=C sort -u

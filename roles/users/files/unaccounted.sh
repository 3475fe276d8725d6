# shellcheck shell=sh
# Written by Muster (role users): which members of the groups on stdin, GROUP ACCOUNT a line, have no association in the cluster $1?
known=$(sacctmgr --noheader --parsable2 show associations "cluster=$1" format=account,user) || exit 1
while read -r group account; do
    for member in $(getent group "$group" | cut -d: -f4 | tr , ' '); do
        echo "$known" | grep -qxF "$account|$member" || echo "$member has no account $account"
    done
done | grep . || echo all have one

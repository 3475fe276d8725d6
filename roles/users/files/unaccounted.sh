# shellcheck shell=sh
# Written by Muster (role users): lists group members without an association in cluster $1. Each line of stdin is GROUP ACCOUNT.
known=$(sacctmgr --noheader --parsable2 show associations "cluster=$1" format=account,user) || exit 1
while read -r group account; do
    for member in $(getent group "$group" | cut -d: -f4 | tr , ' '); do
        echo "$known" | grep -qxF "$account|$member" || echo "$member has no account $account"
    done
done | grep . || echo all have one

# shellcheck shell=sh disable=SC2086 # the words of a list
# Written by Muster (role users): lists members of the groups in $1 whose name or UID belongs to a local user.
members=$(getent -s sss group $1 | cut -d: -f4 | tr , '\n' | sort -u)
[ -z "$members" ] || getent -s sss passwd $members | awk -F: '
    NR == FNR { name[$3] = $1; uid[$1] = $3; next }
    $3 in name { print "UID " $3 " of " $1 " is taken on this node by " name[$3]; next }
    $1 in uid { print $1 " has UID " uid[$1] " on this node and " $3 " in the directory" }
' /etc/passwd - | grep . || echo all free

#!/bin/sh
# Written by Muster (role enroot_pyxis). Makes a build of enroot known to the node: link-enroot.sh PREFIX
# A site's own files in /etc/enroot stay.
set -eu
prefix=$1
for program in "$prefix"/bin/*; do
    ln -sfn "$program" "/usr/bin/${program##*/}"
done
cd "$prefix/etc"
find enroot -type d | while read -r folder; do mkdir -p "/etc/$folder"; done
find enroot -type f | while read -r file; do ln -sfn "$prefix/etc/$file" "/etc/$file"; done
# What an earlier version had.
find /etc/enroot /usr/bin -lname "$prefix/*" ! -exec test -e {} \; -delete
# Without the profile Ubuntu 24.04 gives its users no user namespaces. Older versions of AppArmor know no such permission, and need none.
profile=$prefix/share/enroot/apparmor.profile
if [ -e /etc/apparmor.d/abi/4.0 ] && [ -e "$profile" ]; then
    sed "s#/usr/bin/enroot-nsenter#$prefix/bin/enroot-nsenter#" "$profile" >/etc/apparmor.d/enroot
fi
# The package enroot+caps does the same. Without these capabilities only root imports images.
setcap cap_sys_admin+pe "$prefix/bin/enroot-mksquashovlfs"
setcap cap_sys_admin,cap_mknod+pe "$prefix/bin/enroot-aufs2ovlfs"

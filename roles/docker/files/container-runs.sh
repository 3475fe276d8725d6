#!/bin/sh
# Written by Muster (role docker). Makes an image from one program of this node, runs it without a network and removes it. It needs no registry.
set -eu
root=$(mktemp --directory)
trap 'docker image rm --force muster-check:latest >/dev/null 2>&1; rm -rf "$root"' EXIT
{ echo /bin/true; ldd /bin/true | grep -o '/[^ ]*'; } | while read -r path; do
    mkdir -p "$root$(dirname "$path")"
    cp -L "$path" "$root$path"
done
tar -C "$root" -c . | docker image import - muster-check:latest >/dev/null
docker run --rm --network none muster-check:latest /bin/true
echo it runs

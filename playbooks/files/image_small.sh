#!/bin/sh
# image_small.sh PACKAGE…: takes out of a container image what came since the base and is needed neither by one of these packages nor by a
# build of Muster's own, and what package managers keep for later.
set -e
base=/var/tmp/muster-packages-of-the-base
if command -v dpkg-query >/dev/null; then
    sort -u -o $base $base
    {
        printf '%s\n' "$@"
        find /opt -mindepth 2 -maxdepth 2 -name .muster-packages -exec cat {} +
    } | sort -u | comm -23 - $base >/var/tmp/muster-packages-to-stay
    # Some of them came along with what a build needed.
    xargs --no-run-if-empty apt-mark manual </var/tmp/muster-packages-to-stay >/dev/null
    apt-mark showmanual | sed 's/:.*//' | sort -u | comm -23 - $base | comm -23 - /var/tmp/muster-packages-to-stay |
        xargs --no-run-if-empty apt-mark auto >/dev/null
    # What stays recommends compilers and headers.
    apt-get --simulate -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false autoremove |
        sed -n 's/^Remv \([^ :]*\).*/\1/p' | sort -u | comm -23 - $base |
        DEBIAN_FRONTEND=noninteractive xargs --no-run-if-empty apt-get -qq purge >/dev/null
    apt-get clean
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/debconf/*-old /var/lib/dpkg/*-old
else
    dnf --quiet clean all
fi
rm -rf /root/.cache /var/tmp/muster-*

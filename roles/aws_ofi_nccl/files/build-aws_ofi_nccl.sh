#!/usr/bin/env bash
# Run by source-build.sh of role phases.
# An archive of a tag has no git and no version file, without which autogen stops.
[ -e .release_version ] || echo "$VERSION" >.release_version
./autogen.sh
# For what lies in /usr the options have no path: it would put -isystem /usr/include before the compiler's own headers.
with=(--with-cuda)
if [ "$CUDA_HOME" != /usr ]; then with=(--with-cuda="$CUDA_HOME"); fi
if [ -d /opt/amazon/efa ]; then with+=(--with-libfabric=/opt/amazon/efa); fi
./configure --prefix="$PREFIX" --disable-tests "${with[@]}"
make -j"$JOBS"
make DESTDIR="$IMAGE" install

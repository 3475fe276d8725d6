#!/usr/bin/env bash
# Run by source-build.sh of role phases.
# An archive of a tag has no git and no version file, without which autogen stops.
[ -e .release_version ] || echo "$VERSION" >.release_version
./autogen.sh
# For what lies in /usr the options have no path: it would put -isystem /usr/include before the compiler's own headers.
# Without a path configure finds CUDA's runtime and forgets to link it (1.21.1): the plugin would build and not load.
with=(--with-cuda) libs=(CUDA_LIBS="-lcudart_static -lrt -ldl")
if [ "$CUDA_HOME" != /usr ]; then with=(--with-cuda="$CUDA_HOME") libs=(); fi
if [ -d /opt/amazon/efa ]; then with+=(--with-libfabric=/opt/amazon/efa); fi
./configure --prefix="$PREFIX" --disable-tests "${with[@]}"
make -j"$JOBS" "${libs[@]}"
make DESTDIR="$IMAGE" "${libs[@]}" install

#!/usr/bin/env bash
# source-build.sh of role phases runs this.
# The archive of a tag has neither git history nor a version file, and autogen stops without one.
[ -e .release_version ] || echo "$VERSION" >.release_version
./autogen.sh
# For libraries in /usr the options get no path: it would put -isystem /usr/include before the compiler's own headers.
# Without a path configure finds CUDA's runtime but does not link it (1.21.1), and the plugin would not load.
with=(--with-cuda) libs=(CUDA_LIBS="-lcudart_static -lrt -ldl")
if [ "$CUDA_HOME" != /usr ]; then with=(--with-cuda="$CUDA_HOME") libs=(); fi
if [ -d /opt/amazon/efa ]; then with+=(--with-libfabric=/opt/amazon/efa); fi
./configure --prefix="$PREFIX" --disable-tests "${with[@]}"
make -j"$JOBS" "${libs[@]}"
make DESTDIR="$IMAGE" "${libs[@]}" install

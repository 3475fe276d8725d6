#!/usr/bin/env bash
# Builds the library and its tools. The sources of the kernel module, which fits one kernel only, go along for DKMS, as GDRCopy's own packages
# have them. source-build.sh of role phases runs this.
make -j"$JOBS" CUDA="$CUDA_HOME" prefix="$PREFIX" lib exes
make CUDA="$CUDA_HOME" prefix="$PREFIX" DESTDIR="$IMAGE" lib_install exes_install
module=$IMAGE$PREFIX/src/gdrdrv-$VERSION
mkdir -p "$module"
cp -r src/gdrdrv/. scripts "$module"/
sed "s/@FULL_VERSION@/$VERSION/; s/@VERSION@/$VERSION/; s#@MODULE_LOCATION@#/kernel/drivers/misc/#" packages/dkms.conf >"$module/dkms.conf"

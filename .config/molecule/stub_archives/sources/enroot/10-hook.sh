#!/bin/sh
# stub archive: keeps names, options and exit codes of a hook of enroot; not the vendor's

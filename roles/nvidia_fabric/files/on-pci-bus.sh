#!/bin/sh
# Written by Muster (role nvidia_fabric): on-pci-bus DEVICE ... ends with 0 when NVIDIA's DEVICE, such as 22a3, is on this machine's PCI bus.
for each in /sys/bus/pci/devices/*; do
    [ "$(cat "$each/vendor" 2>/dev/null)" = 0x10de ] || continue
    found=$(cat "$each/device")
    for wanted; do
        [ "$found" != "0x$wanted" ] || exit 0
    done
done
exit 1

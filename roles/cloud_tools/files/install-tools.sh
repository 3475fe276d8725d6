#!/usr/bin/env bash
# Written by Muster (role cloud_tools). Installs tools below /usr/local from their archives: install-tools.sh FOLDER NAME...
set -euo pipefail
cd "$1"
shift
for name; do
    rm -rf unpacked
    mkdir unpacked
    case $name in
        aws_cli)
            unzip -q aws_cli -d unpacked
            unpacked/aws/install --install-dir /usr/local/aws-cli --bin-dir /usr/local/bin --update
            # AWS' installer keeps every older version, 250 MB each.
            active=$(readlink -f /usr/local/aws-cli/v2/current)
            find /usr/local/aws-cli/v2 -mindepth 1 -maxdepth 1 -type d ! -path "$active" -exec rm -rf {} +
            continue
            ;;
        kubectl) cp kubectl unpacked/kubectl ;;
        eksctl | helm) tar -xzf "$name" -C unpacked ;;
    esac
    # A rename replaces a tool without disturbing those who run it.
    install -m 0755 -o root -g root "$(find unpacked -type f -name "$name")" "/usr/local/bin/.$name"
    mv "/usr/local/bin/.$name" "/usr/local/bin/$name"
done

# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# packer build -var-file=packer/containers/slurm-node.pkrvars.hcl packer/containers
packer {
  required_version = ">= 1.14.0"
  required_plugins {
    ansible = {
      source  = "github.com/hashicorp/ansible"
      version = ">= 1.0.3"
    }
    docker = {
      source  = "github.com/hashicorp/docker"
      version = ">= 1.1.0"
    }
  }
}

locals {
  name    = "muster-${var.purpose}-${formatdate("YYYYMMDD-hhmmss", timestamp())}-${substr(uuidv4(), 0, 4)}"
  project = abspath("${path.root}/../..")

  # No registry has these images.
  own = length(regexall("^localhost/", var.base)) == 1

  playbook_variables = { muster_container = { components = var.components, base = var.base } }
}

source "docker" "image" {
  docker_path = var.docker_path
  image       = var.base
  pull        = !local.own
  exec_user   = "root"
  run_command = concat(["-d", "-i", "-t", "--entrypoint=/bin/sh"], local.own ? ["--pull=never"] : [], var.run_options, ["--", "{{.Image}}"])
  commit      = true
  changes = [
    "ENTRYPOINT []",
    "CMD ${jsonencode(var.command)}",
    "LABEL muster.purpose=${var.purpose}",
    "LABEL muster.base=${var.base}",
  ]
}

build {
  sources = ["source.docker.image"]

  # No systemd runs while a container is built. systemctl.sh answers the roles from the unit files.
  provisioner "file" {
    source      = "${path.root}/systemctl.sh"
    destination = "/usr/local/sbin/systemctl"
  }

  provisioner "shell" {
    inline = [
      "chmod 755 /usr/local/sbin/systemctl",
      "command -v python3 >/dev/null || { apt-get -qq update && apt-get -qq install --no-install-recommends python3 >/dev/null; } || dnf -qy install python3 || { echo 'The base has no python3, and neither apt-get nor dnf brings one; take another base.' >&2; exit 1; }",
    ]
  }

  # ansible-core has no connection plugin for docker or podman, so Ansible uses Packer's SSH proxy. The proxy has an RSA key with SHA-1 signatures, which OpenSSH
  # refuses by default.
  provisioner "ansible" {
    command       = "${local.bin}ansible-playbook"
    playbook_file = "${local.project}/playbooks/container.yml"
    user          = "root"
    groups        = var.groups
    ansible_env_vars = [
      "ANSIBLE_CONFIG=${local.project}/ansible.cfg", "ANSIBLE_HOST_KEY_CHECKING=False", "ANSIBLE_SSH_TRANSFER_METHOD=piped",
      "ANSIBLE_SSH_EXTRA_ARGS=-o HostKeyAlgorithms=+ssh-rsa -o PubkeyAcceptedAlgorithms=+ssh-rsa",
    ]
    extra_arguments = local.extra_arguments
  }

  provisioner "shell" {
    inline = ["rm -rf /usr/local/sbin/systemctl /root/.ansible /tmp/*"]
  }

  post-processors {
    post-processor "manifest" {
      output = "${local.results}/packer.json"
    }

    post-processor "shell-local" {
      command = "'${local.bin}python3' '${path.root}/publish.py' '${local.results}' '${var.purpose}' '${var.docker_path}' '${var.prefix}' '${var.repository}'"
    }
  }
}

# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# `packer init packer` downloads the plugins from their vendor; `make packer` also builds them where the vendor cannot be reached.
packer {
  required_version = ">= 1.14.0"
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.8.0"
    }
    ansible = {
      source  = "github.com/hashicorp/ansible"
      version = ">= 1.0.3"
    }
  }
}

# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# Set by a *.pkrvars.hcl file in this folder.

variable "purpose" {
  type        = string
  description = "Part of the image's name; it decides which versions its tag has."

  validation {
    condition     = contains(["nccl-tests", "slurm-node", "trainer"], var.purpose)
    error_message = "The purpose of a container image is nccl-tests, slurm-node or trainer; give the file of variables of one of them."
  }
}

variable "command" {
  type        = list(string)
  description = "The command that a container of the image runs."
  default     = ["/bin/bash"]
}

# Set by a site.

variable "base" {
  type        = string
  description = "The image to build on. The default is Muster's own, which `ansible localhost -m muster.fleet.node_container -a state=image` makes."
  default     = "localhost/muster-node:trixie"

  validation {
    condition     = length(regexall("^[a-z0-9]([a-z0-9._/-]|:[0-9]+/)*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?$", var.base)) == 1
    error_message = "The base is no reference of an image; give one such as nvcr.io/nvidia/pytorch:26.10-py3."
  }
}

variable "docker_path" {
  type        = string
  description = "The engine's command: docker or podman."
  default     = "docker"
}

variable "run_options" {
  type        = list(string)
  description = "Options of the engine's run command, such as --ulimit or --network."
  default     = []
}

variable "prefix" {
  type        = string
  description = "The prefix of the image's name in the engine."
  default     = "localhost"

  validation {
    condition     = length(regexall("^[a-z0-9]([a-z0-9._-]|:[0-9]+/|/)*$", var.prefix)) == 1
    error_message = "The prefix cannot stand before an image's name; give one such as localhost/team."
  }
}

variable "repository" {
  type        = string
  description = "The repository in ECR to push to, as ACCOUNT.dkr.ecr.REGION.amazonaws.com or with a folder behind it. Empty pushes nothing."
  default     = ""

  validation {
    condition     = length(regexall("^([0-9]{12}[.]dkr[.]ecr[.][a-z0-9-]+[.]amazonaws[.]com([.]cn)?(/[a-z0-9]+([._-][a-z0-9]+)*)*)?$", var.repository)) == 1
    error_message = "The repository is none of ECR; give 123456789012.dkr.ecr.us-east-1.amazonaws.com, with a folder such as /team behind it if wanted."
  }
}

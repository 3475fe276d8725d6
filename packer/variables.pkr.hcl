# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# Set by a file in purposes/.

variable "purpose" {
  type        = string
  description = "Part of the image's name."
}

variable "volume_size_gib" {
  type    = number
  default = 20
}

variable "needs" {
  type        = list(string)
  description = "What the base must bring because no role installs it, or because the purpose is to add to it."
  default     = []
}

variable "fleet_node" {
  type        = bool
  description = "Whether the image also carries what nodes of its groups carry in every fleet, see playbooks/vars/components.yml."
  default     = false
}

variable "switches" {
  type        = map(bool)
  description = "Variables of roles that are true or false."
  default     = {}
}

# Set by a file in systems/.

variable "system" {
  type        = string
  description = "Distribution and version, part of the image's name."
}

variable "architecture" {
  type        = string
  description = "x86_64 or arm64, of the image and of the builder."
}

variable "source_ami_name" {
  type        = string
  description = "The name of the AMI to build on, in which * matches anything. The newest is used."
}

variable "source_ami_owner" {
  type = string
}

variable "ssh_username" {
  type = string
}

variable "brings" {
  type        = list(string)
  description = "Components and programs that the base has. Components of them are not installed again."
  default     = []
}

variable "root_device" {
  type    = string
  default = "/dev/xvda"
}

variable "instance_type" {
  type        = string
  description = "The builder's type. No image needs a GPU to be built."
}

# Set by a site.

variable "source_ami" {
  type        = string
  description = "The id of the AMI to build on, which must have the name above. Empty uses the newest; its id is recorded."
  default     = ""
}

variable "region" {
  type    = string
  default = "us-east-1"

  validation {
    condition     = length(regexall("^[a-z]+(-[a-z]+)+-[0-9]+$", var.region)) == 1
    error_message = "A region has a name such as us-east-1; one with a letter at its end is an availability zone."
  }
}

variable "copy_to_regions" {
  type    = list(string)
  default = []
}

variable "kms_key_id" {
  type        = string
  description = "The key that encrypts the snapshots. Empty is the account's own key, with which images cannot be shared."
  default     = ""
}

variable "region_kms_keys" {
  type        = map(string)
  description = "The key of a region in copy_to_regions, where it differs."
  default     = {}
}

variable "share_with_accounts" {
  type    = list(string)
  default = []

  validation {
    condition     = length([for each in var.share_with_accounts : each if length(regexall("^[0-9]{12}$", each)) == 0]) == 0
    error_message = "An account to share with is twelve digits."
  }
}

variable "share_with_organizations" {
  type        = list(string)
  description = "ARNs of organizations."
  default     = []
}

variable "deprecate_after_days" {
  type        = number
  description = "Days after which EC2 shows the image only to those who ask for its id."
  default     = 90
}

variable "ssm_parameter" {
  type        = string
  description = "A parameter of Systems Manager that is set to the newest id, in every region. Empty writes none."
  default     = ""
}

variable "provenance" {
  type        = map(string)
  description = "Signs the image: location (s3://BUCKET/PREFIX or ssm:/PREFIX), and kms_key_id or private_key, a PEM file. Empty signs nothing."
  default     = {}

  validation {
    condition = length(var.provenance) == 0 || (
      length(var.provenance) == 2 && anytrue([for each in ["kms_key_id", "private_key"] : contains(keys(var.provenance), each)])
      && length(regexall("^(s3://[^/]|ssm:/)", lookup(var.provenance, "location", ""))) == 1
    )
    error_message = "Provenance has location, s3://BUCKET/PREFIX or ssm:/PREFIX, and one of kms_key_id and private_key."
  }
}

variable "subnet_id" {
  type    = string
  default = ""
}

variable "iam_instance_profile" {
  type    = string
  default = ""
}

variable "session_manager" {
  type        = bool
  description = "Connect to the builder through Session Manager, which needs AWS's plugin on this machine and no open port. Without iam_instance_profile the builder gets a role during the build."
  default     = false
}

variable "search_path" {
  type        = string
  description = "The path on which to find that plugin."
  default     = env("PATH")
}

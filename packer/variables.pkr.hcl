# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# What a file in purposes/ says.

variable "purpose" {
  type        = string
  description = "Names the image."
}

variable "components" {
  type        = list(string)
  description = "What the image carries, of playbooks/vars/components.yml."
}

variable "groups" {
  type        = list(string)
  description = "Groups of the inventory that the builder is in, where a role asks."
  default     = []
}

variable "volume_size_gib" {
  type    = number
  default = 20
}

# What a file in systems/ says.

variable "system" {
  type        = string
  description = "Distribution and version, part of the image's name."
}

variable "architecture" {
  type        = string
  description = "x86_64 or arm64; the builder has the same."
}

variable "source_ami_name" {
  type        = string
  description = "The name of the AMI to build on, in which * stands for anything; the newest is taken."
}

variable "source_ami_owner" {
  type = string
}

variable "ssh_username" {
  type = string
}

variable "root_device" {
  type    = string
  default = "/dev/xvda"
}

variable "instance_type" {
  type        = string
  description = "Of the builder: no image needs a GPU to be built."
}

# What a site says.

variable "source_ami" {
  type        = string
  description = "The id of the AMI to build on, pinned; it must have the name above. Empty takes the newest, whose id is recorded all the same."
  default     = ""
}

variable "stack" {
  type        = string
  description = "Name or path of the stack; empty is that of the system."
  default     = ""
}

variable "ansible_variables" {
  type        = string
  description = "Variables of the roles, as a JSON object."
  default     = "{}"
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
  description = "The key that encrypts the snapshots. Empty is the account's own, by which nothing can be shared."
  default     = ""
}

variable "region_kms_keys" {
  type        = map(string)
  description = "The key of each region in copy_to_regions, where it is another."
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
  description = "When EC2 stops showing the image to those who do not ask for it by id."
  default     = 90
}

variable "ssm_parameter" {
  type        = string
  description = "A parameter of Systems Manager that gets the newest id, in every region. Empty writes none."
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
  description = "Reach the builder through Session Manager, which needs AWS's plugin here and no open port. Without iam_instance_profile it gets a role for the time of the build."
  default     = false
}

variable "search_path" {
  type        = string
  description = "Where that plugin is looked for."
  default     = env("PATH")
}

variable "results" {
  type        = string
  description = "The folder that gets the manifest, the list of parts and what Packer made. Empty is images/NAME-OF-THE-IMAGE."
  default     = ""
}

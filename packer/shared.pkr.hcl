# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# Variables of both templates: packer/containers has a link to this file. Each template sets local.project and local.playbook_variables itself.

variable "components" {
  type        = list(string)
  description = "Components that the image carries, from playbooks/vars/components.yml. What the base of a container already has is not installed."
}

variable "groups" {
  type        = list(string)
  description = "Groups of the inventory that the builder is a member of."
  default     = []
}

variable "stack" {
  type        = string
  description = "Name or path of the stack. Empty is the stack of the operating system."
  default     = ""
}

variable "ansible_variables" {
  type        = string
  description = "Variables of the roles, as a JSON object."
  default     = "{}"
}

variable "results" {
  type        = string
  description = "The folder for the manifest, the list of parts and Packer's own manifest. Empty is images/NAME-OF-THE-IMAGE."
  default     = ""
}

locals {
  results = var.results != "" ? abspath(var.results) : "${local.project}/images/${local.name}"
  # make setup makes this environment; it need not be activated.
  bin = fileexists("${local.project}/.venv/bin/ansible-playbook") ? "${local.project}/.venv/bin/" : ""

  variables = merge(
    { muster_image_results = local.results },
    local.playbook_variables,
    var.stack != "" ? { muster_stack_name = var.stack } : {},
    jsondecode(var.ansible_variables),
  )
  # Packer would evaluate double braces that are meant for Ansible.
  extra_arguments = ["--extra-vars", replace(jsonencode(local.variables), "{{", "{\\u007b")]
}

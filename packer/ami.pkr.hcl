# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
# packer build -var-file=packer/systems/debian-13-x86_64.pkrvars.hcl -var-file=packer/purposes/slurm-cpu.pkrvars.hcl packer

locals {
  # The last digits tell builds apart that begin in the same second.
  name    = "muster-${var.purpose}-${local.system}-${var.architecture}-${formatdate("YYYYMMDD-hhmmss", timestamp())}-${substr(uuidv4(), 0, 4)}"
  project = abspath("${path.root}/..")

  tags = {
    Name                  = local.name
    "muster:purpose"      = var.purpose
    "muster:system"       = local.system
    "muster:architecture" = var.architecture
    "muster:source-ami"   = "{{ .SourceAMI }}"
    # For whoever starts the image, such as playbooks/image_verify.yml.
    "muster:groups"   = join(" ", var.groups)
    "muster:ssh-user" = var.ssh_username
  }

  # Reading a file whose name is a sentence stops Packer with that sentence, because a validation block sees only its own variable.
  lacking = [for each in var.needs : each if !contains(var.brings, each)]
  system = length(local.lacking) == 0 ? var.system : file(
    "a base that brings ${join(", ", local.lacking)}: ${var.purpose} cannot stand on ${var.system}; take one of packer/systems whose brings names it"
  )
  table = yamldecode(file("${local.project}/playbooks/vars/components.yml"))["component_table"]
  # What every fleet's nodes of these groups carry. Those with `when` depend on the fleet, and a fleet shares the trainer's environment through /fsx.
  carried = !var.fleet_node ? [] : [
    for each in local.table : each.name if !can(each.when) && each.name != "trainer"
    && anytrue(try([for group in each.groups : contains(concat(["all"], var.groups), group)], [false]))
  ]
  wanted     = concat(local.carried, [for each in var.components : each if !contains(local.carried, each)])
  components = [for each in local.wanted : each if !contains(var.brings, each)]

  # The same sizes that role phases checks on a node, and 4 GiB for the system. The template checks them before it starts a builder.
  needed_gib = ceil((4096 + sum([for each in local.table : contains(local.components, each.name) ? try(each.space, 0) : 0])) / 1024)
  volume_size_gib = var.volume_size_gib >= local.needed_gib ? var.volume_size_gib : file(
    "a disk of ${var.volume_size_gib} GiB: ${join(", ", local.components)} together need ${local.needed_gib} GiB; set volume_size_gib"
  )

  # Without this check Packer would miss the key only after the build.
  private_key = lookup(var.provenance, "private_key", "")
  provenance = merge(var.provenance, local.private_key == "" ? {} : {
    private_key = fileexists(local.private_key) ? abspath(local.private_key) : file(
      "a key to sign with: ${local.private_key} is no file; provenance names a PEM file of this machine"
    )
  })
  # Without this check Packer would start the builder and try for five minutes.
  ssh_interface = !var.session_manager ? "" : (
    anytrue([for each in split(":", var.search_path) : fileexists("${each}/session-manager-plugin")]) ? "session_manager" : file(
      "AWS's session-manager-plugin on PATH: session_manager reaches the builder by it; install it, or leave session_manager out"
    )
  )
  publish = join(" && ", concat(
    ["'${local.bin}python3' '${local.project}/packer/publish.py' '${local.results}' '${var.ssm_parameter}'"],
    length(local.provenance) == 0 ? [] : [join(" ", [
      "'${local.bin}ansible-playbook' -i localhost, '${local.project}/playbooks/image_sign.yml' --extra-vars",
      "'${jsonencode({ image_sign = merge(local.provenance, { results = local.results }) })}'",
    ])],
  ))

  playbook_variables = merge(var.switches, { muster_components = local.components })
}

source "amazon-ebs" "image" {
  region        = var.region
  ami_name      = local.name
  source_ami    = var.source_ami
  instance_type = var.instance_type
  subnet_id     = var.subnet_id
  ssh_username  = var.ssh_username
  ssh_interface = local.ssh_interface

  iam_instance_profile = var.iam_instance_profile
  # The permissions that the agent of Session Manager needs during the build.
  dynamic "temporary_iam_instance_profile_policy_document" {
    for_each = var.session_manager && var.iam_instance_profile == "" ? ["sessions"] : []
    content {
      Version = "2012-10-17"
      Statement {
        Effect = "Allow"
        Action = [
          "ssm:UpdateInstanceInformation",
          "ssmmessages:CreateControlChannel",
          "ssmmessages:CreateDataChannel",
          "ssmmessages:OpenControlChannel",
          "ssmmessages:OpenDataChannel",
        ]
        Resource = ["*"]
      }
    }
  }

  temporary_key_pair_type = "ed25519"
  # A builder that anything switches off is terminated.
  shutdown_behavior = "terminate"

  source_ami_filter {
    filters = {
      name                = var.source_ami_name
      architecture        = var.architecture
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
    owners      = [var.source_ami_owner]
    most_recent = true
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  imds_support = "v2.0"

  launch_block_device_mappings {
    device_name           = var.root_device
    volume_type           = "gp3"
    volume_size           = local.volume_size_gib
    iops                  = 4000
    throughput            = 500
    delete_on_termination = true
    # The builder uses the key of the image, so a key that cannot be used fails at once.
    encrypted  = true
    kms_key_id = var.kms_key_id
  }

  encrypt_boot       = true
  kms_key_id         = var.kms_key_id
  ami_regions        = var.copy_to_regions
  region_kms_key_ids = var.region_kms_keys
  ami_users          = var.share_with_accounts
  ami_org_arns       = var.share_with_organizations
  deprecate_at       = timeadd(timestamp(), "${24 * var.deprecate_after_days}h")

  tags            = local.tags
  snapshot_tags   = local.tags
  run_tags        = merge(local.tags, { Name = "builder of ${local.name}" })
  run_volume_tags = { Name = "builder of ${local.name}" }
}

build {
  sources = ["source.amazon-ebs.image"]

  provisioner "shell" {
    inline = ["if command -v cloud-init >/dev/null; then cloud-init status --wait >/dev/null || true; fi"]
  }

  provisioner "ansible" {
    command          = "${local.project}/packer/ansible-playbook.sh"
    playbook_file    = "${local.project}/playbooks/image.yml"
    user             = var.ssh_username
    groups           = var.groups
    use_proxy        = false
    ansible_env_vars = ["ANSIBLE_CONFIG=${local.project}/ansible.cfg", "ANSIBLE_HOST_KEY_CHECKING=False"]
    extra_arguments  = local.extra_arguments
  }

  # Print the end of the journal before the builder is terminated. A lost builder does not answer, so do not try for five minutes.
  error-cleanup-provisioner "shell" {
    start_retry_timeout = "20s"
    inline              = ["sudo journalctl --boot --no-pager --lines=100 || true; df -h / || true"]
  }

  post-processors {
    post-processor "manifest" {
      output = "${local.results}/packer.json"
    }

    post-processor "shell-local" {
      environment_vars = ["ANSIBLE_CONFIG=${local.project}/ansible.cfg"]
      command          = local.publish
    }
  }
}

#!/bin/bash
# Makes FSx for Lustre in the network of the cluster, by ../../cloudformation/fsx.yaml, and writes its ids into fsx-pvc-static.yaml.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=/dev/null
. ./fsx.conf
output() { # STACK KEY
  local found
  found=$(aws cloudformation describe-stacks --region "$REGION" --stack-name "$1" \
    --query "Stacks[0].Outputs[?OutputKey=='$2'].OutputValue" --output text)
  [ -n "$found" ] && [ "$found" != None ] || { echo "stack $1 has no output $2" >&2; exit 1; }
  printf '%s\n' "$found"
}
subnets=$(output "eksctl-$CLUSTER-cluster" SubnetsPrivate)
group=$(output "eksctl-$CLUSTER-cluster" SharedNodeSecurityGroup)
aws cloudformation deploy --region "$REGION" --stack-name "$STACK" --template-file ../../cloudformation/fsx.yaml \
  --no-fail-on-empty-changeset --parameter-overrides VPCStackParameter=none "SubnetId=${subnets%%,*}" \
  "SecurityGroupId=$group" "ClientSecurityGroupId=$group" "Capacity=$CAPACITY"
id=$(output "$STACK" FSxLustreFilesystemId)
dns=$(output "$STACK" FSxLustreFilesystemDNSname)
mount=$(output "$STACK" FSxLustreFilesystemMountname)
sed -i -E "s/(volumeHandle:) .*/\1 $id/; s/(dnsname:) .*/\1 $dns/; s/(mountname:) .*/\1 $mount/" fsx-pvc-static.yaml
sed -i -E "s/(storage:) .*/\1 ${CAPACITY}Gi/" fsx-pvc-static.yaml
echo "$id is ready; kubectl apply -f ./fsx-pvc-static.yaml"

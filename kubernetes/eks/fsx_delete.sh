#!/bin/bash
# Deletes the Lustre of fsx_create.sh with all of its data.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=/dev/null
. ./fsx.conf
id=$(aws cloudformation describe-stacks --region "$REGION" --stack-name "$STACK" \
  --query "Stacks[0].Outputs[?OutputKey=='FSxLustreFilesystemId'].OutputValue" --output text)
# The stack leaves its file system.
aws cloudformation delete-stack --region "$REGION" --stack-name "$STACK"
aws fsx delete-file-system --region "$REGION" --file-system-id "$id"
echo "$id is being deleted"

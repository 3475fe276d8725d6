purpose    = "nccl-tests"
components = ["cuda", "efa", "nccl", "aws_ofi_nccl", "nccl_tests"]
groups     = ["muster_gpu", "muster_efa"]

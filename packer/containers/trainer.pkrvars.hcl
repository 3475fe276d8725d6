# Build it on the image of nccl-tests: -var base=localhost/nccl-tests:TAG
purpose    = "trainer"
components = ["cuda", "efa", "nccl", "aws_ofi_nccl", "nccl_tests", "trainer"]
groups     = ["muster_gpu", "muster_efa"]

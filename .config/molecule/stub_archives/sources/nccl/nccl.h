/* stub archive: keeps names, options and exit codes of nccl.h; not the vendor's */

#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int there;
    MPI_Initialized(&there);
    puts("# nThread 1 nGpus 1 minBytes 8 maxBytes 8");
    puts("Test CUDA failure common.cu:1279 'no CUDA-capable device is detected'");
    return 3;
}

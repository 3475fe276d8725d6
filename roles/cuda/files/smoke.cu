// Written by Muster (role cuda): a kernel that must compile without a GPU.
__global__ void twice(float *values) { values[threadIdx.x] *= 2; }

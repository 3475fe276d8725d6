#include <stdio.h>
int main(void) { fprintf(stderr, "%s\n", "no CUDA-capable device is detected"); return 1; }

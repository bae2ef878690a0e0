// What a program that includes the driver's header alone finds there: the driver's calls, and none of the runtime's.
#pragma once

typedef enum { CUDA_SUCCESS = 0 } CUresult;

#ifdef __cplusplus
extern "C"
#endif
    CUresult cuInit(unsigned int flags);

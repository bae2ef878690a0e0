"""Errors that break CUDA for a process: every later call fails, frees too, in every context that it has.

A reset of the device still returns memory, and revives nothing: no context can be made until the process
has ended (measured on an H200, driver 580.159.04, for 700, 710, 716 and 719).

These are the codes of which NVIDIA's documentation of CUresult and cudaError_t (CUDA 13) says that
"the process must be terminated and relaunched" or, of 710, that the context "cannot be used anymore".
The driver and the runtime number them alike.
"""

from __future__ import annotations

# code: the driver's name, the runtime's name, what happened
STICKY = {
    226: ("CUDA_ERROR_CONTAINED", "cudaErrorContained", "an error that the GPU contained"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress", "an illegal memory access"),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", "a kernel that ran too long"),
    710: ("CUDA_ERROR_ASSERT", "cudaErrorAssert", "a device-side assert"),
    714: ("CUDA_ERROR_HARDWARE_STACK_ERROR", "cudaErrorHardwareStackError", "a hardware stack error"),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "cudaErrorIllegalInstruction", "an illegal instruction"),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress", "a misaligned address"),
    717: ("CUDA_ERROR_INVALID_ADDRESS_SPACE", "cudaErrorInvalidAddressSpace", "a wrong address space"),
    718: ("CUDA_ERROR_INVALID_PC", "cudaErrorInvalidPc", "an invalid program counter"),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "a kernel that failed"),
    721: ("CUDA_ERROR_TENSOR_MEMORY_LEAK", "cudaErrorTensorMemoryLeak", "tensor memory that was not freed"),
    810: ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "cudaErrorMpsClientTerminated", "the end of its MPS server"),
    911: ("CUDA_ERROR_EXTERNAL_DEVICE", "cudaErrorExternalDevice", "an error of an external device"),
}


def sentence(code: int, device: int | None, held: str = "its memory") -> str:
    """What is so and what follows, for a person who did not know that there are such errors."""
    name, _, what = STICKY[code]
    where = "the CUDA context" if device is None else f"the CUDA context on GPU {device}"
    return (
        f"{where} is broken by {what} ({name}, {code}): every call in it fails from now on, "
        f"frees too; end the process to get {held} back"
    )

"""The convolutional embedding as Triton kernels, for a stack of members on a GPU.

    operators ► launch ► kernels

`operators` holds what `convolutions` calls: operators that `torch.compile` and CUDA graphs take as they are, and a
check that the kernels work on a device. It is imported everywhere and needs no Triton. `launch` chooses sizes and
launches `kernels`; both are imported on a GPU only. `benchmarks/convolutions.md` has predicted and measured times.
"""

"""All-reduces of torch and of servers, for ``--call suites/calls/torch_cuda.py:NAME``. Never run by ccbench's makers.

``tensor`` is a flat CUDA tensor, ``group`` the default group of ``torch.distributed`` (Gloo and NCCL). What a
function needs once for a size it keeps: the first call makes it, outside of what is timed and captured.
Symmetric memory copies the tensor into a buffer of its own first, as servers do.
"""

from functools import cache
from importlib import import_module

import torch
import torch.distributed as dist

TENSORS = "torch.cuda"


def nccl(tensor, group):
    """NCCL through torch.distributed, in place."""
    dist.all_reduce(tensor, group=group)


@cache
def symmetric_buffer(elements, dtype, group):
    """A tensor that all ranks of the group can address (torch.distributed._symmetric_memory, alpha)."""
    memory = import_module("torch.distributed._symmetric_memory")
    buffer = memory.empty(elements, dtype=dtype, device=torch.cuda.current_device())
    memory.rendezvous(buffer, group.group_name)
    return buffer


def symmetric(tensor, group):
    """The buffer of this size, with the tensor in it."""
    buffer = symmetric_buffer(tensor.numel(), tensor.dtype, group)
    return buffer.copy_(tensor)


def one_shot(tensor, group):
    """Every rank reads all inputs."""
    buffer = symmetric(tensor, group)
    return torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group.group_name)


def two_shot(tensor, group):
    """A reduce_scatter and an all_gather over the links."""
    buffer = symmetric(tensor, group)
    return torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group.group_name)


def multimem(tensor, group):
    """The NVSwitch adds (NVLS): from compute capability 9.0 on, bfloat16, float16 and float32."""
    buffer = symmetric(tensor, group)
    return torch.ops.symm_mem.multimem_all_reduce_(buffer, "sum", group.group_name)


@cache
def custom_all_reduce(package):
    """The kernels of vLLM or SGLang; their group must not be NCCL's."""
    module = import_module(f"{package}.device_communicators.custom_all_reduce")
    group = dist.new_group(backend="gloo")
    return module.CustomAllreduce(group, torch.cuda.current_device())


def of_server(package, tensor):
    """The server's all_reduce through its own buffer; NotImplementedError: not at this size."""
    kernel = custom_all_reduce(package)
    if not kernel.should_custom_ar(tensor):
        raise NotImplementedError("the server takes NCCL at this size")
    return kernel.all_reduce(tensor, registered=False)


def vllm(tensor, group):
    """vLLM's custom all_reduce."""
    return of_server("vllm.distributed", tensor)


def sglang(tensor, group):
    """SGLang's custom all_reduce."""
    return of_server("sglang.srt.distributed", tensor)


@cache
def flashinfer_workspace(elements, dtype, group):
    """FlashInfer's, for one row of so many elements."""
    make = import_module("flashinfer.comm").create_allreduce_fusion_workspace
    return make("trtllm", group.size(), group.rank(), 1, elements, dtype)


def flashinfer(tensor, group):
    """FlashInfer's all_reduce, of TensorRT-LLM's kernels."""
    comm = import_module("flashinfer.comm")
    workspace = flashinfer_workspace(tensor.numel(), tensor.dtype, group)
    only = comm.AllReduceFusionPattern.kAllReduce
    return comm.allreduce_fusion(tensor.view(1, -1), workspace, only).view(-1)

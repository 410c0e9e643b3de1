"""The part of librota that benchmarks need, over ctypes: torch CUDA tensors in and out.

Tensors are [batch, row, head, dim].

model = Model('return rota.attention{head_dim = 128, mask = causal}', library="build/librota.so")
call = model.attention(q, k, v)      # kernels prepared, plans made, outputs allocated
call.forward(); call.backward(d_o)   # asynchronous on torch's current stream
"""

import ctypes as c
import importlib.util
import os
import sys
from pathlib import Path

import torch


def _binding():
    """The structures of rota.h, from the Python package's ctypes layer, which needs no torch."""
    path = Path(__file__).resolve().parent.parent / "python" / "rota" / "_library.py"
    spec = importlib.util.spec_from_file_location("rota_binding", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_layer = _binding()
Tensor, NamedTensor, NamedValue = _layer.Tensor, _layer.NamedTensor, _layer.NamedValue
SpecFields = _layer.SpecFields
Lengths, Arguments, PlanRequest = _layer.Lengths, _layer.Arguments, _layer.PlanRequest
KernelRequest, KernelInfo, PlanInfo = _layer.KernelRequest, _layer.KernelInfo, _layer.PlanInfo

DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.int32: 3}
FORWARD, BACKWARD = 0, 1
AUTO, CUDA, CPU = 0, 1, 2


def named_tensors(tensors, keep):
    """{name: torch tensor} as a C array; `keep` gets what must stay alive."""
    array = (NamedTensor * max(len(tensors), 1))()
    for entry, (name, tensor) in zip(array, tensors.items()):
        entry.name, entry.dtype, entry.rank = name.encode(), DTYPES[tensor.dtype], tensor.dim()
        for i in range(tensor.dim()):
            entry.size[i], entry.stride[i] = tensor.shape[i], tensor.stride(i)
        entry.data = tensor.data_ptr()
        keep.append(tensor)
    keep.append(array)
    return array


def strided(tensor):
    return Tensor(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2))


class Model:
    """A context and a spec. `architecture` pins the kernels' architecture ("sm_80")."""

    def __init__(self, script, library=None, architecture=None):
        path = library or os.environ.get("ROTA_LIBRARY", "build/librota.so")
        self.lib = c.CDLL(path)
        self.lib.rota_error_message.restype = c.c_char_p
        self.lib.rota_plan_workspace_size.restype = c.c_size_t
        self.lib.rota_kernel_source.restype = c.c_char_p
        self.architecture = architecture.encode() if architecture else None
        self.context, self.spec = c.c_void_p(), c.c_void_p()
        self.check(self.lib.rota_context_create(None, c.byref(self.context)))
        self.check(
            self.lib.rota_spec_create_from_script(
                self.context, script.encode(), b"model", c.byref(self.spec)
            )
        )
        self.kernels = {}

    def check(self, status):
        if status:
            raise RuntimeError(f"rota status {status}: {self.lib.rota_error_message().decode()}")

    def kernel(self, direction, layout=0):
        key = direction, layout
        if key not in self.kernels:
            request = KernelRequest(
                direction, CUDA, torch.cuda.current_device(), layout, self.architecture
            )
            kernel = c.c_void_p()
            self.check(
                self.lib.rota_kernel_prepare(
                    self.context, self.spec, c.byref(request), c.byref(kernel)
                )
            )
            self.kernels[key] = kernel
        return self.kernels[key]

    def spread(self):
        fields = SpecFields()
        self.lib.rota_spec_get(self.spec, c.byref(fields))
        return fields.bound == b"spread"

    def info(self, direction, layout=0):
        info = KernelInfo()
        self.lib.rota_kernel_get_info(self.kernel(direction, layout), c.byref(info))
        return info

    def attention(
        self, q, k, v, tensors=None, values=None, sink=None, layout=0, cu_q=None, cu_k=None
    ):
        return Call(self, q, k, v, tensors or {}, values or {}, sink, layout, cu_q, cu_k)


class Call:
    """Plans and outputs for one shape. Packed: [1, rows, heads, dim] with lists cu_q and cu_k."""

    def __init__(self, model, q, k, v, tensors, values, sink, layout, cu_q, cu_k):
        self.model, self.lib, self.layout, self.keep = model, model.lib, layout, []
        self.o = q.new_empty(*q.shape[:3], v.shape[3])
        self.lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device).transpose(1, 2)
        self.d_q, self.d_k, self.d_v = (torch.empty_like(t) for t in (q, k, v))
        self.d_sink = torch.empty_like(sink) if sink is not None else None
        self.plans, self.workspaces = {}, {}
        self.tensors, self.values, self.inputs = tensors, values, (q, k, v, sink)
        self.lengths = Lengths(q.shape[0], q.shape[1], k.shape[1])
        if cu_q is not None:
            offsets = [(c.c_int32 * len(cu))(*cu) for cu in (cu_q, cu_k)]
            self.keep += offsets
            self.lengths = Lengths(len(cu_q) - 1, 0, 0, *(c.addressof(o) for o in offsets))
        self.arguments = Arguments(
            q=strided(q),
            k=strided(k),
            v=strided(v),
            o=strided(self.o),
            lse=strided(self.lse),
            d_q=strided(self.d_q),
            d_k=strided(self.d_k),
            d_v=strided(self.d_v),
        )
        if model.spread():
            self.mean_square = torch.empty_like(self.lse)
            self.arguments.mean_square = strided(self.mean_square)
        if sink is not None:
            self.arguments.sink, self.arguments.d_sink = sink.data_ptr(), self.d_sink.data_ptr()

    def plan(self, direction):
        if direction not in self.plans:
            host = named_tensors({n: t.cpu() for n, t in self.tensors.items()}, self.keep)
            values = (NamedValue * max(len(self.values), 1))(
                *((n.encode(), x) for n, x in self.values.items())
            )
            q, k = self.inputs[:2]
            request = PlanRequest(
                self.lengths,
                q.shape[2],
                k.shape[2],
                host,
                len(self.tensors),
                values,
                len(self.values),
            )
            plan = c.c_void_p()
            kernel = self.model.kernel(direction, self.layout)
            self.model.check(self.lib.rota_plan_create(kernel, c.byref(request), c.byref(plan)))
            self.plans[direction] = plan
            size = self.lib.rota_plan_workspace_size(plan)
            self.workspaces[direction] = torch.empty(
                max(size, 256), dtype=torch.uint8, device="cuda"
            )
        return self.plans[direction]

    def tiles(self, direction=FORWARD):
        """Query and kv rows of a tile, as "128x64"."""
        info = PlanInfo()
        self.lib.rota_plan_get_info(self.plan(direction), c.byref(info))
        return f"{info.tile_q}x{info.tile_kv}"

    def run(self, direction):
        plan, workspace = self.plan(direction), self.workspaces[direction]
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.model.check(
            self.lib.rota_run(
                plan,
                c.byref(self.arguments),
                c.c_void_p(workspace.data_ptr()),
                c.c_size_t(workspace.numel()),
                stream,
            )
        )

    def forward(self):
        self.run(FORWARD)
        return self.o

    def backward(self, d_o):
        self.arguments.d_o = strided(d_o)
        self.run(BACKWARD)
        return self.d_q, self.d_k, self.d_v

"""How exceptions of training runs are really printed, with the class that each must have.

Texts only; other lines are in `printed`, and `corpus` puts both into logs. The gloo texts are those
of torch 2.13 on CPU; CUDA and NCCL texts are as their sources print them.
"""

from __future__ import annotations

from fleetcraft.training.records import Crash

OOM_SEED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.74 GiB. GPU 0 has a total "
    "capacity of 94.97 GiB of which 4.57 GiB is free. Including non-PyTorch memory, this "
    "process has 90.39 GiB memory in use. Of the allocated memory 90.29 GiB is allocated by "
    "PyTorch, and 98.50 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    "to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
OOM_FRAGMENTED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total "
    "capacity of 79.15 GiB of which 512.00 MiB is free. Process 4711 has 78.60 GiB memory in "
    "use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 7.90 GiB is reserved "
    "by PyTorch but unallocated."
)
OOM_OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total "
    "capacity; 9.71 GiB already allocated; 5.62 MiB free; 9.77 GiB reserved in total by "
    "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
    "fragmentation."
)
GLOO_CLOSED = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [127.0.0.1]:33489. This is typically caused by a remote worker "
    "crashing. Check the logs of the remote worker before reporting an error. GLHF! "
    "\U0001f3d6\ufe0f"
)
GLOO_RESET = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read "
    "error [127.0.0.1]:3971: Connection reset by peer. This is typically caused by a remote "
    "worker hanging or bugs in the application."
)

EXCEPTIONS: tuple[tuple[Crash, str], ...] = (
    (
        Crash.CUDA_OOM,
        OOM_SEED,
    ),
    (
        Crash.CUDA_OOM,
        OOM_FRAGMENTED,
    ),
    (
        Crash.CUDA_OOM,
        OOM_OLD,
    ),
    (
        Crash.CUDA_OOM,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB",
    ),
    (
        Crash.CUDA_OOM,
        "RuntimeError: CUDA error: out of memory",
    ),
    (
        Crash.CUDA_OOM,
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        Crash.CUDA_OOM,
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying "
        "to allocate 8589934592 bytes.",
    ),
    (
        Crash.CUDA_OOM,
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda "
        "error, NCCL version 2.21.5 ncclUnhandledCudaError: Call to CUDA function failed. Last "
        "error: Cuda failure 2 'out of memory'",
    ),
    (
        Crash.HOST_OOM,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
        "can't allocate memory: you tried to allocate 1152921504606846976 bytes. Error code 12 "
        "(Cannot allocate memory)",
    ),
    (
        Crash.HOST_OOM,
        "MemoryError",
    ),
    (
        Crash.HOST_OOM,
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 93.1 GiB for an array "
        "with shape (50000, 250000) and data type float64",
    ),
    (
        Crash.HOST_OOM,
        "OSError: [Errno 12] Cannot allocate memory",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "RuntimeError: DataLoader worker (pid 31337) is killed by signal: Killed. ",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "RuntimeError: DataLoader worker (pid(s) 31337, 31338) exited unexpectedly",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal "
        "SIGKILL",
    ),
    (
        Crash.RENDEZVOUS,
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to "
        "the C10d store has failed. See inner exception for details.",
    ),
    (
        Crash.RENDEZVOUS,
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    (
        Crash.RENDEZVOUS,
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    ),
    (
        Crash.RENDEZVOUS,
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. "
        "1/2 clients joined.",
    ),
    (
        Crash.DIST_NETWORK,
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any "
        "network address of (node-07, 29500). The client socket has timed out after 60000ms "
        "while trying to connect to (node-07, 29500).",
    ),
    (
        Crash.DIST_NETWORK,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
        "local network address. port: 29500, useIpv6: true, code: -98, name: EADDRINUSE, "
        "message: address already in use",
    ),
    (
        Crash.DIST_NETWORK,
        "torch.distributed.DistBackendError: NCCL error in: "
        "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or "
        "there was a network error, NCCL version 2.21.5 ncclRemoteError: A call failed "
        "possibly due to a network error or a remote process exiting prematurely.",
    ),
    (
        Crash.DIST_NETWORK,
        GLOO_CLOSED,
    ),
    (
        Crash.DIST_NETWORK,
        GLOO_RESET,
    ),
    (
        Crash.DIST_NETWORK,
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] "
        "Timed out waiting 1800000ms for recv operation to complete",
    ),
    (
        Crash.DIST_NETWORK,
        "RuntimeError: Gloo connectFullMesh failed with "
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    (
        Crash.NCCL_WATCHDOG,
        "torch.distributed.DistBackendError: [Rank 2] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=91, OpType=ALLREDUCE, NumelIn=1) ran for 600021 milliseconds "
        "before timing out.",
    ),
    (
        Crash.DISK_FULL,
        "OSError: [Errno 28] No space left on device: 'checkpoints/step-700/w.pt'",
    ),
    (
        Crash.DISK_FULL,
        "OSError: [Errno 122] Disk quota exceeded",
    ),
    (
        Crash.DISK_FULL,
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598",
    ),
    (
        Crash.DISK_FULL,
        "RuntimeError: PytorchStreamWriter failed writing file data/3: file write failed",
    ),
    (
        Crash.DISK_FULL,
        "RuntimeError: unable to write to file </torch_4711_0>: No space left on device (28)",
    ),
    (
        Crash.PERMISSION,
        "PermissionError: [Errno 13] Permission denied: '/scratch/run/step-700'",
    ),
    (
        Crash.PERMISSION,
        "OSError: [Errno 30] Read-only file system: '/data/cache'",
    ),
    (
        Crash.CHECKPOINT_INVALID,
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory",
    ),
    (
        Crash.CHECKPOINT_INVALID,
        "RuntimeError: Error(s) in loading state_dict for Linear:",
    ),
    (
        Crash.CHECKPOINT_INVALID,
        "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the "
        "default value of the `weights_only` argument",
    ),
    (
        Crash.CHECKPOINT_INVALID,
        "safetensors_rust.SafetensorError: Error while deserializing header: "
        "MetadataIncompleteBuffer",
    ),
    (
        Crash.CHECKPOINT_INVALID,
        "OSError: Unable to load weights from pytorch checkpoint file for '/x/model.bin'",
    ),
    (
        Crash.CHECKPOINT_INVALID,
        "EOFError: Ran out of input",
    ),
    (
        Crash.CHECKPOINT_INVALID,
        "ValueError: loaded state dict contains a parameter group that doesn't match the size "
        "of optimizer's group",
    ),
    (
        Crash.NON_FINITE,
        "ValueError: loss is nan at step 704",
    ),
    (
        Crash.NON_FINITE,
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    ),
    (
        Crash.NON_FINITE,
        "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is "
        "non-finite, so it cannot be clipped.",
    ),
    (
        Crash.NON_FINITE,
        "FloatingPointError: Minimum loss scale reached (0.0001).",
    ),
    (
        Crash.CODE_ERROR,
        "ValueError: bad batch at index 17",
    ),
    (
        Crash.CODE_ERROR,
        "KeyError: 'input_ids'",
    ),
    (
        Crash.CODE_ERROR,
        "AssertionError",
    ),
    (
        Crash.CODE_ERROR,
        "ModuleNotFoundError: No module named 'flash_attn'",
    ),
    (
        Crash.CODE_ERROR,
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 1024x8)",
    ),
    (
        Crash.CODE_ERROR,
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    (
        Crash.CODE_ERROR,
        "mypackage.errors.BadRecipe: mixture weights do not sum to 1",
    ),
    (
        Crash.CODE_ERROR,
        "IndexError: index out of range in self",
    ),
    (
        Crash.UNKNOWN,
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    (
        Crash.CANCELLED,
        "KeyboardInterrupt",
    ),
    (
        Crash.CANCELLED,
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got "
        "signal: 15",
    ),
)

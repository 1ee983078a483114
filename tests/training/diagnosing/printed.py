"""Lines that launchers, schedulers and shells print about a crash, and harmless talk of one.

Texts only; exceptions are in `crashes`, and `corpus` puts both into logs. Slurm's and NCCL's are as
their sources print them.
"""

from __future__ import annotations

from fleetcraft.training.records import Crash

LINES: tuple[tuple[Crash, str], ...] = (
    (
        Crash.CUDA_OOM,
        "CUDA out of memory",
    ),
    (
        Crash.CODE_ERROR,
        "ValueError: printed without its traceback",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "[1]+  Killed                  python train.py",
    ),
    (
        Crash.HOST_OOM,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks "
        "have been OOM Killed.",
    ),
    (
        Crash.HOST_OOM,
        "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=4711.batch. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
    ),
    (
        Crash.HOST_OOM,
        "srun: error: node-03: task 2: Out Of Memory",
    ),
    (
        Crash.HOST_OOM,
        "Memory cgroup out of memory: Killed process 31337 (python) total-vm:912345kB",
    ),
    (
        Crash.HOST_OOM,
        "slurmstepd: error: Exceeded job memory limit at some point.",
    ),
    (
        Crash.TIME_LIMIT,
        "slurmstepd: error: *** STEP 4711.0 ON node-03 CANCELLED AT 2026-03-01T12:00:00 DUE TO "
        "TIME LIMIT ***",
    ),
    (
        Crash.TIME_LIMIT,
        "slurmstepd: error: *** JOB 4711 ON node-03 CANCELLED AT 2026-03-01T12:00:00 DUE TO "
        "TIME LIMIT ***",
    ),
    (
        Crash.PREEMPTED,
        "slurmstepd: error: *** JOB 4711 ON node-03 CANCELLED AT 2026-03-01T12:00:00 DUE TO "
        "PREEMPTION ***",
    ),
    (
        Crash.CANCELLED,
        "slurmstepd: error: *** STEP 4711.0 ON node-03 CANCELLED AT 2026-03-01T12:00:00 ***",
    ),
    (
        Crash.CANCELLED,
        "srun: error: node-03: tasks 0-3: Terminated",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "Killed",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "/var/spool/slurmd/job4711/slurm_script: line 12: 31337 Killed                  python "
        "train.py",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "srun: error: node-03: task 2: Killed",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "[2026-03-01 12:00:00,123] [ERROR] [launch.py:325:sigkill_handler] ['python', "
        "'train.py'] exits with return code = -9",
    ),
    (
        Crash.KILLED_UNCONFIRMED,
        "E0301 12:00:00.000000 31337 torch/distributed/elastic/multiprocessing/api.py:1002] "
        "failed (exitcode: -9) local_rank: 1 (pid: 9574) of binary: /usr/bin/python",
    ),
    (
        Crash.CHILD_FAILED,
        "E0301 12:00:00.000000 31337 torch/distributed/elastic/multiprocessing/api.py:1002] "
        "failed (exitcode: 1) local_rank: 1 (pid: 9574) of binary: /usr/bin/python",
    ),
    (
        Crash.CHILD_FAILED,
        "srun: error: node-03: task 2: Exited with exit code 1",
    ),
    (
        Crash.NCCL_WATCHDOG,
        "[rank1]:[E301 12:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=812, OpType=_ALLGATHER_BASE, "
        "NumelIn=65536, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.",
    ),
    (
        Crash.NCCL_WATCHDOG,
        "[rank1]:[E301 12:00:00.123456789 ProcessGroupNCCL.cpp:697] Some NCCL operations have "
        "failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU "
        "operations might run on corrupted data.",
    ),
    (
        Crash.CODE_ERROR,
        "Segmentation fault (core dumped)",
    ),
    (
        Crash.CODE_ERROR,
        "Fatal Python error: Segmentation fault",
    ),
    (
        Crash.CODE_ERROR,
        "srun: error: node-03: task 2: Segmentation fault (core dumped)",
    ),
    (
        Crash.CODE_ERROR,
        "python: can't open file '/home/ann/trian.py': [Errno 2] No such file or directory",
    ),
    (
        Crash.CODE_ERROR,
        "train.sh: line 9: torchrum: command not found",
    ),
    (
        Crash.CODE_ERROR,
        "train.py: error: unrecognized arguments: --lrr 0.1",
    ),
    (
        Crash.CODE_ERROR,
        "  what():  CUDA error: an illegal memory access was encountered",
    ),
    (
        Crash.CUDA_OOM,
        "  what():  CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
    ),
    (
        Crash.DISK_FULL,
        "cp: error writing 'ckpt/step-700.pt': No space left on device",
    ),
    (
        Crash.DISK_FULL,
        "mkdir: cannot create directory 'ckpt': Disk quota exceeded",
    ),
    (
        Crash.PERMISSION,
        "bash: ./launch.sh: Permission denied",
    ),
    (
        Crash.NON_FINITE,
        "Loss is nan, stopping training",
    ),
    (
        Crash.NON_FINITE,
        "epoch 3 step 704 loss: nan lr 1e-4",
    ),
    (
        Crash.NON_FINITE,
        '{"step": 704, "loss": NaN, "lr": 0.0001}',
    ),
    (
        Crash.UNKNOWN,
        "slurmstepd: error: *** JOB 4711 ON node-03 CANCELLED AT 2026-03-01T12:00:00 DUE TO "
        "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    (
        Crash.CUDA_OOM,
        '{"level": "error", "msg": "step failed", "exc_info": "Traceback (most recent call '
        'last):\\n  File \\"t.py\\", line 1\\ntorch.OutOfMemoryError: CUDA out of memory. '
        'Tried to allocate 2.00 GiB. GPU 0"}',
    ),
    (
        Crash.CUDA_OOM,
        "2026-03-01 12:00:00,123 ERROR trainer: CUDA out of memory. Tried to allocate 2.00 "
        "GiB. GPU 0 has a total capacity of 79.15 GiB",
    ),
)

HARMLESS: tuple[str, ...] = (
    "no CUDA out of memory so far",
    "INFO watchdog: no CUDA out of memory. Tried to allocate 0 GiB is what we look for",
    "config: on_oom='CUDA out of memory. Tried to allocate 2 GiB' action=retry",
    '{"patterns": ["CUDA out of memory", "ChildFailedError", "Killed"], "retries": 3}',
    "Namespace(oom_text='torch.OutOfMemoryError: CUDA out of memory', lr=0.1)",
    "+ grep -q 'CUDA out of memory' train.log",
    "+ if grep -q Killed old.log; then exit 1; fi",
    "# handles torch.OutOfMemoryError: CUDA out of memory",
    "If you see 'RuntimeError: CUDA out of memory', lower the batch.",
    "> RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (from the last run)",
    "previous attempt ended with ChildFailedError, starting again",
    "Watching for RendezvousConnectionError and DistNetworkError",
    "[W socket.cpp:464] [c10d] The client socket has failed to connect to [node-07]:29500 (errno: "
    "97 - Address family not supported by protocol).",
    "UserWarning: Permission denied is reported by some mounts here",
    "number of skipped iterations:   0 | number of nan iterations:   0 |",
    "val_loss: nan (no validation set)",
    "grad_norm: nan (skipped by the scaler)",
    "loss_fn=infonce loss_weight=0.1 error_rate=0.02 exception_count=0",
    "retry_on: [OSError, ConnectionResetError, torch.OutOfMemoryError]",
    "  error_if_nonfinite: true",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_ENABLE_MONITORING=1",
    "Killed 3 stale workers of another run",
    "tests: 12 passed, Traceback (most recent call last) was not printed",
    "The time limit is 12:00:00; steps are CANCELLED AT that time DUE TO TIME LIMIT",
    'msg: "No space left on device" is retried 3 times',
    "checking quota: Disk quota exceeded would stop us; 12 of 100 TB are used",
    "logits inf-masked; losses finite; Segmentation masks loaded",
    "ValueError is raised for a bad batch, see the manual",
    "RuntimeError",
    "watchdog: step loop is alive",
    "exitcode 0 of the preprocessing",
    "python train.py --on-error=retry --out-of-memory=skip",
    "val/loss: inf",
    "Best loss: inf",
    "eval/loss = nan, no evaluation yet",
)

"""Distributed runs on machines without an accelerator.

Upstream reason: mmengine calls ``torch.cuda.set_device`` in every launcher
(``Found no NVIDIA driver``), passes ``device_ids`` to
``DistributedDataParallel`` (refused for CPU modules), and keeps
``SyncBatchNorm``, which torch refuses on the CPU. ``dist_cfg =
dict(backend='gloo')`` in a config changes none of the three.
"""

import datetime
import os
import subprocess
import time

import torch.distributed as torch_dist
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.registry import MODEL_WRAPPERS
from torch import nn

LAUNCHERS = ('none', 'pytorch', 'slurm', 'mpi')
# What each launcher tells its processes, and how they are started.
_NEEDED = {
    'pytorch': (
        ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR'),
        'torchrun or tools/dist_train.sh',
    ),
    'slurm': (
        ('SLURM_NODELIST', 'SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_NTASKS'),
        'srun or tools/slurm_train.sh',
    ),
    'mpi': (
        (
            'OMPI_COMM_WORLD_RANK',
            'OMPI_COMM_WORLD_LOCAL_RANK',
            'OMPI_COMM_WORLD_SIZE',
            'MASTER_ADDR',
        ),
        'mpirun -x MASTER_ADDR=ADDRESS_OF_THE_FIRST_NODE (Open MPI)',
    ),
}
_DDP = 'MMDistributedDataParallel'
_CPU_DDP = 'CPUDistributedDataParallel'


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """Data-parallel wrapper of a model on the CPU.

    Synchronised batch norm runs on GPUs only: such layers become plain batch
    norm, so each process normalises over its own samples. The class is
    registered in mmengine's root, so that configs of every scope find it.

    Args:
        module (nn.Module): The model.
        device_ids (list[int], optional): Ignored; mmengine passes the local
            rank.
        **kwargs: Arguments of mmengine's ``MMDistributedDataParallel``.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[int] | None = None,
        **kwargs,
    ) -> None:
        # mmcv's class inherits from torch's only in name: compare names.
        if any('SyncBatchNorm' in type(m).__name__ for m in module.modules()):
            print_log(
                'Synchronised batch norm runs on GPUs only: its layers '
                'become plain batch norm, each process normalises over its '
                'own samples.',
                logger='current',
                level=30,
            )
            module = revert_sync_batchnorm(module)
        super().__init__(module, device_ids=None, **kwargs)


def _slurm_environment() -> dict[str, str]:
    """Return torch's variables for a task started by srun."""
    nodes = os.environ['SLURM_NODELIST']
    hosts = subprocess.run(
        ['scontrol', 'show', 'hostname', nodes],
        check=True,
        capture_output=True,
        text=True,
    )
    return {
        'RANK': os.environ['SLURM_PROCID'],
        'LOCAL_RANK': os.environ['SLURM_LOCALID'],
        'WORLD_SIZE': os.environ['SLURM_NTASKS'],
        'MASTER_ADDR': os.environ.get(
            'MASTER_ADDR', hosts.stdout.splitlines()[0]
        ),
    }


def _mpi_environment() -> dict[str, str]:
    """Return torch's variables for a process started by mpirun."""
    return {
        'RANK': os.environ['OMPI_COMM_WORLD_RANK'],
        'LOCAL_RANK': os.environ['OMPI_COMM_WORLD_LOCAL_RANK'],
        'WORLD_SIZE': os.environ['OMPI_COMM_WORLD_SIZE'],
    }


def _start_gloo(launcher: str, dist_cfg: dict) -> None:
    """Start the process group that mmengine then finds running."""
    if launcher == 'slurm':
        os.environ.update(_slurm_environment())
    elif launcher == 'mpi':
        os.environ.update(_mpi_environment())
    os.environ.setdefault('MASTER_PORT', str(dist_cfg.get('port') or 29500))
    timeout = dist_cfg.get('timeout')
    torch_dist.init_process_group(
        'gloo',
        timeout=timeout and datetime.timedelta(seconds=timeout),
    )


def check_launcher(launcher: str) -> None:
    """Check that a process was started by the launcher that it names.

    Args:
        launcher (str): As for :func:`prepare_distributed`.

    Raises:
        ValueError: The launcher is unknown.
        RuntimeError: Environment variables of the launcher are missing.
    """
    if launcher not in LAUNCHERS:
        raise ValueError(
            f'`launcher` is {launcher!r}; expected one of {LAUNCHERS}'
        )
    if launcher == 'none':
        return
    names, remedy = _NEEDED[launcher]
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RuntimeError(
            f'launcher `{launcher}` needs the environment variables '
            f'{", ".join(missing)}, which are not set; start the script with '
            f'{remedy}, or use launcher `none` for one process'
        )


def prepare_distributed(cfg: Config, launcher: str) -> None:
    """Set the launcher and start what mmengine cannot start itself.

    With an accelerator, and without a launcher, mmengine does the rest.
    Without an accelerator the processes are joined by gloo, and the model is
    wrapped by :class:`CPUDistributedDataParallel`. Call it once per process,
    after the config is read and before the Runner is built.

    Args:
        cfg (Config): Runner config, changed in place.
        launcher (str): ``'none'``, ``'pytorch'`` (torchrun), ``'slurm'`` or
            ``'mpi'``.

    Raises:
        ValueError: The launcher is unknown.
        RuntimeError: The environment is not the one of the launcher, or the
            device is one on which processes cannot be joined.
    """
    if not torch_dist.is_initialized():
        check_launcher(launcher)
    cfg.launcher = launcher
    device = get_device()
    wrapper = cfg.get('model_wrapper_cfg')
    kind = str((wrapper or {}).get('type', _DDP)).rpartition('.')[2]
    if launcher == 'none' or device not in ('cpu', 'mps'):
        # A config saved by a CPU run may have come to this machine.
        if kind == _CPU_DDP:
            wrapper.type = _DDP
        return
    if device == 'mps':
        raise RuntimeError(
            'distributed runs on Apple GPUs (mps) are not supported by '
            'torch; use launcher `none`'
        )
    if not torch_dist.is_initialized():
        _start_gloo(launcher, cfg.get('env_cfg', {}).get('dist_cfg') or {})
    if kind == _DDP:
        defaults = dict(
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        )
        cfg.model_wrapper_cfg = ConfigDict(
            {**defaults, **(wrapper or {}), 'type': _CPU_DDP}
        )


def finish_distributed() -> None:
    """Leave the process group; does nothing where there is none.

    Upstream reason: the threads of gloo free the tensors of a collective
    after it is done, which takes the interpreter's lock. mmengine ends right
    after its last collective, and a thread that comes when the interpreter
    is shutting down aborts the process (1 run in 30 on a busy machine). Call
    it after a run that succeeded: after an error the other processes would
    not come.
    """
    if not torch_dist.is_initialized():
        return
    torch_dist.barrier()
    torch_dist.destroy_process_group()
    # Nothing tells when the threads are through; they need microseconds.
    time.sleep(1)

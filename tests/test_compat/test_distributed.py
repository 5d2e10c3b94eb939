"""Distributed start-up on the CPU, in one process."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as torch_dist
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODEL_WRAPPERS
from torch import Tensor, nn

from mmssm.compat import distributed
from mmssm.compat.distributed import (
    finish_distributed,
    prepare_distributed,
)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the environment of a torchrun with one process."""
    for name, value in dict(
        RANK='0',
        WORLD_SIZE='1',
        LOCAL_RANK='0',
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT='0',
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, 'get_device', lambda: 'cpu')
    yield
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


class _Model(BaseModel):
    """Smallest model with synchronised batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)
        self.norm = nn.SyncBatchNorm(2)

    def forward(self, inputs: Tensor, mode: str = 'tensor') -> dict:
        return dict(loss=self.norm(self.conv(inputs)).square().mean())


def test_cpu_run_starts_gloo_and_trains_sync_bn(torchrun: None) -> None:
    cfg = Config(dict(find_unused_parameters=True))
    prepare_distributed(cfg, 'pytorch')
    assert torch_dist.get_backend() == 'gloo'
    assert cfg.launcher == 'pytorch'

    # As mmengine's Runner builds it.
    model = MODEL_WRAPPERS.build(
        cfg.model_wrapper_cfg,
        default_args=dict(module=_Model(), device_ids=[0]),
    )
    assert isinstance(model.module.norm, nn.modules.batchnorm._BatchNorm)
    assert not isinstance(model.module.norm, nn.SyncBatchNorm)
    assert model.find_unused_parameters
    before = model.module.conv.weight.clone()
    optim = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1.0))
    model.train_step(dict(inputs=torch.randn(4, 1, 3, 3)), optim)
    assert not torch.equal(before, model.module.conv.weight)


def test_finish_leaves_the_group(torchrun: None) -> None:
    finish_distributed()
    prepare_distributed(Config(dict()), 'pytorch')
    assert torch_dist.is_initialized()
    finish_distributed()
    assert not torch_dist.is_initialized()


def test_wrapper_settings_of_the_config_are_kept(torchrun: None) -> None:
    cfg = Config(dict(model_wrapper_cfg=dict(static_graph=True)))
    prepare_distributed(cfg, 'pytorch')
    assert cfg.model_wrapper_cfg.static_graph
    assert cfg.model_wrapper_cfg.type == 'CPUDistributedDataParallel'

    cfg = Config(dict(model_wrapper_cfg=dict(type='Custom')))
    prepare_distributed(cfg, 'pytorch')
    assert cfg.model_wrapper_cfg == dict(type='Custom')


@pytest.mark.parametrize(
    ('launcher', 'device'), [('none', 'cpu'), ('pytorch', 'cuda')]
)
def test_mmengine_keeps_what_it_can_do(
    torchrun: None, monkeypatch: pytest.MonkeyPatch, launcher: str, device: str
) -> None:
    monkeypatch.setattr(distributed, 'get_device', lambda: device)
    cfg = Config(dict())
    prepare_distributed(cfg, launcher)
    assert cfg.launcher == launcher
    assert 'model_wrapper_cfg' not in cfg
    assert not torch_dist.is_initialized()


def test_config_of_a_cpu_run_moves_to_a_gpu(
    torchrun: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed, 'get_device', lambda: 'cuda')
    cfg = Config(
        dict(model_wrapper_cfg=dict(type='CPUDistributedDataParallel'))
    )
    prepare_distributed(cfg, 'pytorch')
    assert cfg.model_wrapper_cfg.type == 'MMDistributedDataParallel'


def test_wrong_start_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, 'get_device', lambda: 'cpu')
    for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('LOCAL_RANK', '0')
    with pytest.raises(ValueError, match="`launcher` is 'torch'"):
        prepare_distributed(Config(dict()), 'torch')
    with pytest.raises(
        RuntimeError, match='RANK, WORLD_SIZE, MASTER_ADDR.*dist_train.sh'
    ):
        prepare_distributed(Config(dict()), 'pytorch')
    with pytest.raises(RuntimeError, match='mpirun -x MASTER_ADDR'):
        prepare_distributed(Config(dict()), 'mpi')


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
@pytest.mark.parametrize(
    ('launcher', 'missing', 'remedy'),
    [
        ('slurm', 'SLURM_NODELIST, SLURM_PROCID', 'srun or .*slurm_train.sh'),
        ('mpi', 'OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_LOCAL', 'mpirun'),
    ],
)
def test_launcher_that_did_not_start_the_process(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    launcher: str,
    missing: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(distributed, 'get_device', lambda: device)
    for name in distributed._NEEDED[launcher][0]:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match=f'{missing}.*{remedy}.*`none`'):
        prepare_distributed(Config(dict()), launcher)


def test_apple_gpus_cannot_be_joined(
    torchrun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, 'get_device', lambda: 'mps')
    with pytest.raises(RuntimeError, match='mps'):
        prepare_distributed(Config(dict()), 'pytorch')


def test_launchers_set_the_variables_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    scontrol = tmp_path / 'scontrol'
    scontrol.write_text('#!/bin/sh\nprintf "node7\\nnode8\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=':')
    for name, value in dict(
        SLURM_NODELIST='node[7-8]',
        SLURM_PROCID='3',
        SLURM_LOCALID='1',
        SLURM_NTASKS='4',
        OMPI_COMM_WORLD_RANK='5',
        OMPI_COMM_WORLD_LOCAL_RANK='2',
        OMPI_COMM_WORLD_SIZE='6',
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv('MASTER_ADDR', raising=False)
    assert distributed._slurm_environment() == dict(
        RANK='3', LOCAL_RANK='1', WORLD_SIZE='4', MASTER_ADDR='node7'
    )
    monkeypatch.setenv('MASTER_ADDR', 'node1')
    assert distributed._mpi_environment() == dict(
        RANK='5', LOCAL_RANK='2', WORLD_SIZE='6'
    )

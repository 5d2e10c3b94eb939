"""Mixed precision on the CPU."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from mmssm.compat import amp
from mmssm.compat.amp import prepare_amp


def _config(wrapper: str) -> Config:
    return Config(
        dict(
            optim_wrapper=dict(
                type=wrapper,
                loss_scale='dynamic',
                dtype='float16',
                clip_grad=dict(max_norm=1),
            )
        )
    )


def test_cpu_wrapper_computes_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amp, 'get_device', lambda: 'cpu')
    cfg = _config('AmpOptimWrapper')
    prepare_amp(cfg)
    model = nn.Linear(4, 2)
    wrapper = OPTIM_WRAPPERS.build(
        cfg.optim_wrapper,
        default_args=dict(optimizer=torch.optim.SGD(model.parameters(), 0.1)),
    )
    with wrapper.optim_context(model):
        output = model(torch.randn(3, 4))
    assert output.dtype == torch.bfloat16
    wrapper.update_params(output.float().square().mean())
    assert model.weight.dtype == torch.float32
    assert wrapper.clip_grad_kwargs == dict(max_norm=1)


def test_state_of_a_gpu_run_loads() -> None:
    model = nn.Linear(4, 2)
    wrapper = amp.CPUAmpOptimWrapper(torch.optim.SGD(model.parameters(), 0.1))
    state = wrapper.state_dict()
    state['param_groups'][0]['lr'] = 0.5
    wrapper.load_state_dict({**state, 'loss_scaler': dict(scale=1.0)})
    assert wrapper.param_groups[0]['lr'] == 0.5


@pytest.mark.parametrize(
    ('device', 'given', 'expected'),
    [
        ('cuda', 'AmpOptimWrapper', 'AmpOptimWrapper'),
        ('cuda', 'CPUAmpOptimWrapper', 'AmpOptimWrapper'),
        ('cpu', 'mmengine.AmpOptimWrapper', 'CPUAmpOptimWrapper'),
        ('cpu', 'OptimWrapper', 'OptimWrapper'),
    ],
)
def test_wrapper_follows_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, given: str, expected: str
) -> None:
    monkeypatch.setattr(amp, 'get_device', lambda: device)
    cfg = _config(given)
    prepare_amp(cfg)
    assert cfg.optim_wrapper.type == expected

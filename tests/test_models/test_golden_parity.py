"""Numbers of the published model, reproduced with converted weights."""

import pytest
import torch

from mmssm.models.heads import PhaseHead
from mmssm.models.layers import DualPathBlock
from mmssm.models.losses import (
    ConfidenceSmoothnessLoss,
    PhaseCrossEntropyLoss,
    TransitionIntensityLoss,
    transition_target,
)
from mmssm.models.temporal import SurgicalMamba
from mmssm.ops import cayley_matrix
from tests.test_models.golden import Golden, converted, our_name

BLOCK = ('blocks.0.', 'temporal.blocks.0.')
HEAD = ('output_head.', 'head.')
CROSS_ENTROPY = dict(type='PhaseCrossEntropyLoss')


def build_block(golden, **switches):
    config = golden.config
    block = DualPathBlock(
        config['d_model'],
        d_state_slow=config['d_state_slow'],
        d_state_fast=config['d_state'],
        d_conv=config['d_conv'],
        expand=config['expand'],
        chunk_size_slow=config['chunk_size_slow'],
        chunk_size_fast=config['chunk_size_fast'],
        **{'rotation_rank': config['t_rank'], **switches},
    )
    weights = converted(golden.sd, *BLOCK)
    if switches:  # an ablated block has fewer parameters
        weights = {k: v for k, v in weights.items() if k in block.state_dict()}
    block.load_state_dict(weights)
    return block.eval()


def run_clip(block, x, state=None):
    """Run a clip, recording rotations and path outputs on the way."""
    state = state or block.init_state(len(x), x.device, x.dtype)
    record = {'Z_slow': [], 'Z_fast': [], 'y_slow': None, 'y_fast': None}
    hooks = []
    for name in ('slow', 'fast'):
        path = getattr(block.mixer, name)
        if path.regramming is not None:
            hooks.append(
                path.regramming.register_forward_hook(
                    lambda module, args, out, name=name: record[
                        f'Z_{name}'
                    ].append(cayley_matrix(*module.planes(args[1])))
                )
            )
    out, state, intensity = block(x, state)
    closed = block.close_clip(state)
    if block.mixer.fast.regramming is not None:
        block.mixer.fast.close_chunk(state.fast)  # records the last rotation
    for hook in hooks:
        hook.remove()
    return out, closed, intensity, record


@pytest.mark.parametrize('name', ['open_block', 'open_block_ragged'])
def test_block(name):
    golden = Golden(name)
    block = build_block(golden)
    x = golden.inputs['x'].requires_grad_()
    out, state, intensity, record = run_clip(block, x)
    golden.check('clip1/out', out)
    golden.check('clip1/lam_logit', intensity)
    golden.check('clip1/ssm_slow', state.slow.ssm_state)
    golden.check('clip1/conv_slow', state.slow.conv_state)
    for path in ('slow', 'fast'):
        golden.check(f'clip1/Z_{path}', torch.stack(record[f'Z_{path}']))
    assert not any(t.any() for t in state.fast.tensors())

    mixed, _, _ = block.mixer(
        block.norm(x), block.init_state(len(x), x.device, x.dtype)
    )
    golden.check('clip1/mamba', mixed)

    loss = (out * golden.inputs['grad_out']).sum()
    (loss + (intensity * golden.inputs['grad_lam']).sum()).backward()
    parameters = dict(block.named_parameters())
    gradients = [k for k in golden.out if k.startswith('grad/')]
    assert len(gradients) > 5
    for key in gradients:
        published = key.removeprefix('grad/')
        grad = (
            x.grad
            if published == 'x'
            else parameters[our_name(published, *BLOCK)].grad
        )
        golden.check(key, grad)

    out2, state2, intensity2, record2 = run_clip(
        block, golden.inputs['x2'], state.detach()
    )
    golden.check('clip2/out', out2)
    golden.check('clip2/lam_logit', intensity2)
    golden.check('clip2/ssm_slow', state2.slow.ssm_state)
    golden.check('clip2/conv_slow', state2.slow.conv_state)
    for path in ('slow', 'fast'):
        golden.check(f'clip2/Z_{path}', torch.stack(record2[f'Z_{path}']))


@pytest.mark.parametrize('name', ['open_block', 'open_block_ragged'])
def test_path_outputs(name):
    golden = Golden(name)
    block = build_block(golden)
    outputs = {}
    for path in ('slow', 'fast'):
        module = getattr(block.mixer, path)
        scan = module.scan

        def recorded(*args, scan=scan, path=path):
            outputs[path] = scan(*args)
            return outputs[path]

        module.scan = recorded
    run_clip(block, golden.inputs['x'])
    for path, (y, _) in outputs.items():
        golden.check(f'clip1/y_{path}', y.transpose(1, 2))


@pytest.mark.parametrize('name', ['open_block', 'open_block_ragged'])
@pytest.mark.parametrize(
    ('key', 'switches'),
    [
        ('out_without_rotation', dict(rotation_rank=None)),
        ('out_without_lambda_in_dt', dict(use_intensity=False)),
    ],
)
def test_ablated_block(name, key, switches):
    golden = Golden(name)
    block = build_block(golden, **switches)
    _, state, _, _ = run_clip(block, golden.inputs['x'])
    out, _, _, _ = run_clip(block, golden.inputs['x2'], state)
    golden.check(f'clip2/{key}', out)


@pytest.mark.parametrize('name', ['open_block', 'open_block_ragged'])
def test_block_without_carry(name):
    golden = Golden(name)
    out, _, _, _ = run_clip(build_block(golden), golden.inputs['x2'])
    golden.check('clip2/out_without_carry', out)


def build_head(golden, **switches):
    config = golden.config
    head = PhaseHead(
        config['d_model'],
        config['num_classes'],
        CROSS_ENTROPY,
        d_state=config['d_state'],
        d_conv=config['d_conv'],
        expand=config['expand'],
        chunk_size=config['chunk_size'],
        **{'rotation_rank': config['T_rank'], **switches},
    )
    weights = converted(golden.sd, *HEAD)
    weights = {k: v for k, v in weights.items() if k in head.state_dict()}
    head.load_state_dict(weights)
    return head.eval()


def test_head():
    golden = Golden('open_head')
    head = build_head(golden)
    x = golden.inputs['x'].requires_grad_()
    rotations, blocks = [], []
    regramming = head.blocks[0].path.regramming
    regramming.register_forward_hook(
        lambda module, args, out: rotations.append(
            cayley_matrix(*module.planes(args[1]))
        )
    )
    head.fc.register_forward_pre_hook(lambda _, args: blocks.append(args[0]))
    logits = head(x).hidden
    golden.check('logits', logits)
    golden.check('block_out', blocks[0])
    # The rotation after the last chunk has no reader, so the head leaves it
    # out; the path's own end of a chunk does it.
    block = head.blocks[0]
    _, state = block(x, head.init_state(len(x)).blocks[0])
    del rotations[len(rotations) // 2 :]
    block.path.close_chunk(state)
    golden.check('Z', torch.stack(rotations))

    (logits * golden.inputs['grad_out']).sum().backward()
    parameters = dict(head.named_parameters())
    for key in [k for k in golden.out if k.startswith('grad/')]:
        published = key.removeprefix('grad/')
        grad = (
            x.grad
            if published == 'x'
            else parameters[our_name(published, *HEAD)].grad
        )
        golden.check(key, grad)


def test_head_without_rotation():
    golden = Golden('open_head')
    head = build_head(golden, rotation_rank=None)
    golden.check('logits_without_rotation', head(golden.inputs['x']).hidden)


@torch.no_grad()
def test_head_steps():
    golden = Golden('open_head')
    head = build_head(golden)
    x = golden.inputs['x']
    state, logits = head.init_state(len(x)), []
    for t in range(x.shape[1]):
        out = head.step(x[:, t], state)
        state = out.state
        logits.append(out.hidden)
    golden.check('step_logits', torch.stack(logits, 1))
    (path,) = state.blocks
    golden.check('step_ssm_final', path.ssm_state)
    golden.check(
        'step_ysum_final',
        path.y_sum.reshape(golden.out['step_ysum_final'].shape),
    )
    golden.out['step_conv_final'] = golden.out['step_conv_final'][..., 1:]
    golden.check('step_conv_final', path.conv_state)


def build_temporal(golden):
    config = golden.config
    temporal = SurgicalMamba(
        in_channels=config['d_visual'],
        d_model=config['d_model'],
        num_layers=config['n_layers'],
        d_state=config['d_state'],
        expand=config['expand'],
        chunk_size_slow=config['chunk_size_slow_block'],
        chunk_size_fast=config['chunk_size_fast_block'],
        rotation_rank=config['t_rank_block'],
    )
    head = PhaseHead(
        config['d_model'],
        config['num_phases'],
        CROSS_ENTROPY,
        d_state=config['d_state'],
        chunk_size=config['head_chunk_size'],
    )
    full = converted(golden.sd, '', '')
    for module, prefix in ((temporal, 'temporal.'), (head, 'head.')):
        module.load_state_dict(
            {
                key.removeprefix(prefix): value
                for key, value in full.items()
                if key.startswith(prefix)
            }
        )
    return temporal.eval(), head.eval()


def check_carry(golden, clip, state):
    for i, block in enumerate(state.blocks):
        prefix = f'clip/after_clip{clip + 1}/block{i}'
        golden.check(f'{prefix}/ssm_slow', block.slow.ssm_state)
        golden.check(f'{prefix}/conv_slow', block.slow.conv_state)


def check_session(golden, clip, state):
    """Compare with the published session, which is right for this file."""
    for i, block in enumerate(state.blocks):
        prefix = f'step/after_clip{clip + 1}/block{i}'
        golden.check(f'{prefix}/ssm_slow', block.slow.ssm_state)
        # Its buffer holds one column more, which nothing reads again.
        expected = golden.out[f'{prefix}/conv_slow'][..., 1:]
        torch.testing.assert_close(block.slow.conv_state, expected)
        for path in ('slow', 'fast'):
            opened = getattr(block, path)
            y_sum = golden.out[f'{prefix}/ysum_{path}']
            torch.testing.assert_close(opened.y_sum.view_as(y_sum), y_sum)
            assert opened.num_frames == golden.out[f'{prefix}/frame_in_chunk']


TEMPORAL_FILES = ['open_temporal', 'open_temporal_ragged']


@torch.no_grad()
@pytest.mark.parametrize('name', TEMPORAL_FILES)
def test_temporal_clips(name):
    golden = Golden(name)
    temporal, head = build_temporal(golden)
    clips = golden.inputs['feats'].split(golden.meta['clip_len'], dim=1)
    state, hidden, intensity, logits = None, [], [], []
    for clip, feats in enumerate(clips):
        out = temporal(feats, state)
        state = out.state
        check_carry(golden, clip, state)
        hidden.append(out.hidden)
        intensity.append(out.intensity_logits)
        logits.append(head(out.hidden).hidden)
    golden.check('clip/hidden', torch.cat(hidden, 1))
    golden.check('clip/lam_logits', torch.cat(intensity, 2))
    golden.check('clip/logits', torch.cat(logits, 1))


@torch.no_grad()
@pytest.mark.parametrize('name', TEMPORAL_FILES)
def test_temporal_steps(name):
    """Steps give clip mode's numbers, where the published session differs.

    The ``step/*`` keys of the ragged file record the published mismatch, so
    the target of both modes is ``clip/*``.
    """
    golden = Golden(name)
    temporal, head = build_temporal(golden)
    feats, clip_len = golden.inputs['feats'], golden.meta['clip_len']
    state = temporal.init_state(len(feats), clip_len)
    head_state = head.init_state(len(feats), clip_len)
    hidden, intensity, logits = [], [], []
    for t in range(feats.shape[1]):
        out = temporal.step(feats[:, t], state)
        head_out = head.step(out.hidden, head_state)
        state, head_state = out.state, head_out.state
        hidden.append(out.hidden)
        intensity.append(out.intensity_logits)
        logits.append(head_out.hidden)
        if (t + 1) % clip_len == 0:
            check_carry(golden, t // clip_len, state)
            if name == 'open_temporal':
                check_session(golden, t // clip_len, state)
    if name == 'open_temporal':
        golden.check('step/logits', torch.stack(logits, 1))
    golden.check('clip/hidden', torch.stack(hidden, 1))
    golden.check('clip/lam_logits', torch.stack(intensity, 2))
    golden.check('clip/logits', torch.stack(logits, 1))


def test_losses():
    golden = Golden('open_losses')
    logits = golden.inputs['logits'].requires_grad_()
    lam = golden.inputs['lam'].requires_grad_()
    mask = golden.inputs['mask']
    labels = golden.inputs['labels'].masked_fill(~mask, -1)

    ce = PhaseCrossEntropyLoss(0.1)(logits, labels)
    smooth = ConfidenceSmoothnessLoss()(logits, labels)
    intensity = TransitionIntensityLoss()(lam, labels)
    golden.check('ce_smooth0.1', ce)
    golden.check('ce_plain', PhaseCrossEntropyLoss(0.0)(logits, labels))
    golden.check('smoothness', smooth)
    golden.check('bce_mean', intensity)
    per_layer = [
        TransitionIntensityLoss()(layer[None], labels) for layer in lam
    ]
    golden.check('bce_per_layer', torch.stack(per_layer))

    total = ce + smooth + intensity
    golden.check('total', total)
    total.backward()
    golden.check('grad_logits', logits.grad)
    golden.check('grad_lam', lam.grad)


def test_transition_target():
    golden = Golden('open_losses')
    labels = golden.inputs['labels']
    golden.check('target', transition_target(labels))
    golden.check('target_s3_s5', transition_target(labels, 3.0, 5.0))
    constant = torch.zeros(1, 96, dtype=torch.long)
    golden.check('target_no_change', transition_target(constant))


def test_smoothness_without_a_valid_pair():
    golden = Golden('open_losses')
    labels = torch.full((2, 96), -1)
    labels[:, ::2] = 0
    loss = ConfidenceSmoothnessLoss()(golden.inputs['logits'], labels)
    golden.check('smoothness_no_valid_pair', loss)

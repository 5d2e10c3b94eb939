# ImageNet as DeiT's code trains on it. The base has its transforms:
# rand-m9-mstd0.5-inc1, random erasing of 0.25, crops of 0.875 in tests; timm
# leaves the color jitter of 0.3 out where there is RandAugment. Only the
# repeated augmentation is not in it. Configs set `batch_size`.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py'

train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))

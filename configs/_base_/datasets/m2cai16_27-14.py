# M2CAI16-workflow, the challenge's split: 27 training and 14 test videos.
_base_ = './cholec80_40-40.py'

data_root = 'data/m2cai16/'
dataset_type = 'M2CAI16Dataset'

train_dataloader = dict(
    dataset=dict(type=dataset_type, data_root=data_root, split='27-14/train')
)
test_dataloader = dict(
    dataset=dict(type=dataset_type, data_root=data_root, split='27-14/test')
)

# Handwritten digits of scikit-learn: 1347 images to train, 450 to test.
dataset_type = 'mmssm.Digits'
data_preprocessor = dict(mean=[78.0], std=[96.0], num_classes=10)

train_pipeline = [
    dict(type='Resize', scale=(32, 32), interpolation='bilinear'),
    # Shifts by up to 2 pixels.
    dict(type='RandomCrop', crop_size=32, padding=2),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='Resize', scale=(32, 32), interpolation='bilinear'),
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type=dataset_type, split='train', pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=150,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        split='test',
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator

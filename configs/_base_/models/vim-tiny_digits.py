# A Vim of 4 narrow blocks for grey images of 32 x 32 pixels: 64 patches and
# the class token.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmssm.Vim',
        arch=dict(embed_dims=64, depth=4),
        img_size=32,
        patch_size=4,
        in_channels=1,
    ),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=64,
        loss=dict(type='CrossEntropyLoss'),
        topk=(1,),
    ),
)

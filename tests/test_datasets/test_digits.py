"""Digits: split, images, and the way through mmpretrain's transforms."""

import numpy as np
import pytest
from mmengine.registry import DefaultScope

from mmssm.datasets import Digits

sklearn_datasets = pytest.importorskip('sklearn.datasets')


def test_split_is_fixed_and_stratified():
    train, test = Digits(), Digits('test')
    assert (len(train), len(test)) == (1347, 450)
    everything = sklearn_datasets.load_digits()
    whole = np.bincount(everything.target)
    held_out = np.bincount([test[i]['gt_label'] for i in range(450)])
    np.testing.assert_allclose(held_out, whole / 4, atol=1)

    def images(dataset):
        return {dataset[i]['img'].tobytes() for i in range(len(dataset))}

    # The 1797 images are all different.
    assert len(images(train) | images(test)) == 1797
    assert not images(train) & images(test)
    assert images(Digits('test')) == images(test)
    assert images(Digits('test', split_seed=1)) != images(test)


def test_images_and_labels_belong_together():
    everything = sklearn_datasets.load_digits()
    labels = {
        np.rint(image * 255 / 16).astype(np.uint8).tobytes(): label
        for image, label in zip(
            everything.images, everything.target, strict=True
        )
    }
    test = Digits('test')
    for i in range(len(test)):
        sample = test[i]
        assert sample['img'].shape == (8, 8)
        assert sample['img'].dtype == np.uint8
        assert sample['gt_label'] == labels[sample['img'].tobytes()]
        assert sample['sample_idx'] == i
    assert max(test[i]['img'].max() for i in range(50)) == 255


def test_first_images_are_mixed():
    few = Digits(indices=192)
    counts = np.bincount([few[i]['gt_label'] for i in range(len(few))])
    assert len(few) == 192 and counts.min() >= 10
    assert few.metainfo['classes'] == tuple('0123456789')
    with pytest.raises(ValueError, match="expected one of .'train', 'test'"):
        Digits('val')


def test_transforms_of_the_config():
    pytest.importorskip('mmpretrain')
    from mmengine.config import Config

    from tests.test_docs.markdown import ROOT

    cfg = Config.fromfile(ROOT / 'configs/_base_/datasets/digits.py')
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        train = Digits(pipeline=cfg.train_pipeline)
        test = Digits('test', pipeline=cfg.test_pipeline)
    plain = test[0]
    assert plain['inputs'].shape == (1, 32, 32)
    assert plain['data_samples'].gt_label.tolist() == [
        Digits('test')[0]['gt_label']
    ]
    bare = Digits()[0]['img']
    whole = np.kron(bare, np.ones((4, 4)))
    seen = set()
    for _ in range(40):
        image = train[0]['inputs'][0].numpy()
        # The shift that lays the image best on the original.
        shifts = {
            (y, x): np.abs(np.roll(image, (-y, -x), (0, 1)) - whole).mean()
            for y in range(-4, 5)
            for x in range(-4, 5)
        }
        seen.add(min(shifts, key=shifts.get))
    assert len(seen) > 8
    assert max(abs(part) for shift in seen for part in shift) == 2

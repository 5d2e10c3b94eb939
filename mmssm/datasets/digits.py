"""The handwritten digits that scikit-learn brings along."""

from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from mmssm.registry import DATASETS
from mmssm.utils import require

SPLITS = ('train', 'test')


@DATASETS.register_module()
class Digits(BaseDataset):
    """1797 real images of 8 x 8 pixels in 10 classes; needs no download.

    A quarter of every class, 450 images, is for testing. The order of the
    training images is random but fixed, so ``indices=192`` takes 192 mixed
    ones.

    A sample has what the transforms of mmpretrain expect: ``img``, uint8
    ``(8, 8)`` with the ink bright, ``gt_label``, ``sample_idx``,
    ``ori_shape`` and ``img_shape``. Sizes and shifts are transforms, such as
    ``Resize`` and ``RandomCrop`` with padding.

    Args:
        split (str): ``'train'`` or ``'test'``. Default: 'train'.
        split_seed (int): Decides which images are for testing. Default: 0.
        **kwargs: As for mmengine's ``BaseDataset``: ``pipeline``,
            ``indices``, ``test_mode`` and others.

    Raises:
        ImportError: If scikit-learn is not installed.
        ValueError: If there is no such split.

    Source: UCI's "Optical Recognition of Handwritten Digits" (E. Alpaydin,
    C. Kaynak), its test part, as in ``sklearn.datasets.load_digits``.

    Example:
        >>> from mmssm.datasets import Digits
        >>> dataset = Digits('test')
        >>> len(dataset), dataset[0]['img'].shape
        (450, (8, 8))
    """

    METAINFO = dict(classes=tuple('0123456789'))

    def __init__(
        self, split: str = 'train', split_seed: int = 0, **kwargs: Any
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f'`split` is {split!r}; expected one of {SPLITS}')
        self.split, self.split_seed = split, split_seed
        super().__init__(**kwargs)

    def load_data_list(self) -> list[dict[str, Any]]:
        """Return the samples of the split."""
        used_by = 'mmssm.datasets.Digits'
        digits = require('sklearn.datasets', 'mmcls', used_by).load_digits()
        selection = require('sklearn.model_selection', 'mmcls', used_by)
        parts = selection.train_test_split(
            np.arange(len(digits.target)),
            test_size=0.25,
            random_state=self.split_seed,
            stratify=digits.target,
        )
        # 17 grey levels, 0 to 16.
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        return [
            dict(
                img=images[i],
                img_shape=images.shape[1:],
                ori_shape=images.shape[1:],
                gt_label=int(digits.target[i]),
            )
            for i in parts[SPLITS.index(self.split)].tolist()
        ]

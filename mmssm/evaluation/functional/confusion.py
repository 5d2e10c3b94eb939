"""Frame counts of one video: what every frame-wise score is made of."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def check_labels(
    gt: ArrayLike,
    pred: ArrayLike,
    num_classes: int,
    ignore_index: int | None = -1,
    video_id: str | None = None,
) -> tuple[NDArray, NDArray]:
    """Check two label sequences and drop the frames that are not labelled.

    Args:
        gt (array): Annotated phase ids ``(frames,)``, integers.
        pred (array): Predicted phase ids ``(frames,)``, integers.
        num_classes (int): Number of phases.
        ignore_index (int, optional): Id in ``gt`` of unlabelled frames, which
            are dropped. None: every frame must be labelled. Default: -1.
        video_id (str, optional): Named in error messages.

    Returns:
        tuple[array, array]: int64 ``gt`` and ``pred`` of the labelled frames.

    Raises:
        TypeError: If a sequence does not hold integers.
        ValueError: If the sequences are not 1-D, differ in length, or hold
            an id outside 0..num_classes - 1.
    """
    where = '' if video_id is None else f' of video {video_id!r}'
    arrays = []
    for name, labels in (('gt', gt), ('pred', pred)):
        labels = np.asarray(labels)
        if labels.ndim != 1:
            raise ValueError(
                f'`{name}`{where} has shape {labels.shape}; expected (frames,)'
            )
        if labels.size and not np.issubdtype(labels.dtype, np.integer):
            raise TypeError(
                f'`{name}`{where} has dtype {labels.dtype}; expected integers '
                '(phase ids)'
            )
        arrays.append(labels.astype(np.int64))
    gt, pred = arrays
    if len(gt) != len(pred):
        raise ValueError(
            f'`gt`{where} has {len(gt)} frames, `pred` has {len(pred)}; '
            'expected the same frames in both. Cut or resample them to the '
            'same frame rate and length before scoring'
        )
    if ignore_index is not None:
        labelled = gt != ignore_index
        gt, pred = gt[labelled], pred[labelled]
    for name, labels in (('gt', gt), ('pred', pred)):
        wrong = (labels < 0) | (labels >= num_classes)
        if wrong.any():
            raise ValueError(
                f'`{name}`{where} holds phase id {labels[wrong][0]}; expected '
                f'0..{num_classes - 1}'
                + (
                    f' or ignore_index = {ignore_index}'
                    if name == 'gt' and ignore_index is not None
                    else ''
                )
            )
    return gt, pred


def confusion_matrix(
    gt: ArrayLike,
    pred: ArrayLike,
    num_classes: int,
    ignore_index: int | None = -1,
    video_id: str | None = None,
) -> NDArray:
    """Count the frames of one video by annotated and predicted phase.

    Args:
        gt (array): Annotated phase ids ``(frames,)``, integers.
        pred (array): Predicted phase ids ``(frames,)``, integers.
        num_classes (int): Number of phases.
        ignore_index (int, optional): Id in ``gt`` of frames that are not
            counted. Default: -1.
        video_id (str, optional): Named in error messages.

    Returns:
        array: int64 ``(num_classes, num_classes)``; row = annotated phase,
        column = predicted phase.

    Raises:
        TypeError: If a sequence does not hold integers.
        ValueError: If the sequences are malformed or differ in length.

    Example:
        >>> confusion_matrix([0, 0, 1, -1], [0, 1, 1, 0], num_classes=2)
        array([[1, 1],
               [0, 1]])
    """
    gt, pred = check_labels(gt, pred, num_classes, ignore_index, video_id)
    cells = np.bincount(gt * num_classes + pred, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes)

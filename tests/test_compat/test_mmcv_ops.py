"""Operators of the stand-in against definitions written as loops."""

import math

import pytest
import torch
from torch import Tensor

from mmssm.compat import mmcv_ops


def _random_boxes(num: int, levels: int) -> tuple[Tensor, Tensor]:
    """Return overlapping boxes with scores on a grid, so that some tie."""
    corners = torch.rand(num, 2) * 20
    boxes = torch.cat([corners, corners + 5 + torch.rand(num, 2) * 20], dim=1)
    scores = torch.randint(1, levels + 1, (num,)).float() / levels
    return boxes, scores


def _iou(a: Tensor, b: Tensor, offset: int) -> float:
    """Return intersection over union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + offset
    height = min(a[3], b[3]) - max(a[1], b[1]) + offset
    overlap = max(0.0, float(width)) * max(0.0, float(height))
    areas = [
        float((box[2] - box[0] + offset) * (box[3] - box[1] + offset))
        for box in (a, b)
    ]
    return overlap / (sum(areas) - overlap)


def _nms(boxes: Tensor, scores: Tensor, threshold: float, offset: int) -> list:
    """Keep each box that no kept box before it overlaps, as mmcv does."""
    kept: list[int] = []
    for i in scores.sort(0, descending=True)[1].tolist():
        if all(_iou(boxes[i], boxes[j], offset) <= threshold for j in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('levels', [3, 1000], ids=['ties', 'distinct'])
def test_nms_matches_definition(levels: int, offset: int) -> None:
    for _ in range(20):
        boxes, scores = _random_boxes(24, levels)
        kept = mmcv_ops.nms(boxes, scores, iou_threshold=0.4, offset=offset)
        assert kept.tolist() == _nms(boxes, scores, 0.4, offset)


def test_nms_order_of_ties_is_that_of_sort() -> None:
    # Plain torchvision answers in the order of a stable sort; long inputs
    # are where torch.sort may differ from it.
    boxes = torch.arange(3000.0)[:, None] * 10 + torch.tensor([0, 0, 5, 5])
    scores = torch.randint(0, 3, (3000,)).float()
    kept = mmcv_ops.nms(boxes, scores, 0.5, 0)
    assert torch.equal(kept, scores.sort(0, descending=True)[1])


def test_nms_of_nothing_and_of_half_precision() -> None:
    assert mmcv_ops.nms(torch.zeros(0, 4), torch.zeros(0), 0.5, 0).numel() == 0
    boxes, scores = _random_boxes(10, 1000)
    half = mmcv_ops.nms(boxes.half(), scores, 0.4, 0)
    assert half.tolist() == _nms(boxes.half().float(), scores, 0.4, 0)


def _softnms(
    boxes: Tensor,
    scores: Tensor,
    threshold: float,
    sigma: float,
    min_score: float,
    method: int,
) -> tuple[list, list]:
    """Decay scores box by box, moving the last box into each gap."""
    rows = [
        [*box, score, index]
        for index, (box, score) in enumerate(
            zip(boxes.tolist(), scores.tolist(), strict=True)
        )
    ]
    i = 0
    while i < len(rows):
        best = max(range(i, len(rows)), key=lambda k: (rows[k][4], -k))
        rows[i], rows[best] = rows[best], rows[i]
        k = i + 1
        while k < len(rows):
            iou = _iou(torch.tensor(rows[i][:4]), torch.tensor(rows[k][:4]), 0)
            if method == 2:
                rows[k][4] *= math.exp(-iou * iou / sigma)
            elif iou >= threshold:
                rows[k][4] *= 0 if method == 0 else 1 - iou
            if rows[k][4] < min_score:
                rows[k] = rows[-1]
                rows.pop()
            else:
                k += 1
        i += 1
    return [row[5] for row in rows], [row[:5] for row in rows]


@pytest.mark.parametrize('method', [0, 1, 2])
def test_softnms_matches_definition(method: int) -> None:
    for _ in range(10):
        boxes, scores = _random_boxes(15, 4)
        dets = torch.zeros(15, 5)
        args = dict(sigma=0.5, min_score=0.2, method=method)
        kept = mmcv_ops.softnms(
            boxes, scores, dets, iou_threshold=0.3, offset=0, **args
        )
        expected, rows = _softnms(boxes, scores, 0.3, **args)
        assert kept.tolist() == expected
        torch.testing.assert_close(dets[: len(rows)], torch.tensor(rows))


def test_softnms_refuses_unknown_method() -> None:
    with pytest.raises(ValueError, match='`method` is 3'):
        mmcv_ops.softnms(
            torch.zeros(1, 4), torch.zeros(1), torch.zeros(1, 5),
            0.5, 0.5, 0.0, 3, 0,
        )  # fmt: skip


def _sample(image: Tensor, y: float, x: float) -> Tensor:
    """Return bilinear values at a point; zero beyond one pixel outside."""
    height, width = image.shape[-2:]
    if y < -1 or y > height or x < -1 or x > width:
        return image.new_zeros(image.shape[0])
    y, x = max(y, 0.0), max(x, 0.0)
    y0, x0 = min(int(y), height - 1), min(int(x), width - 1)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    fy = y - y0 if y0 < height - 1 else 0.0
    fx = x - x0 if x0 < width - 1 else 0.0
    return (
        image[:, y0, x0] * (1 - fy) * (1 - fx)
        + image[:, y0, x1] * (1 - fy) * fx
        + image[:, y1, x0] * fy * (1 - fx)
        + image[:, y1, x1] * fy * fx
    )


def _roi_align(
    features: Tensor,
    rois: Tensor,
    size: int,
    scale: float,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Average bilinear samples of each cell, as mmcv's kernel does."""
    output = features.new_zeros(len(rois), features.shape[1], size, size)
    for n, roi in enumerate(rois.tolist()):
        shift = 0.5 if aligned else 0.0
        x0, y0, x1, y1 = (value * scale - shift for value in roi[1:])
        width, height = x1 - x0, y1 - y0
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        num_y = sampling_ratio or math.ceil(height / size)
        num_x = sampling_ratio or math.ceil(width / size)
        image = features[int(roi[0])]
        for row in range(size):
            for column in range(size):
                for i in range(num_y):
                    for j in range(num_x):
                        y = y0 + (row + (i + 0.5) / num_y) * height / size
                        x = x0 + (column + (j + 0.5) / num_x) * width / size
                        output[n, :, row, column] += _sample(image, y, x) / (
                            num_y * num_x
                        )
    return output


@pytest.mark.parametrize('aligned', [True, False])
@pytest.mark.parametrize('sampling_ratio', [0, 2])
def test_roi_align_matches_definition(
    sampling_ratio: int, aligned: bool
) -> None:
    from mmcv.ops import roi_align

    features = torch.randn(2, 3, 9, 11, dtype=torch.float64)
    # Inside, larger than the image, and outside.
    rois = torch.tensor(
        [
            [0.0, 3.2, 4.1, 20.5, 15.0],
            [1.0, -6.0, -2.0, 50.0, 40.0],
            [1.0, 60.0, 60.0, 70.0, 64.0],
        ],
        dtype=torch.float64,
    )
    ours, definition = (features.clone().requires_grad_() for _ in range(2))
    output = roi_align(ours, rois, 3, 0.5, sampling_ratio, 'avg', aligned)
    expected = _roi_align(definition, rois, 3, 0.5, sampling_ratio, aligned)
    torch.testing.assert_close(output, expected)

    weights = torch.randn_like(output)
    (output * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, definition.grad)


def test_roi_align_keeps_the_dtype_of_half_precision() -> None:
    from mmcv.ops import roi_align

    features = torch.randn(1, 2, 8, 8)
    rois = torch.tensor([[0.0, 1.0, 1.0, 6.0, 6.0]])
    full = roi_align(features, rois, 2)
    half = roi_align(features.bfloat16(), rois, 2)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), full, atol=2e-2, rtol=2e-2)


def test_roi_align_refuses_max_pooling() -> None:
    from mmcv.ops import roi_align

    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        roi_align(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5), 2, 1.0, 0, 'max')
